#pragma once
// Checkpoint folders and their commit: all of a checkpoint or nothing, whatever dies when.
//
// Folder `checkpoints/`:
//   step_N.E-K.tmp/ being written as checkpoint K under controller epoch E; the trainer writes its files into
//                 it. No other try has this name, so a trainer that was given up and still writes reaches
//                 nothing of its successor's, of this controller or a later one;
//   step_N/       whole and durable, with manifest.json: every file, its size and digest, and what it is of.
// Order of a commit: a file that is equal to that of the newest checkpoint becomes another name of it
// (share_files.h) -> fsync each file -> fsync each folder -> manifest.json, fsynced -> rename to step_N ->
// fsync the parent -> read everything back and verify. Then the caller writes CK_COMMIT(manifest digest) to
// the journal: that record, not the folder, is what makes it a checkpoint. There is no "latest" file.
//
// With checkpoint.store (checkpoint_store.h) the folder has manifest.json and store.json alone. Whoever
// writes the files puts them into the store and has read them back before it tells of them; the commit looks
// whether they are there with their sizes.
//
// Digests: of a file SaltedSum(bytes, 0), 8-byte words, taken in pieces (FileDigest); of a manifest
// Hash64 of manifest.json's bytes. Names in a manifest are relative paths of plain parts below the
// folder; a manifest with any other is refused. Functions are thread-safe for different steps.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fields.h"
#include "core/base/file_system.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/storage/checkpoint_store.h"
#include "core/storage/manifest_file.h"

namespace tidepool::storage {

inline constexpr int kCheckpointSchema = 1;
inline constexpr const char* kManifestName = "manifest.json";
// Of Manifest::notes: the folder of the base model, whose weights those of model/ are (hard links).
inline constexpr const char* kBaseModel = "base_model";

struct Manifest {
  int schema = kCheckpointSchema;
  std::string run_id;
  int64_t ckpt = 0;
  StepNumber step;
  Lsn cut;  // the journal position that the state is of
  Version version;
  uint64_t weights_digest = 0;
  std::string config_digest;
  std::string
      instruction_set;  // that computed the weights ("amx_bf16"; a GPU's name): bits may differ on another
  std::map<std::string, std::string> notes;  // anything more that a person or a later program may want
  std::vector<ManifestFile> files;           // sorted by path; filled by Commit
};

TP_FIELDS_BY(Manifest, TP_EACH(schema, run_id, ckpt, step) v("lsn", r.cut);
             TP_EACH(version, weights_digest, config_digest, instruction_set, notes, files))

std::string ManifestToJson(const Manifest& manifest);
// kDataLoss if it does not parse or names a file outside the folder; kFailedPrecondition: another schema.
StatusOr<Manifest> ParseManifest(std::string_view json, const std::string& path);

std::string CheckpointName(StepNumber step);  // "step_20"

// Of all tries to write a checkpoint in a run, by any controller.
struct CheckpointTry {
  StepNumber step;
  int64_t ctl_epoch = 0, ckpt = 0;
};

// One checkpoint being written. Not thread-safe; writers of files need only dir().
class CheckpointWriter {
 public:
  // `store`: the run's place there; the files go to a folder of this try below it. None: into dir().
  // kAlreadyExists: this try was begun before.
  static StatusOr<std::unique_ptr<CheckpointWriter>> Begin(FileSystem& fs, const std::string& checkpoints,
                                                           const CheckpointTry& which,
                                                           const StorePlace& store = {});
  // Uncommitted: the .tmp folder stays, for RemoveLeftovers.
  ~CheckpointWriter() = default;

  [[nodiscard]] const std::string& dir() const { return tmp_; }  // where to put files; sub-folders are fine
  // The protocol above; `manifest.files` is filled from the folder. `written`: what the writer of the files
  // says that it wrote, relative to dir(). Returns the manifest's digest, after everything was read back. An
  // older folder of the same step (of an undone branch) is replaced.
  //   kDataLoss           the folder holds other files than `written`, or what was read back differs
  //   errors of FileSystem, kResourceExhausted first of all; the .tmp folder is removed then
  StatusOr<uint64_t> Commit(Manifest manifest, std::vector<std::string> written);
  // The same of files that are in the store. kNotFound, kDataLoss: one is not, or has another size.
  StatusOr<uint64_t> CommitStored(Manifest manifest, std::vector<ManifestFile> stored);

 private:
  CheckpointWriter(FileSystem& fs, std::string checkpoints, const CheckpointTry& which);
  StatusOr<uint64_t> TryCommit(Manifest& manifest, const std::vector<std::string>& written);
  StatusOr<uint64_t> TryCommitStored(Manifest& manifest);
  StatusOr<uint64_t> Publish(const Manifest& manifest, const std::vector<std::string>& paths);

  FileSystem& fs_;
  std::string checkpoints_;
  StepNumber step_;
  std::string tmp_;
  StorePlace store_;  // of this try
};

// Reads the manifest of a checkpoint folder. `manifest_digest`: what CK_COMMIT says; empty: any.
// kNotFound, kDataLoss, kFailedPrecondition.
StatusOr<Manifest> ReadManifest(FileSystem& fs, const std::string& dir,
                                std::optional<uint64_t> manifest_digest);
// ReadManifest, then every file's size and digest, wherever they are. kDataLoss names the file, what was
// found and expected.
StatusOr<Manifest> VerifyCheckpoint(FileSystem& fs, const std::string& dir,
                                    std::optional<uint64_t> manifest_digest);
// The same, but of files in a store their presence and sizes alone: who fetches them looks at their digests.
StatusOr<Manifest> FindCheckpoint(FileSystem& fs, const std::string& dir,
                                  std::optional<uint64_t> manifest_digest);
// Where the files of a checkpoint's folder are whose path begins with `prefix` ("model/"; "": all): there, in
// a shared directory, or fetched to `to` from any other store; in a store they are verified.
StatusOr<std::string> FolderWithFiles(FileSystem& fs, const std::string& dir, const std::string& prefix,
                                      const std::string& to, const CheckpointStore::GoOn& go_on = {});
// What a checkpoint takes, on the disk or in its store. 0: its folder or manifest is not there.
int64_t CheckpointBytes(FileSystem& fs, const std::string& dir);

// Steps that have a folder step_N with a manifest, ascending; not verified. None if there is no such folder.
StatusOr<std::vector<StepNumber>> ListCheckpoints(FileSystem& fs, const std::string& checkpoints);
// Folders of checkpoints/ that are to go, each of a name that no checkpoint and no try has. RemoveFolder
// removes one, now or, beside all else that is done here, later; until then it is a leftover.
struct SetAside {
  std::vector<std::string> local, stored;  // stored: with files in a store, which may not answer
  int64_t came_back = 0;
};
// Takes the name step_N away, so that a half-removed folder is never taken for a checkpoint. Nothing if there
// is none.
StatusOr<SetAside> SetCheckpointAside(FileSystem& fs, const std::string& checkpoints, StepNumber step);
// What interrupted commits and removals left: *.tmp is to go; step_N.old, moved aside for a replacement that
// never got its name, comes back. Call when no checkpoint is being written.
StatusOr<SetAside> SetLeftoversAside(FileSystem& fs, const std::string& checkpoints);
// What is to be told of one that could not be removed from its store: it stays for the next start.
std::string Stays(const std::string& dir, const std::string& why);

// Both, with the removal. What is in a store that does not answer now stays; an error says so, or `left`, for
// the operator.
Status RemoveCheckpoint(FileSystem& fs, const std::string& checkpoints, StepNumber step);
struct Leftovers {
  int64_t handled = 0;
  std::vector<std::string> left;
};
StatusOr<Leftovers> RemoveLeftovers(FileSystem& fs, const std::string& checkpoints);

}  // namespace tidepool::storage
