#include "workers/cli/model_lookup.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/names.h"
#include "core/base/real_file_system.h"
#include "core/model/adapter_files.h"
#include "core/storage/checkpoint.h"
#include "core/storage/run_directory.h"
#include "workers/cli/run_lookup.h"
#include "workers/data/model_folder.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFolder = "model";  // in a checkpoint's folder

bool FolderThere(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool PathThere(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Files of which a folder with a model has one: a whole one's, an adapter's.
constexpr const char* kModelConfigFile = "config.json";
bool HoldsModel(const fs::path& dir) {
  return PathThere(dir / kModelConfigFile) || PathThere(dir / model::kAdapterConfigFile);
}
// Folders of adapters may have a config.json of their model, too, but no tensors of it.
bool HoldsAdapter(const fs::path& dir) {
  return PathThere(dir / model::kAdapterConfigFile) && !PathThere(dir / "model.safetensors") &&
         !PathThere(dir / "model.safetensors.index.json");
}

std::string ArchitectureOf(const std::string& dir) {
  std::ifstream in(dir + "/config.json");
  const nlohmann::json config = nlohmann::json::parse(in, nullptr, false);
  if (!config.is_object()) return "";  // whoever loads it says what is wrong with it
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() ? type->get<std::string>() : "";
}

// The model's files alone: the trainer's state beside them is several times larger, and nobody reads it here.
Status VerifyModel(FileSystem& files, const std::string& checkpoint) {
  TP_ASSIGN_OR_RETURN(const storage::Manifest manifest,
                      storage::ReadManifest(files, checkpoint, std::nullopt));
  for (const storage::ManifestFile& file : manifest.files) {
    if (!file.path.starts_with(std::string(kModelFolder) + "/")) continue;
    const std::string path = checkpoint + "/" + file.path;
    TP_ASSIGN_OR_RETURN(const uint64_t digest, storage::DigestFile(files, path));
    if (digest != file.digest)
      return DataLoss(path + ": is not what the checkpoint's manifest says; take another step");
  }
  return OkStatus();
}

// The model's folder: in the checkpoint's, or in a shared directory. From another store it is fetched into
// the checkpoint's folder once, and goes with it.
StatusOr<std::string> FolderOfModel(FileSystem& files, const std::string& dir) {
  std::string model = dir + "/" + kModelFolder;
  if (HoldsModel(model)) {
    const Status verified = VerifyModel(files, dir);
    if (verified.ok()) return model;
    if (!PathThere(fs::path(dir) / storage::kStorePlaceName)) return verified;
    TP_RETURN_IF_ERROR(files.RemoveTree(model));  // fetched, and damaged since
  }
  const std::string fetched = dir + "/fetched-" + std::to_string(getpid()) + ".tmp";
  const auto folder =
      storage::FolderWithFiles(files, dir, std::string(kModelFolder) + "/", fetched, [] { return true; });
  Status status = folder.status();
  if (folder.ok() && *folder != fetched) return *folder + "/" + kModelFolder;
  if (folder.ok()) status = files.Rename(fetched + "/" + kModelFolder, model);
  TP_RETURN_IF_ERROR(files.RemoveTree(fetched));
  TP_RETURN_IF_ERROR(status);
  return model;
}

StatusOr<FoundModel> ModelOfCheckpoint(FileSystem& files, const std::string& dir, const std::string& run,
                                       StepNumber step) {
  TP_ASSIGN_OR_RETURN(const std::string model, FolderOfModel(files, dir));
  return FoundModel{.dir = model, .run = run, .step = step};
}

std::string StepsText(const std::vector<StepNumber>& steps) {
  std::string text;
  for (const StepNumber step : steps) text += (text.empty() ? "" : ", ") + std::to_string(step.value);
  return text;
}

// Steps with a checkpoint that holds a model, ascending.
StatusOr<std::vector<StepNumber>> ModelSteps(FileSystem& files, const std::string& checkpoints) {
  TP_ASSIGN_OR_RETURN(std::vector<StepNumber> steps, storage::ListCheckpoints(files, checkpoints));
  std::erase_if(steps, [&](StepNumber step) {
    const std::string dir = checkpoints + "/" + storage::CheckpointName(step);
    if (HoldsModel(dir + "/" + kModelFolder)) return false;
    if (!PathThere(fs::path(dir) / storage::kStorePlaceName)) return true;
    const auto manifest = storage::ReadManifest(files, dir, std::nullopt);
    return !manifest.ok() || std::ranges::none_of(manifest->files, [](const storage::ManifestFile& file) {
      return file.path == std::string(kModelFolder) + "/" + kModelConfigFile ||
             file.path == std::string(kModelFolder) + "/" + model::kAdapterConfigFile;
    });
  });
  return steps;
}

StatusOr<FoundModel> ModelOfRun(const std::string& run, std::optional<StepNumber> step) {
  RealFileSystem files;
  const storage::RunPaths paths(run);
  if (!step && HoldsModel(paths.final_model())) {
    return FoundModel{.dir = paths.final_model(), .run = run};
  }
  TP_ASSIGN_OR_RETURN(const std::vector<StepNumber> steps, ModelSteps(files, paths.checkpoints()));
  if (steps.empty()) return NotFound(run + ": has neither a final model nor a checkpoint of one yet");
  const StepNumber taken = step.value_or(steps.back());
  if (std::ranges::find(steps, taken) == steps.end()) {
    return NotFound(run + ": has no checkpoint of step " + std::to_string(taken.value) +
                    "; there are those of step " + StepsText(steps) +
                    (HoldsModel(paths.final_model()) ? ", and " + run + " alone names its final model" : ""));
  }
  return ModelOfCheckpoint(files, paths.checkpoints() + "/" + storage::CheckpointName(taken), run, taken);
}

// The run directory that a folder in it belongs to: final/, checkpoints/step_N/model. Empty: none.
std::string RunAround(const std::string& dir) {
  fs::path at = fs::path(dir).parent_path();
  for (int up = 0; up < 3 && !at.empty(); ++up, at = at.parent_path()) {
    if (PathThere(storage::RunPaths(at.string()).config()) &&
        PathThere(storage::RunPaths(at.string()).journal()))
      return at.string();
  }
  return "";
}

// Folders with a model beside the current one, for who mistyped a name.
std::string ModelsBeside() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("models", error)) {
    if (HoldsModel(entry.path())) names.push_back(entry.path().string());
  }
  std::ranges::sort(names);
  std::string text;
  for (size_t i = 0; i < names.size() && i < 8; ++i) text += (text.empty() ? "" : ", ") + names[i];
  return text;
}

// FindModel without a look at what the folder holds.
StatusOr<FoundModel> FindFolder(const std::string& name, const std::string& key, const std::string& root) {
  std::string clean = name;
  while (clean.size() > 1 && clean.back() == '/') clean.pop_back();
  if (clean.empty()) return InvalidArgument(key + ": is empty; name a model folder or a run");
  if (HoldsModel(clean)) return FoundModel{.dir = clean, .run = RunAround(clean)};
  const std::string folder = fs::path(clean).filename().string();
  if (PathThere(fs::path(clean) / storage::kManifestName) && folder.starts_with("step_") &&
      folder.size() < 24 && folder.size() > 5 &&
      folder.find_first_not_of("0123456789", 5) == std::string::npos) {
    RealFileSystem files;
    const std::string run = fs::path(clean).parent_path().parent_path().string();
    auto found = ModelOfCheckpoint(files, clean, run, StepNumber{std::stoll(folder.substr(5))});
    return found.ok() ? std::move(found) : found.status().At(key);
  }
  std::optional<StepNumber> step;
  std::string run_name = clean;
  const auto colon = clean.rfind(':');
  const bool best = clean.ends_with(":best") && !FolderThere(clean);
  if (best) run_name = clean.substr(0, colon);
  if (colon != std::string::npos && !FolderThere(clean) && colon > 0 && colon + 1 < clean.size() &&
      clean.size() - colon < 19 && clean.find_first_not_of("0123456789", colon + 1) == std::string::npos) {
    step = StepNumber{std::stoll(clean.substr(colon + 1))};
    run_name = clean.substr(0, colon);
  }
  const auto run =
      FindRunDirectory(run_name, "a model is in final/ or checkpoints/ of a run directory", root);
  if (!run.ok()) {
    if (PathThere(fs::path(run_name) / "sweep.json"))
      return InvalidArgument(key + ": " + run_name +
                             " is a sweep, whose runs are folders in it; name one of those");
    if (FolderThere(run_name) && run.status().code() == StatusCode::kInvalidArgument) {
      return InvalidArgument(key + ": " + run_name +
                             ": neither a model folder (it has no config.json) nor a run directory (it has "
                             "no config.yaml and no journal/)");
    }
    const std::string models = ModelsBeside();
    return Status(run.status().code(), key + ": no model folder, and as a run: " + run.status().message() +
                                           (models.empty() ? "" : "; models: " + models) +
                                           (LooksLikeHubName(clean) ? "; " + WhereToGetModel(clean) : ""));
  }
  if (best) {
    const std::string dir = storage::RunPaths(*run).best_model();
    if (HoldsModel(dir)) return FoundModel{.dir = dir, .run = *run};
    return NotFound(key + ": " + *run +
                    ": has no best/; a run with checkpoint.keep_best has it after its "
                    "first evaluation");
  }
  auto found = ModelOfRun(*run, step);
  return found.ok() ? std::move(found) : found.status().At(key);
}

// Sets the adapter apart from the model that it changes: `base`, or the one that it names.
StatusOr<FoundModel> WithBase(FoundModel found, const std::string& key, const std::string& base) {
  if (HoldsAdapter(found.dir)) {
    found.adapter = found.dir;
    TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(found.adapter));
    found.dir = base.empty() ? ModelInRun(adapter, found.run) : base;
    if (found.dir.empty()) found.dir = adapter.base();
    if (!PathThere(fs::path(found.dir) / kModelConfigFile))
      return NotFound(key + ": " + found.adapter + " is an adapter of " +
                      (found.dir.empty() ? "a model that it does not name"
                                         : found.dir + ", which is no model folder here") +
                      "; give the folder of that model with --model" +
                      (key == "--model" ? ", and this with --adapter" : ""));
    TP_RETURN_IF_ERROR(adapter.CheckBase(found.dir).At(key));
  } else if (!base.empty()) {
    return InvalidArgument(key + ": " + found.dir + " is a whole model, and no adapter of " + base +
                           "; give it alone");
  }
  found.architecture = ArchitectureOf(found.dir);
  return found;
}

}  // namespace

StatusOr<FoundModel> FindModel(const std::string& name, const std::string& key, const std::string& root) {
  TP_ASSIGN_OR_RETURN(FoundModel found, FindFolder(name, key, root));
  return WithBase(std::move(found), key, "");
}

StatusOr<FoundModel> FindAdapted(const std::string& base, const std::string& adapter,
                                 const std::string& key) {
  TP_ASSIGN_OR_RETURN(const FoundModel model, FindModel(base, "--model"));
  if (!model.adapter.empty())
    return InvalidArgument("--model: " + base + " is an adapter itself, of " + model.dir +
                           "; give that, or " + base + " alone");
  TP_ASSIGN_OR_RETURN(FoundModel found, FindFolder(adapter, key, "runs"));
  return WithBase(std::move(found), key, model.dir);
}

std::string DescribeModel(const FoundModel& model) {
  const std::string& folder = model.adapter.empty() ? model.dir : model.adapter;
  const std::string of = model.adapter.empty() ? "" : ", adapter of " + model.dir;
  if (!model.step) return folder + of;
  const bool newest = !HoldsModel(storage::RunPaths(model.run).final_model());
  return folder + of + " (step " + std::to_string(model.step->value) +
         (newest ? "; the run has no final model)" : ")");
}

}  // namespace tidepool::workers
