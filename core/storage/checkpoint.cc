#include "core/storage/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/base/hash.h"
#include "core/base/json_fields.h"
#include "core/storage/disk_use.h"
#include "core/storage/publish_folder.h"
#include "core/storage/share_files.h"

namespace tidepool::storage {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;

bool ParseHexWord(const std::string& text, uint64_t* value) {
  if (text.size() != 18 || !text.starts_with("0x")) return false;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data() + 2, end, *value, 16);
  return result.ec == std::errc{} && result.ptr == end;
}

// Every part a plain name: a manifest must not reach outside its folder.
bool IsPlainRelative(std::string_view path) {
  if (path.empty() || path.size() > 4096 || path.find('\0') != std::string_view::npos) return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

Status SyncFolders(FileSystem& fs, const std::string& dir, const std::vector<std::string>& files) {
  std::set<std::string, std::greater<>> folders = {dir};
  for (const std::string& file : files) {
    for (std::string at = ParentPath(file); at != "."; at = ParentPath(at)) folders.insert(JoinPath(dir, at));
  }
  for (const std::string& folder : folders) TP_RETURN_IF_ERROR(fs.SyncDir(folder));  // deepest first
  return OkStatus();
}

// Gives `tmp`, whose contents are durable, the name `dir`. What had the name before is left as `dir`.old.
Status TakeName(FileSystem& fs, const std::string& tmp, const std::string& dir) {
  if (fs.Exists(dir)) {
    TP_RETURN_IF_ERROR(fs.RemoveTree(dir + ".old"));
    TP_RETURN_IF_ERROR(fs.Rename(dir, dir + ".old"));
  }
  TP_RETURN_IF_ERROR(fs.Rename(tmp, dir));
  return fs.SyncDir(ParentPath(dir));
}

// "step_20" + suffix -> 20; -1: another name.
int64_t StepOfName(std::string_view name, std::string_view suffix) {
  if (!name.starts_with("step_") || !name.ends_with(suffix)) return -1;
  name.remove_prefix(5);
  name.remove_suffix(suffix.size());
  int64_t step = -1;
  const auto result = std::from_chars(name.data(), name.data() + name.size(), step);
  return result.ec == std::errc{} && result.ptr == name.data() + name.size() ? step : -1;
}

}  // namespace

std::string ManifestToJson(const Manifest& manifest) {
  return JsonOf<Json>(manifest).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

StatusOr<Manifest> ParseManifest(std::string_view text, const std::string& path) {
  const auto bad = [&](const std::string& what) {
    return DataLoss(path + ": " + what + "; this folder is no whole checkpoint");
  };
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return bad("it is no JSON object");
  Manifest manifest;
  try {  // the library throws on a missing key or a wrong type; it stops here
    manifest.schema = json.at("schema").get<int>();
    if (manifest.schema != kCheckpointSchema) {
      return FailedPrecondition(path + ": checkpoint schema " + std::to_string(manifest.schema) +
                                ", this program reads schema " + std::to_string(kCheckpointSchema) +
                                "; use the version of tidepool that wrote it");
    }
    manifest.run_id = json.at("run_id").get<std::string>();
    manifest.ckpt = json.at("ckpt").get<int64_t>();
    manifest.step.value = json.at("step").get<int64_t>();
    manifest.cut.value = json.at("lsn").get<int64_t>();
    manifest.version.lineage = json.at("version").at("lineage").get<int32_t>();
    manifest.version.number = json.at("version").at("number").get<int64_t>();
    manifest.config_digest = json.at("config_digest").get<std::string>();
    manifest.instruction_set = json.at("instruction_set").get<std::string>();
    manifest.notes = json.at("notes").get<std::map<std::string, std::string>>();
    if (!ParseHexWord(json.at("weights_digest").get<std::string>(), &manifest.weights_digest)) {
      return bad("weights_digest is no 16-digit hexadecimal number");
    }
    for (const Json& item : json.at("files")) {
      ManifestFile file{
          .path = item.at("path").get<std::string>(), .bytes = item.at("bytes").get<int64_t>(), .digest = 0};
      if (!IsPlainRelative(file.path))
        return bad("it names '" + file.path + "', which is no plain path below the folder");
      if (file.bytes < 0 || !ParseHexWord(item.at("digest").get<std::string>(), &file.digest)) {
        return bad("size or digest of '" + file.path + "' is no number");
      }
      manifest.files.push_back(std::move(file));
    }
  } catch (const nlohmann::json::exception& error) {
    return bad(error.what());
  }
  return manifest;
}

std::string CheckpointName(StepNumber step) { return "step_" + std::to_string(step.value); }

CheckpointWriter::CheckpointWriter(FileSystem& fs, std::string checkpoints, const CheckpointTry& which)
    : fs_(fs),
      checkpoints_(std::move(checkpoints)),
      step_(which.step),
      tmp_(JoinPath(checkpoints_, CheckpointName(step_) + "." + std::to_string(which.ctl_epoch) + "-" +
                                      std::to_string(which.ckpt) + ".tmp")) {}

StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Begin(FileSystem& fs,
                                                                    const std::string& checkpoints,
                                                                    const CheckpointTry& which,
                                                                    const StorePlace& store) {
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(fs, checkpoints, which));
  TP_RETURN_IF_ERROR(fs.MakeDirectories(checkpoints));
  TP_RETURN_IF_ERROR(fs.MakeDirectory(writer->tmp_));
  if (!store.exists()) return writer;
  const std::string name = BaseName(writer->tmp_);
  writer->store_ = store.Below(name.substr(0, name.size() - std::string_view(".tmp").size()));
  // Durable before anything is there: what a crash leaves in the store is found by it.
  TP_RETURN_IF_ERROR(WriteStorePlace(fs, writer->tmp_, writer->store_));
  TP_RETURN_IF_ERROR(fs.SyncDir(checkpoints));
  return writer;
}

StatusOr<uint64_t> CheckpointWriter::TryCommit(Manifest& manifest, const std::vector<std::string>& written) {
  TP_ASSIGN_OR_RETURN(const auto paths, fs_.ListTree(tmp_));
  std::vector<std::string> differ;
  std::ranges::set_symmetric_difference(paths, written, std::back_inserter(differ));
  if (!differ.empty()) {
    return DataLoss(JoinPath(tmp_, differ.front()) +
                    (std::ranges::binary_search(paths, differ.front())
                         ? ": its writer did not tell of it"
                         : ": its writer told of it, but it is not there") +
                    "; the checkpoint is not committed");
  }
  // What has not changed since the newest checkpoint (tokenizer, configuration, parts that are not trained)
  // is not there twice.
  TP_ASSIGN_OR_RETURN(const auto steps, ListCheckpoints(fs_, checkpoints_));
  const auto newest = std::find_if(steps.rbegin(), steps.rend(), [&](StepNumber s) { return s != step_; });
  if (newest != steps.rend())
    (void)ShareEqualFiles(fs_, JoinPath(checkpoints_, CheckpointName(*newest)), tmp_, paths);
  manifest.files.clear();
  for (const std::string& path : paths) {
    const std::string full = JoinPath(tmp_, path);
    TP_RETURN_IF_ERROR(fs_.SyncFile(full));
    ManifestFile file{.path = path, .bytes = 0, .digest = 0};
    TP_ASSIGN_OR_RETURN(file.bytes, fs_.Size(full));
    TP_ASSIGN_OR_RETURN(file.digest, DigestFile(fs_, full));
    manifest.files.push_back(std::move(file));
  }
  return Publish(manifest, paths);
}

StatusOr<uint64_t> CheckpointWriter::TryCommitStored(Manifest& manifest) {
  if (manifest.files.empty())
    return DataLoss(tmp_ + ": the trainer has put no file of this checkpoint into the store");
  TP_ASSIGN_OR_RETURN(const auto store, OpenStore(fs_, store_));
  TP_RETURN_IF_ERROR(CheckSizes(*store, manifest.files));
  return Publish(manifest, {});
}

// manifest.json, and the name step_N; then all is read back. `paths`: of the files in the folder.
StatusOr<uint64_t> CheckpointWriter::Publish(const Manifest& manifest,
                                             const std::vector<std::string>& paths) {
  const std::string json = ManifestToJson(manifest);
  {
    TP_ASSIGN_OR_RETURN(const auto file, fs_.CreateNew(JoinPath(tmp_, kManifestName)));
    TP_RETURN_IF_ERROR(file->Append(json));
    TP_RETURN_IF_ERROR(file->Sync());
  }
  TP_RETURN_IF_ERROR(SyncFolders(fs_, tmp_, paths));

  const std::string final_dir = JoinPath(checkpoints_, CheckpointName(step_));
  const std::string old_dir = final_dir + ".old";
  TP_RETURN_IF_ERROR(TakeName(fs_, tmp_, final_dir));
  const uint64_t digest = Hash64(json);
  const Status verified = store_.exists() ? ReadManifest(fs_, final_dir, digest).status()
                                          : VerifyCheckpoint(fs_, final_dir, digest).status();
  if (!verified.ok()) {
    // What cannot be read back does not keep the name; what had it before gets it again.
    TP_RETURN_IF_ERROR(fs_.Rename(final_dir, tmp_));
    if (fs_.Exists(old_dir)) TP_RETURN_IF_ERROR(fs_.Rename(old_dir, final_dir));
    return verified;
  }
  if (fs_.Exists(old_dir)) {
    TP_RETURN_IF_ERROR(RemoveFolder(fs_, old_dir));
    TP_RETURN_IF_ERROR(fs_.SyncDir(checkpoints_));
  }
  return digest;
}

Status PublishFolder(FileSystem& fs, const std::string& tmp, const std::string& dir) {
  TP_ASSIGN_OR_RETURN(const auto paths, fs.ListTree(tmp));
  if (paths.empty()) return DataLoss(tmp + ": holds no file; nothing becomes " + BaseName(dir));
  for (const std::string& path : paths) TP_RETURN_IF_ERROR(fs.SyncFile(JoinPath(tmp, path)));
  TP_RETURN_IF_ERROR(SyncFolders(fs, tmp, paths));
  TP_RETURN_IF_ERROR(TakeName(fs, tmp, dir));
  return fs.RemoveTree(dir + ".old");
}

Status FinishPublish(FileSystem& fs, const std::string& dir) {
  const std::string aside = dir + ".old";
  if (!fs.Exists(aside)) return OkStatus();
  TP_RETURN_IF_ERROR(fs.Exists(dir) ? fs.RemoveTree(aside) : fs.Rename(aside, dir));
  return fs.SyncDir(ParentPath(dir));
}

StatusOr<uint64_t> CheckpointWriter::Commit(Manifest manifest, std::vector<std::string> written) {
  manifest.step = step_;
  std::ranges::sort(written);
  auto digest = TryCommit(manifest, written);
  // Best effort, so that a full disk is not made fuller; the first error is the one to tell.
  if (!digest.ok()) (void)fs_.RemoveTree(tmp_);
  return digest;
}

StatusOr<uint64_t> CheckpointWriter::CommitStored(Manifest manifest, std::vector<ManifestFile> stored) {
  manifest.step = step_;
  std::ranges::sort(stored, {}, &ManifestFile::path);
  manifest.files = std::move(stored);
  auto digest = TryCommitStored(manifest);
  if (!digest.ok()) (void)RemoveFolder(fs_, tmp_);  // as above
  return digest;
}

StatusOr<Manifest> ReadManifest(FileSystem& fs, const std::string& dir,
                                std::optional<uint64_t> manifest_digest) {
  const std::string path = JoinPath(dir, kManifestName);
  TP_ASSIGN_OR_RETURN(const std::string json, fs.ReadFile(path, kMaxManifestBytes));
  if (manifest_digest.has_value() && Hash64(json) != *manifest_digest) {
    return DataLoss(path + ": its digest is " + HexWord(Hash64(json)) + ", the journal committed " +
                    HexWord(*manifest_digest) + "; it was changed or is of another run");
  }
  return ParseManifest(json, path);
}

StatusOr<Manifest> VerifyCheckpoint(FileSystem& fs, const std::string& dir,
                                    std::optional<uint64_t> manifest_digest) {
  TP_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(fs, dir, manifest_digest));
  TP_ASSIGN_OR_RETURN(const auto place, ReadStorePlace(fs, dir));
  if (place) {
    TP_ASSIGN_OR_RETURN(const auto store, OpenStore(fs, *place));
    for (const ManifestFile& file : manifest.files) TP_RETURN_IF_ERROR(VerifyObject(*store, file).At(dir));
    return manifest;
  }
  const auto base = manifest.notes.find(kBaseModel);
  for (const ManifestFile& file : manifest.files) {
    const std::string path = JoinPath(dir, file.path);
    const auto bad = [&](const std::string& what) {
      const bool of_base = base != manifest.notes.end() && file.path.ends_with(".safetensors");
      return DataLoss(path + ": " + what +
                      (of_base ? "; it is the file of the base model " + base->second +
                                     " (a hard link), which was changed in place: put back what was there"
                               : ""));
    };
    TP_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
    if (!info.exists) return bad("the manifest lists it, but it is not there");
    if (info.bytes != file.bytes)
      return bad(std::to_string(info.bytes) + " bytes, the manifest says " + std::to_string(file.bytes));
    TP_ASSIGN_OR_RETURN(const uint64_t digest, DigestFile(fs, path));
    if (digest != file.digest)
      return bad("digest " + HexWord(digest) + ", the manifest says " + HexWord(file.digest));
  }
  return manifest;
}

StatusOr<Manifest> FindCheckpoint(FileSystem& fs, const std::string& dir,
                                  std::optional<uint64_t> manifest_digest) {
  TP_ASSIGN_OR_RETURN(const auto place, ReadStorePlace(fs, dir));
  if (!place) return VerifyCheckpoint(fs, dir, manifest_digest);
  TP_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(fs, dir, manifest_digest));
  TP_ASSIGN_OR_RETURN(const auto store, OpenStore(fs, *place));
  TP_RETURN_IF_ERROR(CheckSizes(*store, manifest.files).At(dir));
  return manifest;
}

StatusOr<std::string> FolderWithFiles(FileSystem& fs, const std::string& dir, const std::string& prefix,
                                      const std::string& to, const CheckpointStore::GoOn& go_on) {
  TP_ASSIGN_OR_RETURN(const auto place, ReadStorePlace(fs, dir));
  if (!place) return dir;
  TP_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(fs, dir, std::nullopt));
  std::erase_if(manifest.files, [&](const ManifestFile& file) { return !file.path.starts_with(prefix); });
  TP_ASSIGN_OR_RETURN(const auto store, OpenStore(fs, *place));
  auto folder = FetchFiles(*store, fs, manifest.files, to, go_on);
  if (!folder.ok()) return folder.status().At(dir);
  return folder;
}

int64_t CheckpointBytes(FileSystem& fs, const std::string& dir) {
  if (!fs.Exists(JoinPath(dir, kStorePlaceName))) return DiskBytes(dir);
  const auto manifest = ReadManifest(fs, dir, std::nullopt);
  int64_t bytes = 0;
  if (manifest.ok())
    for (const ManifestFile& file : manifest->files) bytes += file.bytes;
  return bytes;
}

StatusOr<std::vector<StepNumber>> ListCheckpoints(FileSystem& fs, const std::string& checkpoints) {
  std::vector<StepNumber> steps;
  if (!fs.Exists(checkpoints)) return steps;
  TP_ASSIGN_OR_RETURN(const auto names, fs.List(checkpoints));
  for (const std::string& name : names) {
    const int64_t step = StepOfName(name, "");
    if (step >= 0 && fs.Exists(JoinPath(checkpoints, name + "/" + kManifestName)))
      steps.push_back(StepNumber{step});
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

namespace {

// Another folder of that step may be on its way out, too.
std::string NameToGo(FileSystem& fs, const std::string& checkpoints, int64_t step) {
  const std::string going = JoinPath(checkpoints, CheckpointName(StepNumber{step})) + ".removed";
  std::string path = going + ".tmp";
  for (int64_t n = 1; fs.Exists(path); ++n) path = going + "-" + std::to_string(n) + ".tmp";
  return path;
}

Status AddAside(FileSystem& fs, const std::string& dir, SetAside& aside) {
  TP_ASSIGN_OR_RETURN(const FileInfo stored, fs.Stat(JoinPath(dir, kStorePlaceName)));
  (stored.exists ? aside.stored : aside.local).push_back(dir);
  return OkStatus();
}

}  // namespace

StatusOr<SetAside> SetCheckpointAside(FileSystem& fs, const std::string& checkpoints, StepNumber step) {
  SetAside aside;
  const std::string dir = JoinPath(checkpoints, CheckpointName(step));
  if (!fs.Exists(dir)) return aside;
  const std::string going = NameToGo(fs, checkpoints, step.value);
  TP_RETURN_IF_ERROR(fs.Rename(dir, going));
  TP_RETURN_IF_ERROR(fs.SyncDir(checkpoints));
  TP_RETURN_IF_ERROR(AddAside(fs, going, aside));
  return aside;
}

StatusOr<SetAside> SetLeftoversAside(FileSystem& fs, const std::string& checkpoints) {
  SetAside aside;
  if (!fs.Exists(checkpoints)) return aside;
  TP_ASSIGN_OR_RETURN(const auto names, fs.List(checkpoints));
  bool renamed = false;
  for (const std::string& name : names) {
    std::string path = JoinPath(checkpoints, name);
    const int64_t old_step = StepOfName(name, ".old");
    if (old_step >= 0) {
      const std::string place = JoinPath(checkpoints, CheckpointName(StepNumber{old_step}));
      const bool back = !fs.Exists(place);
      const std::string to = back ? place : NameToGo(fs, checkpoints, old_step);
      TP_RETURN_IF_ERROR(fs.Rename(path, to));
      renamed = true;
      if (back) {
        ++aside.came_back;
        continue;
      }
      path = to;
    } else if (!name.starts_with("step_") || !name.ends_with(".tmp")) {
      continue;
    }
    TP_RETURN_IF_ERROR(AddAside(fs, path, aside));
  }
  if (renamed) TP_RETURN_IF_ERROR(fs.SyncDir(checkpoints));
  return aside;
}

std::string Stays(const std::string& dir, const std::string& why) {
  return dir + " and its files in the store stay, for the next start: " + why;
}

Status RemoveCheckpoint(FileSystem& fs, const std::string& checkpoints, StepNumber step) {
  TP_ASSIGN_OR_RETURN(const SetAside aside, SetCheckpointAside(fs, checkpoints, step));
  for (const auto* dirs : {&aside.local, &aside.stored})
    for (const std::string& dir : *dirs) TP_RETURN_IF_ERROR(RemoveFolder(fs, dir));
  return fs.Exists(checkpoints) ? fs.SyncDir(checkpoints) : OkStatus();
}

StatusOr<Leftovers> RemoveLeftovers(FileSystem& fs, const std::string& checkpoints) {
  TP_ASSIGN_OR_RETURN(const SetAside aside, SetLeftoversAside(fs, checkpoints));
  Leftovers leftovers{.handled = aside.came_back, .left = {}};
  for (const std::string& dir : aside.local) {
    TP_RETURN_IF_ERROR(RemoveFolder(fs, dir));
    ++leftovers.handled;
  }
  for (const std::string& dir : aside.stored) {
    const Status removed = RemoveFolder(fs, dir);
    if (removed.ok()) {
      ++leftovers.handled;
    } else {
      leftovers.left.push_back(Stays(dir, removed.message()));
    }
  }
  if (leftovers.handled > 0) TP_RETURN_IF_ERROR(fs.SyncDir(checkpoints));
  return leftovers;
}

}  // namespace tidepool::storage
