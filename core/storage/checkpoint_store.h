#pragma once
// Where the files of checkpoints are if not in the run's folder (checkpoint.store): a shared directory, or a
// bucket of S3. Whoever trains puts them there, and of their bytes the controller reads the best model alone.
//
// In the run's folder stays checkpoints/step_N/ with manifest.json, what CK_COMMIT names, and store.json, the
// place of the files: a folder of the store that no other try has. The place is noted before the first byte
// goes there, so what is left over is found by it (RemoveFolder), and a checkpoint stays readable where the
// config names another store meanwhile.
//
// Errors name the host, the store, the object and what to do:
//   kNotFound            no such object
//   kPermissionDenied    read-only, no credentials, or those there may not do it
//   kResourceExhausted   full
//   kUnavailable         it does not answer: after tries for StorePlace::timeout_s
//   kDataLoss            what was read is not what was written
//   kFailedPrecondition  no such directory or bucket; this program has no S3 (libtidepool_s3.so)
// A shared directory has no deadline, but for TryStore: a system call that hangs is left to who waits for
// this thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fields.h"
#include "core/base/file_system.h"
#include "core/base/host_name.h"
#include "core/base/status.h"
#include "core/storage/manifest_file.h"

namespace tidepool::storage {

inline constexpr const char* kStorePlaceName = "store.json";

struct StorePlace {
  std::string store;     // "/shared/checkpoints", "s3://bucket/prefix"; empty: none
  std::string below;     // folder in it: "run-1a2b/step_20.1-3"; keys are below that
  std::string endpoint;  // of S3: "http://host:9000"; empty: Amazon's
  std::string region;    // empty: as the environment says
  double timeout_s = 60;
  [[nodiscard]] bool exists() const { return !store.empty(); }
  [[nodiscard]] bool is_s3() const { return store.starts_with("s3://"); }
  [[nodiscard]] std::string Path() const { return JoinPath(store, below); }
  [[nodiscard]] StorePlace Below(std::string_view folder) const {
    StorePlace place = *this;
    place.below = below.empty() ? std::string(folder) : JoinPath(below, folder);
    return place;
  }
};
TP_FIELDS(StorePlace, store, below, endpoint, region, timeout_s)
// An error of that store, with the host that met it.
inline Status ErrorOf(const StorePlace& place, const Status& error) {
  return error.At("host " + HostName() + ", checkpoint.store " + place.store +
                  (place.endpoint.empty() ? "" : " at " + place.endpoint));
}

// kNotFound and kDataLoss speak of an object, any other error of the store, or of the way there: an object
// that may be as it should.
inline bool IsOfStore(const Status& error) {
  return !error.ok() && error.code() != StatusCode::kNotFound && error.code() != StatusCode::kDataLoss;
}

// What is below one place. Thread-safe for different keys.
class CheckpointStore {
 public:
  struct Object {
    std::string key;  // "model/config.json"
    int64_t bytes = 0;
  };
  using GoOn = std::function<bool()>;  // asked between pieces; false: give up, kCancelled
  using Take = std::function<Status(std::string_view piece)>;

  virtual ~CheckpointStore() = default;
  // The file at `path`, which may go away by it, becomes the object `key`: whole and durable, or not at all.
  virtual Status Put(const std::string& path, const std::string& key, const GoOn& go_on) = 0;
  // Hands over the object in pieces, in order.
  virtual Status Read(const std::string& key, const Take& take) = 0;
  virtual StatusOr<std::vector<Object>> List() = 0;  // sorted by key; none where there is no such place
  virtual Status RemoveAll() = 0;                    // of this place. Ok if there is nothing
  // The folder with the objects as files; empty: they are not files.
  [[nodiscard]] virtual std::string Folder() const { return ""; }
};

StatusOr<std::unique_ptr<CheckpointStore>> OpenStore(FileSystem& fs, const StorePlace& place);
// The store of a directory, which has to be there. `fs` outlives it.
std::unique_ptr<CheckpointStore> MakeDirectoryStore(FileSystem& fs, const StorePlace& place);
// Writes, lists and removes a small object, by way of a file in `folder`: what is wrong with a store is said
// before a run depends on it. kUnavailable also where it has not ended after four times
// StorePlace::timeout_s, one for each request; a thread that hangs is left to the system.
Status TryStore(const std::shared_ptr<FileSystem>& fs, const StorePlace& place, const std::string& folder);

// A folder in `store` for what one life of a run's controller puts there. No other has its name, on no host,
// nor where a copy of the run's folder goes on.
StorePlace NewPlace(const StorePlace& store, const std::string& run_id);

// store.json of a folder in the run; no value: the files are in that folder. kDataLoss: it does not parse.
StatusOr<std::optional<StorePlace>> ReadStorePlace(FileSystem& fs, const std::string& dir);
Status WriteStorePlace(FileSystem& fs, const std::string& dir, const StorePlace& place);
// A folder of checkpoints/, after what it has in a store: where that cannot be removed, nothing is.
Status RemoveFolder(FileSystem& fs, const std::string& dir);

// An empty folder that files pass on their way between a worker and a store: in `folder`, a disk of the
// host's own, or if that is empty in `dir`, the checkpoint's folder in the run. What an earlier worker of a
// run of this id left in `folder` goes; that of one that lives is locked.
inline constexpr char kStagingLock[] = "lock";  // in `dir`: no file of the checkpoint
struct Staging {
  std::string dir;
  std::unique_ptr<FileLock> lock;  // null: it is in the run's folder
};
StatusOr<Staging> MakeStaging(FileSystem& fs, const std::string& folder, const std::string& dir,
                              const StorePlace& place);

// Puts `files` below `dir` there, several at a time, and reads each back. They are gone from `dir` then.
// kDataLoss: what was read back differs.
StatusOr<std::vector<ManifestFile>> PutFiles(CheckpointStore& store, FileSystem& fs, const std::string& dir,
                                             const std::vector<std::string>& files,
                                             const CheckpointStore::GoOn& go_on);
// All are there with their sizes; no byte is read. kDataLoss, kNotFound name the first that is not.
Status CheckSizes(CheckpointStore& store, const std::vector<ManifestFile>& files);
// Reads it all. kDataLoss: another size or digest.
Status VerifyObject(CheckpointStore& store, const ManifestFile& file,
                    const CheckpointStore::GoOn& go_on = {});
// The folder that has `files`, verified: the store's own, or `to`, which is made.
StatusOr<std::string> FetchFiles(CheckpointStore& store, FileSystem& fs,
                                 const std::vector<ManifestFile>& files, const std::string& to,
                                 const CheckpointStore::GoOn& go_on);

}  // namespace tidepool::storage
