#include "workers/controller/job.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/base/hash.h"
#include "core/base/json_text.h"
#include "core/base/limited_call.h"
#include "core/base/real_file_system.h"
#include "core/config/render.h"
#include "core/config/resume.h"
#include "core/cuda/model_check.h"
#include "core/device/cpu/kernels.h"
#include "core/files/safetensors.h"
#include "core/model/adapter.h"
#include "core/model/adapter_files.h"
#include "core/model/cut.h"
#include "core/model/gguf_folder.h"
#include "core/model/hugging_face.h"
#include "core/policy/spec.h"
#include "core/storage/checkpoint.h"
#include "core/storage/run_directory.h"
#include "core/tasks/data_source.h"
#include "core/text/tokenizer.h"
#include "workers/controller/found_gpus.h"
#include "workers/controller/host_memory.h"
#include "workers/controller/scheduler_options.h"
#include "workers/data/model_folder.h"
#include "workers/data/row_answers.h"
#include "workers/data/row_source.h"
#include "workers/device/disk_plan.h"
#include "workers/device/file_plan.h"
#include "workers/device/memory_plan.h"
#include "workers/net/hub.h"
#include "workers/side/model_reward.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

// What the controller compares on resume: the digest of what may not change is core/config's business,
// this one only names the exact text.
std::string DigestOf(const std::string& yaml) { return Sha256Hex(yaml).substr(0, 16); }

// The run's own name for shared memory and tokens: unique on this machine, short, a plain file name. It stays
// when the folder is moved, because the journal has it.
StatusOr<std::string> RunId(FileSystem& files, const std::string& run_dir) {
  TP_ASSIGN_OR_RETURN(const storage::RunOnDisk state, storage::ReadRunOnDisk(files, run_dir));
  if (!state.run_id.empty()) return state.run_id;
  std::error_code error;
  const fs::path dir = fs::canonical(run_dir, error);
  if (error) return NotFound(run_dir + ": " + error.message());
  std::string id;
  for (const char c : dir.filename().string()) {
    id.push_back(
        (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.') ? c : '_');
  }
  return id + "-" + Sha256Hex(dir.string()).substr(0, 8);
}

// The scheduler has the policy that the config names.
Status CheckSchedulingPolicy(const config::LoadedConfig& loaded) {
  const SchedulerConfig& s = loaded.config.scheduler;
  const Status status = LimitedPlacement({.placement = s.placement, .policy = s.policy}).status();
  return status.ok() ? status : status.At(loaded.OriginOf("scheduler.policy").Where());
}

// The folder itself where `dir` is a link to it: on the disk that somebody chose for it.
std::string PlaceOf(const std::string& dir) {
  std::error_code error;
  if (!fs::is_symlink(dir, error)) return dir;
  const fs::path place = fs::weakly_canonical(dir, error);
  return error ? dir : place.string();
}

Status RemoveContents(FileSystem& files, const std::string& dir) {
  TP_ASSIGN_OR_RETURN(const auto names, files.List(dir));
  for (const std::string& name : names) TP_RETURN_IF_ERROR(files.RemoveTree(JoinPath(dir, name)));
  return OkStatus();
}

// Whether two instruction sets give the same bits: they do where they share kernels, and tiles sum as AVX-512
// with bfloat16 does (docs/design.md).
bool RoundAlike(device::Isa a, device::Isa b, DType dtype) {
  if (dtype == DType::kFloat32) return &device::KernelsFor<float>(a) == &device::KernelsFor<float>(b);
  return std::min(a, device::Isa::kAvx512Bf16) == std::min(b, device::Isa::kAvx512Bf16);
}

class Job {
 public:
  explicit Job(const JobRequest& request) : request_(request), loaded_(request.loaded) {}

  StatusOr<JobOutcome> Run() {
    StatusOr<JobOutcome> outcome = Attempt();
    if (!outcome.ok()) TakeBack();
    return outcome;
  }

 private:
  StatusOr<JobOutcome> Attempt() {
    const JobConfig& config = request_.loaded.config;
    (void)device::BestIsa();  // ends the program here if TIDEPOOL_CPU_ISA is misspelt
    TP_RETURN_IF_ERROR(CheckFileLimit(config));
    TP_RETURN_IF_ERROR(CheckMemory(request_.loaded));
    TP_ASSIGN_OR_RETURN(worker_path_, FindWorker(config.cluster, request_.self_path));
    TP_RETURN_IF_ERROR(CheckInputs(
        request_.loaded, request_.resume && !request_.run_dir.empty() && HasCheckpoint(request_.run_dir)));
    TP_RETURN_IF_ERROR(CheckGpus(request_.loaded, worker_path_));
    if (config.model.init && !config.model.init->warm_start.empty()) {
      TP_ASSIGN_OR_RETURN(warm_, WarmStartOf(request_.loaded.config));
    }
    TP_RETURN_IF_ERROR(OpenRunDirectory());
    if (already_finished_) {
      Say(outcome_.run_dir + ": this run is finished (step " + std::to_string(last_step_) +
          "); go on with more steps by --resume train.steps=N, give another --run-dir, or " +
          request_.start_over);
      outcome_.already_finished = true;
      return outcome_;
    }
    std::string model_dir = config.model.path;
    if (config.model.init) {
      model_dir = storage::RunPaths(outcome_.run_dir).model();
      if (warm_) {
        TP_ASSIGN_OR_RETURN(const bool goes_on, WarmStart());
        if (!goes_on) return outcome_;
        model_dir = storage::RunPaths(storage::RunPaths(outcome_.run_dir).warm_start()).final_model();
      } else {
        TP_RETURN_IF_ERROR(MakeInit(*config.model.init, config.model.dtype, model_dir, begun_));
      }
    }
    if (config.model.is_policy()) {
      model_dir = storage::RunPaths(outcome_.run_dir).model();
      TP_ASSIGN_OR_RETURN(const policy::PolicySpec spec, policy::SpecOfJob(config));
      TP_RETURN_IF_ERROR(MakeModel(model_dir, begun_, [&](const std::string& folder) -> Status {
        TP_RETURN_IF_ERROR(fs_.MakeDirectories(folder));
        return policy::WritePolicySpec(spec, folder);
      }));
    }
    Say("run " + outcome_.run_dir);
    TP_ASSIGN_OR_RETURN(outcome_.result, Start("", loaded_, outcome_.run_dir, model_dir));
    outcome_.exit_code = outcome_.result.exit;
    outcome_.why = outcome_.result.why;
    return outcome_;
  }

  // The model folder of a run, which has a journal once it has `begun`. Of one that has, it stays as it is: a
  // controller that lives reads it, and nobody has its journal yet. Else it is there as a whole or not at
  // all.
  Status MakeModel(const std::string& dir, bool begun,
                   const std::function<Status(const std::string& folder)>& write) {
    if (begun && fs_.Exists(dir)) return OkStatus();
    const std::string unfinished = dir + ".tmp";
    TP_RETURN_IF_ERROR(fs_.RemoveTree(unfinished));
    TP_RETURN_IF_ERROR(write(unfinished));
    TP_RETURN_IF_ERROR(fs_.RemoveTree(dir));
    TP_RETURN_IF_ERROR(fs_.Rename(unfinished, dir));
    return fs_.SyncDir(ParentPath(dir));
  }
  Status MakeInit(const ModelInit& init, DType dtype, const std::string& dir, bool begun) {
    return MakeModel(dir, begun,
                     [&](const std::string& folder) { return WriteInitFolder(init, dtype, folder); });
  }

  // A run that was refused leaves nothing in the way of the next try.
  void TakeBack() {
    if (began_ || (!made_ && moved_aside_.empty())) return;
    const std::string& dir = outcome_.run_dir;
    std::error_code error;
    // Not made, and yet something: it is somebody else's.
    if (!made_ && fs::exists(dir, error) && !fs::is_empty(dir, error)) return;
    const std::string place = place_.empty() ? PlaceOf(dir) : place_;
    // A folder that was there, which may be a link or have a mode of its own, stays; what we put there goes.
    Status gone = was_there_ && moved_aside_.empty() ? RemoveContents(fs_, place) : fs_.RemoveTree(place);
    if (gone.ok() && !moved_aside_.empty()) {
      gone = fs_.Rename(moved_aside_, place);
      if (gone.ok()) Say("the old run is back in " + dir);
    }
    if (!gone.ok()) Say(dir + ": what was begun there is still in the way (" + gone.message() + ")");
  }

  void Say(const std::string& line) const {
    if (request_.say) request_.say(line);
  }

  // Whoever works on a run holds the lock of its folder, and takes it before anything there is read or moved.
  Status OpenRunDirectory() {
    const JobConfig& config = request_.loaded.config;
    if (request_.resume && request_.fresh)
      return InvalidArgument("--resume goes on with a run, --fresh starts it over; give one of them");
    storage::RunDirectoryOptions wanted;
    wanted.name = config.name;
    wanted.run_dir = request_.run_dir;
    wanted.unix_seconds = static_cast<int64_t>(std::time(nullptr));
    const auto plan = PlanDisk(config);
    if (plan.ok()) wanted.need = RoomFor(*plan, config);  // else a worker says what is wrong
    // Without a slash at its end: names are made by adding to it.
    while (wanted.run_dir.size() > 1 && wanted.run_dir.ends_with('/')) wanted.run_dir.pop_back();
    const std::string dir = wanted.run_dir;
    std::error_code error;  // a folder that cannot be read is reported by who writes to it
    bool goes_on = !dir.empty() && fs::exists(storage::RunPaths(dir).config(), error);
    if (goes_on) {
      auto lock = storage::LockRun(fs_, dir);
      const bool held = lock.status().code() == StatusCode::kFailedPrecondition;
      if (held && request_.take_over) {
        held_by_another_ = true;
      } else if (held && request_.resume) {
        return FailedPrecondition(lock.status().message() +
                                  "; if it is frozen, or its host cannot be reached, add --take-over");
      } else {
        TP_ASSIGN_OR_RETURN(lock_, std::move(lock));
      }
      TP_ASSIGN_OR_RETURN(const storage::RunOnDisk state, storage::ReadRunOnDisk(fs_, dir));
      last_step_ = std::max<int64_t>(state.last_step.value, 0);
      if (!request_.fresh && state.Finished(config.train.steps, config.eval.stop_at_accuracy)) {
        // What asks for anything else is not done with it.
        TP_ASSIGN_OR_RETURN(const config::LoadedConfig old,
                            config::ReadRunConfig(storage::RunPaths(dir).config()));
        const std::vector<config::Difference> differences = config::Differences(old.config, config);
        std::string changes;
        for (const config::Difference& d : differences) changes += "\n  " + d.ToString();
        if (!differences.empty() && !request_.resume) {
          return AlreadyExists("--run-dir: " + dir +
                               " holds a finished run of another config; give another folder, or " +
                               request_.start_over + "; what differs:" + changes);
        }
        TP_RETURN_IF_ERROR(config::CheckAllowed(differences, request_.start_over));
        if (!differences.empty()) Say("no step is left that this could change:" + changes);
        already_finished_ = true;
        outcome_.run_dir = dir;
        return OkStatus();
      }
      if (!request_.fresh && !request_.resume) {
        return AlreadyExists(
            "--run-dir: " + dir + " holds a run " + (state.complete ? "that ended" : "that is not finished") +
            " (step " + std::to_string(last_step_) + "); go on with --resume, or " + request_.start_over);
      }
      if (request_.resume && state.OnlyFinal()) {
        return FailedPrecondition(dir +
                                  ": its checkpoints were deleted (`tidepool prune --final-only`), so it "
                                  "cannot go on; start a new run from its model, with model.path=" +
                                  storage::RunPaths(dir).final_model());
      }
      if (request_.resume) {
        begun_ = state.has_journal;
        TP_ASSIGN_OR_RETURN(const std::vector<StepNumber> kept,
                            storage::ListCheckpoints(fs_, storage::RunPaths(dir).checkpoints()));
        if (!begun_ && !kept.empty()) {
          return FailedPrecondition(dir +
                                    ": has checkpoints but no journal/, which says what they are of; bring "
                                    "journal/ back, or " +
                                    request_.start_over);
        }
        TP_RETURN_IF_ERROR(GoOnFrom(dir));
      }
    } else if (request_.resume && !fs::exists(storage::RunPaths(dir).lock(), error) && !error) {
      // With a lock file it is a run that was ended before it began.
      return NotFound("--resume: " + dir + " holds no run" +
                      (fs::exists(dir, error) ? "" : " (there is no such folder)") +
                      "; check --run-dir, or start a run there without --resume");
    }
    // Before anything is made or moved.
    if (goes_on) {
      if (plan.ok() && !request_.fresh) wanted.need = RoomFor(*plan, config, dir);
      TP_RETURN_IF_ERROR(storage::CheckSpace(fs_, dir, wanted.need));
    }
    TP_RETURN_IF_ERROR(Hub::CanListen(config.cluster.bind, config.cluster.port));
    if (goes_on && request_.fresh) {
      place_ = PlaceOf(dir);
      const std::string aside = place_ + ".old-" + storage::UtcStamp(wanted.unix_seconds);
      TP_RETURN_IF_ERROR(fs_.Rename(place_, aside));
      Say("the old run is now " + aside);
      moved_aside_ = aside;
      outcome_.run_dir = dir;
      if (place_ != dir) TP_RETURN_IF_ERROR(fs_.MakeDirectory(place_));  // a link leads there still
      goes_on = false;
    }
    outcome_.run_dir = dir;
    if (!goes_on) {
      was_there_ = !dir.empty() && fs::exists(dir, error);
      TP_ASSIGN_OR_RETURN(outcome_.run_dir, storage::CreateRunDirectory(fs_, wanted));
      TP_ASSIGN_OR_RETURN(lock_, storage::LockRun(fs_, outcome_.run_dir));
      made_ = true;  // else it is of who has the lock
      // Also over what a run that died before it began has left.
      config_changes_ = warm_changes_ = true;
    }
    if (const auto free = fs_.FreeBytes(outcome_.run_dir); plan.ok() && free.ok() && !goes_on) {
      if (const std::string warning = SpaceWarning(*plan, outcome_.run_dir, *free); !warning.empty())
        Say("warning: " + warning);
    }
    return Furnish();
  }

  // What the config of now changes in the one that the run last went on with: refused where a run may not
  // change, else told, and kept in config.yaml.
  Status GoOnFrom(const std::string& dir) {
    const storage::RunPaths paths(dir), warm(paths.warm_start());
    TP_RETURN_IF_ERROR(CheckInstructionSet(paths));
    TP_ASSIGN_OR_RETURN(config_changes_, Compare(paths.config(), loaded_, "", last_step_, /*over=*/false));
    if (!warm_ || !fs_.Exists(warm.config())) return OkStatus();
    TP_ASSIGN_OR_RETURN(const storage::RunOnDisk state, storage::ReadRunOnDisk(fs_, warm.dir));
    TP_ASSIGN_OR_RETURN(warm_changes_, Compare(warm.config(), *warm_, "warm start: ", state.last_step.value,
                                               begun_ || state.complete));
    return OkStatus();
  }

  // Kernels of another instruction set round otherwise: a deterministic run would not be the one that it
  // began as. What hosts and workers that are started by others have is not known here.
  Status CheckInstructionSet(const storage::RunPaths& paths) {
    const ClusterConfig& cluster = loaded_.config.cluster;
    if (!cluster.launch_workers || cluster.device != DeviceKind::kCpu) return OkStatus();
    TP_ASSIGN_OR_RETURN(const std::vector<StepNumber> kept,
                        storage::ListCheckpoints(fs_, paths.checkpoints()));
    if (kept.empty()) return OkStatus();
    const StepNumber newest = *std::ranges::max_element(kept);
    const auto manifest =
        storage::ReadManifest(fs_, paths.checkpoints() + "/" + storage::CheckpointName(newest), std::nullopt);
    if (!manifest.ok()) return OkStatus();  // who reads it to go on says so
    const device::Isa now = device::BestIsa();
    constexpr auto kWords = WordsOf(device::Isa{});
    const auto word = std::ranges::find(kWords, manifest->instruction_set);
    if (word == kWords.end()) return OkStatus();
    const auto was = static_cast<device::Isa>(word - kWords.begin());
    if (RoundAlike(was, now, loaded_.config.model.dtype)) return OkStatus();
    const std::string differs = "checkpoints/" + storage::CheckpointName(newest) +
                                " was computed with the instruction set " + Name(was) +
                                ", and this process has " + Name(now) + ", which rounds otherwise";
    if (!loaded_.config.deterministic) {
      Say("warning: " + differs);
      return OkStatus();
    }
    return FailedPrecondition("--resume: " + differs + ", and the run is deterministic; " +
                              (was < now ? std::string("set TIDEPOOL_CPU_ISA=") + Name(was)
                                         : "unset TIDEPOOL_CPU_ISA, or go on where the processor has it"))
        .At(request_.run_dir);
  }

  // Whether `now` differs from what `file` says. over: it has no step to do, so it may have more than it is
  // to have now.
  StatusOr<bool> Compare(const std::string& file, config::LoadedConfig& now, const std::string& whose,
                         int64_t step, bool over) {
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig old, config::ReadRunConfig(file));
    const auto allowed = config::ChangesOnResume(old, now, over ? 0 : step, request_.start_over);
    if (!allowed.ok())
      return Status(allowed.status().code(), whose + allowed.status().message()).At(request_.run_dir);
    const std::vector<config::Difference>& differences = *allowed;
    TP_RETURN_IF_ERROR(CheckMoved(fs::path(file).parent_path().string(), now.config, differences));
    now.history = old.history;
    // Once the run itself has begun, what may change in its warm start changes nothing any more.
    if (differences.empty() || (begun_ && &now != &loaded_)) return false;
    Say(whose + "the config changes (" + file + " keeps what it was):");
    for (const config::Difference& d : differences) Say("  " + d.Told());
    config::AddToHistory(now,
                         "step " + std::to_string(std::max<int64_t>(step, 0)) + ", " +
                             storage::UtcStamp(static_cast<int64_t>(std::time(nullptr))),
                         differences);
    return true;
  }

  // Rows and model may lie elsewhere, but they are the ones of the newest checkpoint: its rows by their
  // identity, its model by shape and tokenizer (the weights are in the checkpoint). Looked at before
  // config.yaml names the new place.
  Status CheckMoved(const std::string& run_dir, const JobConfig& now,
                    const std::vector<config::Difference>& differences) {
    const auto differs = [&](const char* key) {
      return std::ranges::any_of(differences, [&](const config::Difference& d) { return d.key == key; });
    };
    const bool rows_moved = differs("data.path") || differs("data.eval_path"),
               model_moved = differs("model.path");
    if (!rows_moved && !model_moved) return OkStatus();
    const std::string checkpoints = storage::RunPaths(run_dir).checkpoints();
    TP_ASSIGN_OR_RETURN(const std::vector<StepNumber> steps, storage::ListCheckpoints(fs_, checkpoints));
    if (steps.empty()) return OkStatus();  // nothing was trained
    const std::string newest = checkpoints + "/" + storage::CheckpointName(steps.back());
    if (rows_moved) {
      TP_ASSIGN_OR_RETURN(const storage::Manifest manifest, storage::ReadManifest(fs_, newest, std::nullopt));
      TP_ASSIGN_OR_RETURN(const tasks::DataSource rows,
                          tasks::DataSource::Create(now.data, now.seed, now.kind()));
      const auto trained = manifest.notes.find("data_identity");
      if (trained != manifest.notes.end() && trained->second != rows.identity()) {
        return FailedPrecondition("data.path: " + now.data.path +
                                  (now.data.eval_path.empty() ? "" : " and " + now.data.eval_path) +
                                  " hold other rows than the run was trained on; name the file that it began "
                                  "with, or start a new run");
      }
    }
    const std::string trained = newest + "/model";
    // The model below an adapter is compared before the run goes on, wherever it is (BaseDigest).
    if (model_moved && fs_.Exists(trained + "/config.json")) {
      TP_ASSIGN_OR_RETURN(const model::ModelSpec was, model::ReadSpec(trained));
      TP_ASSIGN_OR_RETURN(const model::ModelSpec is, model::ReadSpec(now.model.path));
      const auto shape = [](const model::ModelSpec& m) {
        return std::tuple(m.architecture, m.vocab_size, m.hidden_size, m.intermediate_size, m.layers, m.heads,
                          m.kv_heads, m.head_size);
      };
      TP_ASSIGN_OR_RETURN(const std::string old_tokenizer, fs_.ReadFile(trained + "/tokenizer.json"));
      TP_ASSIGN_OR_RETURN(const std::string tokenizer, fs_.ReadFile(now.model.path + "/tokenizer.json"));
      if (shape(was) != shape(is) || old_tokenizer != tokenizer) {
        return FailedPrecondition(
            "model.path: " + now.model.path +
            " is another model than the run began with (its shape or its tokenizer differs "
            "from that of " +
            trained + "); name that one, or start a new run");
      }
    }
    return OkStatus();
  }

  // The warm start's config comes first: with config.yaml a folder is that of a run, and that one refers to
  // it. From then on the run needs no other config than its own.
  Status Furnish() {
    const storage::RunPaths paths(outcome_.run_dir), warm(paths.warm_start());
    config::LoadedConfig written = loaded_;
    if (warm_) {
      TP_RETURN_IF_ERROR(Furnish(warm.dir, *warm_, warm_changes_));
      // Relative to the file that names it: the folder may be moved.
      written.config.model.init->warm_start =
          fs::path(warm.config()).lexically_relative(outcome_.run_dir).string();
      loaded_.config.model.init->warm_start = fs::absolute(warm.config()).lexically_normal().string();
    }
    return Furnish(outcome_.run_dir, written, config_changes_);
  }

  Status Furnish(const std::string& dir, const config::LoadedConfig& loaded, bool changed) {
    const storage::RunPaths paths(dir);
    TP_RETURN_IF_ERROR(fs_.MakeDirectories(dir));
    if (changed || !fs_.Exists(paths.config()))
      unwritten_.emplace_back(paths.config(), config::ResolvedYaml(loaded));
    if (made_) TP_RETURN_IF_ERROR(WriteConfigs());
    for (const std::string& folder : {paths.logs(), paths.samples(), paths.trace(), paths.security()})
      TP_RETURN_IF_ERROR(fs_.MakeDirectories(folder));
    return OkStatus();
  }

  // A run that goes on has its old config until a controller has begun: a resume that is refused changes
  // nothing. Addresses of servers and paths are nobody else's business.
  Status WriteConfigs() {
    for (const auto& [path, text] : std::exchange(unwritten_, {}))
      TP_RETURN_IF_ERROR(fs_.WriteFile(path, text, FileAccess::kOwnerOnly));
    return OkStatus();
  }

  // The journal is this process's: so is the folder, whoever was taken over has it no more.
  Status Accepted() {
    if (lock_ == nullptr) {
      TP_ASSIGN_OR_RETURN(lock_,
                          fs_.TakeLock(storage::RunPaths(outcome_.run_dir).lock(), storage::ThisProcess()));
    }
    if (std::exchange(held_by_another_, false))
      Say("has taken the run over: " + outcome_.run_dir +
          " was held by another controller, which can write nothing any more");
    return WriteConfigs();
  }

  // The warm start is an sft job like any other, in RUN/warm_start, with this run's model and seed.
  StatusOr<bool> WarmStart() {
    if (begun_) return true;
    const config::LoadedConfig& warm = *warm_;
    const std::string dir = storage::RunPaths(outcome_.run_dir).warm_start();
    TP_ASSIGN_OR_RETURN(const storage::RunOnDisk state, storage::ReadRunOnDisk(fs_, dir));
    if (state.Finished(warm.config.train.steps, warm.config.eval.stop_at_accuracy)) return true;
    TP_RETURN_IF_ERROR(MakeInit(*warm.config.model.init, warm.config.model.dtype,
                                storage::RunPaths(dir).model(), state.has_journal));
    TP_ASSIGN_OR_RETURN(outcome_.result, Start("warm start", warm, dir, storage::RunPaths(dir).model()));
    const RunResult& result = outcome_.result;
    if (result.exit == 0 && !result.stopped) {
      Say("warm start: " + result.why);
      return true;
    }
    outcome_.exit_code = result.exit;
    outcome_.why = result.exit == 0 ? "" : "warm start: " + result.why;
    return false;
  }

  // Of the model below an adapter, which stays as it was when the run began: whoever reads it later compares
  // it. Empty: its weights are made from the config.
  StatusOr<std::string> BaseDigest(const std::string& run_dir, const std::string& model_dir,
                                   const std::string& first_adapter) {
    constexpr const char* kDigest = "digest";
    const std::string path = storage::RunPaths(run_dir).base();
    if (fs_.Exists(path)) {
      TP_ASSIGN_OR_RETURN(const std::string text, fs_.ReadFile(path));
      TP_ASSIGN_OR_RETURN(const nlohmann::json base, ParseJsonObject<nlohmann::json>(text, path));
      if (const auto noted = base.find(kDigest); noted == base.end() || !noted->is_string())
        return DataLoss(path + ": has no \"" + kDigest + "\"; it is written by this program alone");
      const std::string begun_with = base[kDigest];
      TP_RETURN_IF_ERROR(CheckModelDigest(model_dir, begun_with).At("model.path"));
      return begun_with;
    }
    if (!HasTensors(model_dir)) return std::string();
    // Weights that were made from the config are kept since the first checkpoint, which has their
    // fingerprint.
    const std::string checkpoints = storage::RunPaths(run_dir).checkpoints();
    TP_ASSIGN_OR_RETURN(const std::vector<StepNumber> steps, storage::ListCheckpoints(fs_, checkpoints));
    if (const std::string trained =
            steps.empty() ? "" : checkpoints + "/" + storage::CheckpointName(steps.back()) + "/model";
        !steps.empty() && fs_.Exists(trained + "/" + model::kAdapterConfigFile)) {
      TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(trained));
      TP_RETURN_IF_ERROR(adapter.CheckBase(model_dir).At("model.path"));
    } else if (steps.empty() && !first_adapter.empty()) {
      TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(first_adapter));
      TP_RETURN_IF_ERROR(adapter.CheckBase(model_dir).At("model.lora.path"));
    }
    TP_ASSIGN_OR_RETURN(const std::string digest, ModelDigestOf(model_dir));
    unwritten_.emplace_back(path, nlohmann::json{{kDigest, digest}}.dump(1) + "\n");
    return digest;
  }

  StatusOr<RunResult> Start(const std::string& phase, const config::LoadedConfig& loaded,
                            const std::string& run_dir, const std::string& model_dir) {
    outcome_.part_dir = run_dir;
    RunRequest run;
    run.config = loaded.config;
    run.config_yaml = config::ResolvedYaml(loaded);
    run.config_digest = DigestOf(run.config_yaml);
    run.run_dir = fs::absolute(run_dir).string();
    TP_ASSIGN_OR_RETURN(run.run_id, RunId(fs_, run_dir));
    run.model_dir = fs::absolute(model_dir).string();
    if (loaded.config.model.trains_adapter()) {
      TP_ASSIGN_OR_RETURN(run.base_digest, BaseDigest(run_dir, run.model_dir, loaded.config.model.lora.path));
    }
    run.self_path = request_.self_path;
    run.certificates = request_.certificates;
    run.worker_path = worker_path_;
    run.pool = request_.pool;
    run.take_over = request_.take_over;
    run.stop_signals = request_.stop_signals;
    run.say = [this](const std::string& line) { Say(line); };
    run.accepted = [this] { return Accepted(); };
    run.on_progress = [this, phase](const observe::StatusFile& p) {
      if (request_.on_progress) request_.on_progress(phase, p);
    };
    if (request_.go_on) RunningCall::TellAfterwards("go on with: " + request_.go_on(outcome_.run_dir));
    StatusOr<RunResult> result = RunController(run);
    RunningCall::TellAfterwards("");
    began_ = began_ || result.ok();
    if (result.ok() && !result->moved_to.value_or("").empty()) {
      const std::string& now = *result->moved_to;
      outcome_.run_dir = run_dir == outcome_.run_dir ? now : ParentPath(now);
      outcome_.part_dir = now;
    }
    return result;
  }

  const JobRequest& request_;
  config::LoadedConfig loaded_;               // the request's, as the run has it
  std::optional<config::LoadedConfig> warm_;  // of model.init.warm_start
  int64_t last_step_ = 0;                     // where the run was found
  bool begun_ = false;                        // it was found behind its warm start
  bool config_changes_ = false, warm_changes_ = false;
  std::vector<std::pair<std::string, std::string>> unwritten_;  // config.yaml and base.json: path, text
  RealFileSystem fs_;
  std::unique_ptr<FileLock> lock_;  // none: another controller has it, until this one is accepted
  bool held_by_another_ = false;
  std::string worker_path_;
  JobOutcome outcome_;
  bool already_finished_ = false;
  bool made_ = false;  // the folder is this process's: it was not there, or empty (was_there_)
  bool was_there_ = false;
  bool began_ = false;       // a controller worked in it
  std::string moved_aside_;  // the run that was there, by --fresh
  std::string place_;        // and the path that it had
};

}  // namespace

StatusOr<std::string> FindWorker(const ClusterConfig& cluster, const std::string& self_path) {
  const std::string dir =
      cluster.worker_dir.empty() ? fs::path(self_path).parent_path().string() : cluster.worker_dir;
  const std::string path = dir + "/tidepool-worker";
  if (access(path.c_str(), X_OK) != 0) {
    return NotFound("cluster.worker_dir: " + path +
                    " is not there or cannot be run; build it (make build), or name the folder that has it");
  }
  return path;
}

StatusOr<config::LoadedConfig> WarmStartOf(const JobConfig& main) {
  TP_ASSIGN_OR_RETURN(config::LoadedConfig warm, config::LoadWarmStart(main));
  if (warm.config.kind() != JobKind::kSft) {
    return InvalidArgument(main.model.init->warm_start +
                           ": model.init.warm_start needs a job of kind sft, this is " +
                           Name(warm.config.kind()));
  }
  warm.config.model = main.model;
  warm.config.model.lora = {};  // the model itself, which an adapter is then trained on
  warm.config.model.init->warm_start.clear();
  warm.config.cluster.device = main.cluster.device;
  warm.config.deterministic = main.deterministic;
  return warm;
}

namespace {

// The adapter that training begins with.
Status CheckFirstAdapter(const ModelConfig& model, const model::AdapterSpec& wanted) {
  TP_ASSIGN_OR_RETURN(const auto first, model::AdapterFolder::Open(model.lora.path));
  TP_RETURN_IF_ERROR(first.CheckSpec(wanted));
  TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, SpecOf(model));
  TP_RETURN_IF_ERROR(first.CheckShapes(spec));
  TP_RETURN_IF_ERROR(first.CheckTrainable(spec));
  if (!model.init) return first.CheckBase(model.path);
  // That of a warm start is compared when it is there.
  if (!model.init->warm_start.empty() || first.fingerprint().empty()) return OkStatus();
  return InvalidArgument(model.lora.path + ": was trained on a model with the fingerprint " +
                         first.fingerprint() + (first.base().empty() ? "" : " (" + first.base() + ")") +
                         ", and this run makes a model anew (model.init); give that one as model.path "
                         "instead");
}

}  // namespace

bool HasCheckpoint(const std::string& run_dir) {
  RealFileSystem files;
  const auto steps = storage::ListCheckpoints(files, storage::RunPaths(run_dir).checkpoints());
  return steps.ok() && !steps->empty();
}

Status CheckInputs(const config::LoadedConfig& loaded, bool goes_on) {
  const JobConfig& config = loaded.config;
  const UsualLimitFor limit(config::UsualLimitOf(loaded));
  const auto at = [&](const char* key, const Status& status) {
    const config::Origin origin = loaded.OriginOf(key);
    return origin.kind == config::Origin::Kind::kDefault ? status : status.At(origin.Where());
  };
  Status wrong;  // all that is, a line each
  const auto look = [&](const char* key, const Status& status) {
    if (status.ok()) return true;
    const std::string message = at(key, status).message();
    wrong =
        wrong.ok() ? Status(status.code(), message) : Status(wrong.code(), wrong.message() + "\n" + message);
    return false;
  };
  // Where the device is a GPU: whether its kernels have the sizes of the model.
  const auto fits_kernels = [&](const char* key, const ModelConfig& model) {
    if (config.cluster.device != DeviceKind::kCuda) return true;
    const auto spec = SpecOf(model);
    return !spec.ok() || look(key, cuda::CheckModel(*spec).At(key));
  };
  const auto folder = [&](const char* key, const std::string& dir) {
    const Status status = CheckModelFolder(dir, key);
    return look(key, status.ok() ? model::CheckHuggingFace(dir) : status) &&  // shapes and sizes, no tensor
           fits_kernels(key, {.path = dir});
  };
  TP_RETURN_IF_ERROR(CheckSchedulingPolicy(loaded));
  const bool of_folder = !config.model.init && !config.model.is_policy();
  const bool model_there = !of_folder || folder("model.path", config.model.path);
  if (of_folder && model::HoldsGguf(config.model.path) && !config.model.trains_adapter())
    look("model.path",
         InvalidArgument("model.path: " + config.model.path + " has its weights in blocks of 8 or 4 bits (" +
                         model::kGgufFile +
                         "), which cannot be trained in full; train an adapter on them (model.lora: {rank: "
                         "16}), or a folder of numbers: `tidepool import " +
                         config.model.path + "/" + model::kGgufFile + " --out FOLDER`"));
  if (config.model.init) fits_kernels("model.init", config.model);
  using model::Cut;
  for (const auto& [key, ranks, what] : {std::tuple("train.mesh.tp", config.train.mesh.tp, Cut::kMatrices),
                                         {"train.mesh.ep", config.train.mesh.ep, Cut::kExperts},
                                         {"rollout.mesh.tp", config.rollout.mesh.tp, Cut::kMatrices}}) {
    if (ranks == 1 || !model_there) continue;
    if (const auto spec = SpecOf(config.model); spec.ok())
      look(key, model::CheckCut(*spec, ranks, what).At(key));
  }
  if (const auto adapter = model::AdapterOf(config); adapter && model_there) {
    if (const auto spec = SpecOf(config.model); spec.ok())
      look("model.lora.rank", model::CheckAdapter(*spec, *adapter).At("model.lora"));
    if (!config.model.lora.path.empty() && (!goes_on || RefersToFirstAdapter(config)))
      look("model.lora.path", CheckFirstAdapter(config.model, *adapter).At("model.lora.path"));
  }
  if (AnswersHeldOut(config) && of_folder && model_there) {
    // Every sample would be refused by the engine.
    TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(config.model.path));
    if (config.rollout.max_new_tokens >= spec.max_position) {
      look("rollout.max_new_tokens",
           InvalidArgument("rollout.max_new_tokens is " + std::to_string(config.rollout.max_new_tokens) +
                           ", but " + config.model.path + " has " + std::to_string(spec.max_position) +
                           " positions for prompt and answer together; lower it"));
    }
  }
  std::map<const char*, std::string> further;
  if (const RlJob* rl = config.rl()) {
    further = {{"algorithm.kl.reference", rl->algorithm.kl.reference},
               {"algorithm.critic.path", rl->algorithm.critic.path},
               {"algorithm.teacher", rl->algorithm.teacher}};
  } else if (const auto* dpo = std::get_if<DpoJob>(&config.job)) {
    further = {{"preference.reference", dpo->preference.reference}};
  } else if (const auto* distill = std::get_if<DistillJob>(&config.job)) {
    further = {{"distill.teacher", distill->distill.teacher}};
  }
  for (const auto& [key, dir] : further) {
    if (!dir.empty()) folder(key, dir);
  }
  for (size_t i = 0; i < config.reward.functions.size(); ++i) {
    const RewardFunction& f = config.reward.functions[i];
    const std::string item = "reward.functions[" + std::to_string(i) + "].";
    const Status status = f.by_model() ? CheckModelReward(f) : OkStatus();
    if (!status.ok())
      look((item + status.message().substr(0, status.message().find(':'))).c_str(),
           Status(status.code(), item + status.message()));
  }
  if (config.model.init && !config.model.init->warm_start.empty()) {
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig warm, WarmStartOf(config));
    look("", CheckInputs(warm));
  }
  if (config.model.is_policy()) {
    look("", policy::SpecOfJob(config).status());
    return wrong;
  }
  const bool game = config.environment() != nullptr;
  bool files_there = true;
  for (const auto& [key, path] :
       {std::pair("data.path", config.data.path), {"data.eval_path", config.data.eval_path}}) {
    if (!game && !path.empty() && !look(key, tasks::CheckDataFile(path).At(key))) files_there = false;
  }
  if (!files_there) return wrong;
  const char* data = game ? "environment.name" : "data.path";
  JobConfig in_order = config;  // so that the first bad row is the first in the file
  in_order.data.shuffle = false;
  if (!model_there) {  // the shape of rows is known all the same
    if (!game) look(data, tasks::DataSource::Create(in_order.data, in_order.seed, in_order.kind()).status());
    return wrong;
  }
  TP_ASSIGN_OR_RETURN(const TextFolder text, TextFolder::Of(config.model));
  if (!look("model.path", text::Tokenizer::Load(text.path()).status())) return wrong;
  const auto rows = RowSource::Create(in_order, text.path());
  if (look(data, rows.status()) && look(data, (*rows)->CheckCharacters()) &&
      look(data, (*rows)->CheckRows())) {
    const auto without = CountRowsWithoutAnswer(in_order, **rows);
    look(data, without.ok() ? CheckAnswers(*without) : without.status());
  }
  return wrong;
}

StatusOr<JobOutcome> RunJob(const JobRequest& request) {
  Job job(request);
  return job.Run();
}

}  // namespace tidepool::workers
