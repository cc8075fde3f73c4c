#include "core/storage/checkpoint_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "core/base/disk_thread.h"
#include "core/base/json_fields.h"
#include "core/base/thread_annotations.h"
#include "core/storage/s3_module.h"

namespace tidepool::storage {
namespace {

constexpr int64_t kStorePieceBytes = int64_t{4} << 20;
// One stream of a store is slow, and each holds a part in memory.
constexpr size_t kStreams = 4;

// `of` for each number below `count`, several at a time. The first error stops the others.
Status InStreams(size_t count, const CheckpointStore::GoOn& go_on,
                 const std::function<Status(size_t, const CheckpointStore::GoOn&)>& of) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  Mutex mu;
  Status first;
  const CheckpointStore::GoOn all_go_on = [&] { return !failed && (!go_on || go_on()); };
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      Status done = all_go_on() ? of(i, all_go_on) : Status(StatusCode::kCancelled, "was called off");
      if (done.ok()) continue;
      const MutexLock lock(mu);
      if (!failed.exchange(true)) first = std::move(done);
      return;
    }
  };
  {
    std::vector<std::jthread> streams;  // waits: each for the requests of a store, which have deadlines
    for (size_t i = 1; i < std::min(kStreams, count); ++i) streams.emplace_back(work);
    work();
  }
  return first;
}

class DirectoryStore : public CheckpointStore {
 public:
  DirectoryStore(FileSystem& fs, StorePlace place) : fs_(fs), place_(std::move(place)), dir_(place_.Path()) {}

  Status Put(const std::string& path, const std::string& key, const GoOn& go_on) override {
    return ErrorOf(place_, Move(path, JoinPath(dir_, key), go_on));
  }
  Status Read(const std::string& key, const Take& take) override {
    Status read = ReadFrom(JoinPath(dir_, key), take);
    if (read.code() == StatusCode::kNotFound)
      if (Status there = IsThere(); !there.ok()) read = std::move(there);
    return ErrorOf(place_, read);
  }
  StatusOr<std::vector<Object>> List() override {
    auto listed = ListFolder();
    if (!listed.ok()) return ErrorOf(place_, listed.status());
    return listed;
  }
  Status RemoveAll() override {
    if (const Status there = IsThere(); !there.ok()) return ErrorOf(place_, there);
    if (!fs_.Exists(dir_)) return OkStatus();
    if (const Status removed = fs_.RemoveTree(dir_); !removed.ok()) return ErrorOf(place_, removed);
    const std::string parent = ParentPath(dir_);
    if (const Status synced = fs_.SyncDir(parent); !synced.ok()) return ErrorOf(place_, synced);
    if (parent != place_.store) (void)fs_.RemoveDirectory(parent);  // if it is empty now
    return OkStatus();
  }
  [[nodiscard]] std::string Folder() const override { return dir_; }

 private:
  // Else it would be made, where it ought to have been mounted.
  Status IsThere() {
    TP_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(place_.store));
    if (info.exists && info.is_directory) return OkStatus();
    return FailedPrecondition("is no directory here; mount it, or make it");
  }
  Status Move(const std::string& path, const std::string& target, const GoOn& go_on) {
    TP_RETURN_IF_ERROR(IsThere());
    TP_RETURN_IF_ERROR(fs_.MakeDirectories(ParentPath(target)));
    if (fs_.Rename(path, target).ok()) {
      TP_RETURN_IF_ERROR(fs_.SyncFile(target));
      return fs_.SyncDir(ParentPath(target));
    }
    const std::string part = target + ".tmp";  // another disk
    Status copied = Copy(path, part, go_on);
    if (copied.ok()) copied = fs_.Rename(part, target);
    if (!copied.ok()) {
      (void)fs_.RemoveTree(part);  // the error is the one to tell
      return copied;
    }
    TP_RETURN_IF_ERROR(fs_.SyncDir(ParentPath(target)));
    return fs_.RemoveFile(path);
  }
  Status Copy(const std::string& from, const std::string& to, const GoOn& go_on) {
    TP_RETURN_IF_ERROR(fs_.RemoveTree(to));
    TP_ASSIGN_OR_RETURN(const auto out, fs_.CreateNew(to));
    TP_RETURN_IF_ERROR(ReadFrom(from, [&](std::string_view piece) {
      return go_on() ? out->Append(piece) : Status(StatusCode::kCancelled, to + ": was called off");
    }));
    return out->Sync();
  }
  Status ReadFrom(const std::string& path, const Take& take) {
    TP_ASSIGN_OR_RETURN(const auto in, fs_.OpenForRead(path));
    for (int64_t at = 0;;) {
      TP_ASSIGN_OR_RETURN(const std::string piece, in->ReadAt(at, kStorePieceBytes));
      if (piece.empty()) return OkStatus();
      TP_RETURN_IF_ERROR(take(piece));
      at += static_cast<int64_t>(piece.size());
    }
  }
  StatusOr<std::vector<Object>> ListFolder() {
    TP_RETURN_IF_ERROR(IsThere());
    std::vector<Object> objects;
    if (!fs_.Exists(dir_)) return objects;
    TP_ASSIGN_OR_RETURN(const auto paths, fs_.ListTree(dir_));
    for (const std::string& path : paths) {
      Object object{.key = path, .bytes = 0};
      TP_ASSIGN_OR_RETURN(object.bytes, fs_.Size(JoinPath(dir_, path)));
      objects.push_back(std::move(object));
    }
    return objects;
  }

  FileSystem& fs_;
  const StorePlace place_;
  const std::string dir_;
};

}  // namespace

std::unique_ptr<CheckpointStore> MakeDirectoryStore(FileSystem& fs, const StorePlace& place) {
  return std::make_unique<DirectoryStore>(fs, place);
}

StatusOr<std::unique_ptr<CheckpointStore>> OpenStore(FileSystem& fs, const StorePlace& place) {
  if (!place.is_s3()) return MakeDirectoryStore(fs, place);
  auto opened = OpenS3Store(place);
  if (!opened.ok()) return ErrorOf(place, opened.status());
  return opened;
}

namespace {

Status TryNow(FileSystem& fs, const StorePlace& tried, const std::string& folder) {
  TP_ASSIGN_OR_RETURN(const auto store, OpenStore(fs, tried));
  const std::string file = JoinPath(folder, "written_to_try.tmp");
  TP_RETURN_IF_ERROR(fs.WriteFile(file, "tidepool\n"));
  Status done = store->Put(file, "object", [] { return true; });
  (void)fs.RemoveTree(file);  // its own folder is tried by whoever writes there
  if (done.ok()) done = store->List().status();
  if (done.ok()) done = store->RemoveAll();
  return done;
}

}  // namespace

Status TryStore(const std::shared_ptr<FileSystem>& fs, const StorePlace& place, const std::string& folder) {
  const StorePlace tried = place.Below("written_to_try");
  auto answer = std::make_shared<std::promise<Status>>();
  auto answered = answer->get_future();
  DiskThread thread;
  thread.Do("try of the store", [fs, tried, folder, answer](const DiskThread::Say&) {
    answer->set_value(TryNow(*fs, tried, folder));
  });
  const double patience_s = 4 * place.timeout_s;
  if (answered.wait_for(std::chrono::duration<double>(patience_s)) == std::future_status::ready)
    return answered.get();
  return ErrorOf(place, Unavailable("does not answer: a small file that was to be written there, to try it, "
                                    "was not after " +
                                    std::to_string(static_cast<int64_t>(patience_s)) +
                                    " s; is what is mounted there still reachable?"));
}

StatusOr<std::optional<StorePlace>> ReadStorePlace(FileSystem& fs, const std::string& dir) {
  const std::string path = JoinPath(dir, kStorePlaceName);
  TP_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));  // one that cannot be read is not missing
  if (!info.exists) return std::optional<StorePlace>();
  TP_ASSIGN_OR_RETURN(const std::string text, fs.ReadFile(path, 1 << 16));
  StorePlace place;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!FromJson(json, place) || place.store.empty() || place.below.empty()) {
    return DataLoss(path + ": does not say where the files of this checkpoint are; " +
                    "it has to have the keys store, below, endpoint, region and timeout_s");
  }
  // Files below it are removed with the checkpoint, whoever wrote this file.
  const std::string_view below = place.below;
  bool plain = !below.starts_with('/') && !below.ends_with('/');
  for (size_t at = 0; plain && at <= below.size();) {
    const size_t end = std::min(below.find('/', at), below.size());
    const std::string_view part = below.substr(at, end - at);
    plain = !part.empty() && part != "." && part != "..";
    at = end + 1;
  }
  if (!plain)
    return DataLoss(path + ": below is '" + place.below +
                    "', expected the path of a folder of this run in the store, as the run wrote it");
  return std::optional(std::move(place));
}

StorePlace NewPlace(const StorePlace& store, const std::string& run_id) {
  std::random_device device;
  const uint64_t random = (uint64_t{device()} << 32) + device();
  return store.Below(run_id + "-" + HexWord(random).substr(2, 8));
}

Status WriteStorePlace(FileSystem& fs, const std::string& dir, const StorePlace& place) {
  return fs.WriteFile(JoinPath(dir, kStorePlaceName), JsonOf<nlohmann::ordered_json>(place).dump(2) + "\n");
}

namespace {

constexpr char kStagingBegin[] = "tidepool-";

// "tidepool-" RUN_ID "-" 8 digits "-" ...: the id of another run may begin with this one and go on.
bool IsStagingOf(const std::string& run_id, std::string_view name) {
  const std::string begin = kStagingBegin + run_id + "-";
  if (!name.starts_with(begin)) return false;
  name.remove_prefix(begin.size());
  return name.size() > 8 && name[8] == '-' && name.find_first_not_of("0123456789abcdef") == 8;
}

}  // namespace

Status RemoveFolder(FileSystem& fs, const std::string& dir) {
  TP_ASSIGN_OR_RETURN(const auto place, ReadStorePlace(fs, dir));
  if (place) {
    TP_ASSIGN_OR_RETURN(const auto store, OpenStore(fs, *place));
    TP_RETURN_IF_ERROR(store->RemoveAll());
  }
  return fs.RemoveTree(dir);
}

StatusOr<Staging> MakeStaging(FileSystem& fs, const std::string& folder, const std::string& dir,
                              const StorePlace& place) {
  Staging staging;
  if (folder.empty()) {
    staging.dir = JoinPath(dir, "staging");
    TP_RETURN_IF_ERROR(fs.RemoveTree(staging.dir));
    TP_RETURN_IF_ERROR(fs.MakeDirectory(staging.dir));
    return staging;
  }
  const auto of_host = [](const Status& error) {
    return error.At("host " + HostName() + ", checkpoint.staging_dir");
  };
  const std::string of_life = ParentPath(place.below);  // NewPlace
  const std::string run_id = of_life.substr(0, of_life.rfind('-'));
  const auto names = fs.List(folder);
  if (!names.ok()) return of_host(names.status());
  for (const std::string& name : *names) {
    if (!IsStagingOf(run_id, name)) continue;
    const std::string left = JoinPath(folder, name);
    const auto lock = fs.Lock(JoinPath(left, kStagingLock), HostName());
    // It is at work, another one has removed it, or it is not ours to remove.
    if (!lock.ok()) continue;
    TP_RETURN_IF_ERROR(fs.RemoveTree(left));
  }
  // Nobody else has this name: a copy of the run's folder may be at the same checkpoint.
  staging.dir = NewPlace({.store = folder}, kStagingBegin + run_id).Path() + "-" + BaseName(place.below);
  // Another one that looks for what was left finds it under its name with the lock taken.
  const std::string begun = JoinPath(folder, "." + BaseName(staging.dir));
  if (const Status made = fs.MakeDirectory(begun); !made.ok()) return of_host(made);
  auto lock = fs.Lock(JoinPath(begun, kStagingLock), HostName());
  if (!lock.ok()) return of_host(lock.status());
  staging.lock = *std::move(lock);
  if (const Status named = fs.Rename(begun, staging.dir); !named.ok()) return of_host(named);
  return staging;
}

StatusOr<std::vector<ManifestFile>> PutFiles(CheckpointStore& store, FileSystem& fs, const std::string& dir,
                                             const std::vector<std::string>& files,
                                             const CheckpointStore::GoOn& go_on) {
  std::vector<ManifestFile> put(files.size());
  TP_RETURN_IF_ERROR(
      InStreams(files.size(), go_on, [&](size_t i, const CheckpointStore::GoOn& all_go_on) -> Status {
        const std::string path = JoinPath(dir, files[i]);
        put[i].path = files[i];
        TP_ASSIGN_OR_RETURN(put[i].bytes, fs.Size(path));
        TP_ASSIGN_OR_RETURN(put[i].digest, DigestFile(fs, path, all_go_on));
        TP_RETURN_IF_ERROR(store.Put(path, files[i], all_go_on));
        TP_RETURN_IF_ERROR(VerifyObject(store, put[i], all_go_on));
        return fs.RemoveTree(path);
      }));
  return put;
}

Status CheckSizes(CheckpointStore& store, const std::vector<ManifestFile>& files) {
  TP_ASSIGN_OR_RETURN(const auto there, store.List());
  for (const ManifestFile& file : files) {
    const auto found = std::ranges::find(there, file.path, &CheckpointStore::Object::key);
    if (found == there.end()) return NotFound(file.path + ": is not in the store");
    if (found->bytes != file.bytes) {
      return DataLoss(file.path + ": has " + std::to_string(found->bytes) + " bytes in the store, not " +
                      std::to_string(file.bytes));
    }
  }
  return OkStatus();
}

Status VerifyObject(CheckpointStore& store, const ManifestFile& file, const CheckpointStore::GoOn& go_on) {
  FileDigest digest;
  int64_t bytes = 0;
  TP_RETURN_IF_ERROR(store.Read(file.path, [&](std::string_view piece) {
    digest.Update(piece);
    bytes += static_cast<int64_t>(piece.size());
    return !go_on || go_on() ? OkStatus() : Status(StatusCode::kCancelled, file.path + ": was called off");
  }));
  if (bytes == file.bytes && digest.Finish() == file.digest) return OkStatus();
  return DataLoss(file.path + ": " + std::to_string(bytes) + " bytes of digest " + HexWord(digest.Finish()) +
                  " in the store, not " + std::to_string(file.bytes) + " of " + HexWord(file.digest));
}

StatusOr<std::string> FetchFiles(CheckpointStore& store, FileSystem& fs,
                                 const std::vector<ManifestFile>& files, const std::string& to,
                                 const CheckpointStore::GoOn& go_on) {
  const std::string folder = store.Folder();
  TP_RETURN_IF_ERROR(
      InStreams(files.size(), go_on, [&](size_t i, const CheckpointStore::GoOn& all_go_on) -> Status {
        if (!folder.empty()) return VerifyObject(store, files[i], all_go_on);
        const std::string path = JoinPath(to, files[i].path);
        TP_RETURN_IF_ERROR(fs.MakeDirectories(ParentPath(path)));
        TP_ASSIGN_OR_RETURN(const auto out, fs.CreateNew(path));
        FileDigest digest;
        TP_RETURN_IF_ERROR(store.Read(files[i].path, [&](std::string_view piece) {
          digest.Update(piece);
          return all_go_on() ? out->Append(piece) : Status(StatusCode::kCancelled, "was called off");
        }));
        if (out->size() == files[i].bytes && digest.Finish() == files[i].digest) return OkStatus();
        return DataLoss(files[i].path + ": " + std::to_string(out->size()) + " bytes of digest " +
                        HexWord(digest.Finish()) + " in the store, the manifest says " +
                        std::to_string(files[i].bytes) + " of " + HexWord(files[i].digest));
      }));
  return folder.empty() ? to : folder;
}

}  // namespace tidepool::storage
