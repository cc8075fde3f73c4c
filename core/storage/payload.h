#pragma once
// Payload files: the trajectories of finished samples, beside the journal. A sample's bytes are durable here
// before its ENQ record says where they are, so a training step can be repeated from them alone.
//
// Folder `payload/`: 0000.tpp, 0001.tpp, ..., append-only, readable by the owner only. Little-endian.
//   header   magic "TPPAYL\r\n" | schema u32 = 2 | file u64 | run id {u32, bytes}
//   payload  a trajectory (core/sample/codec.h)
// A payload's digest is Hash64 of its bytes; it is kept in ENQ, so that damage here is found even if this
// file looks well-formed. Files of schema 1 (payload_v1.h) are read, not written.
//
// Several processes write, each files of its own: the controller those with numbers below kFilesOfWriter, and
// each incarnation of a device worker the next kFilesOfWriter that are its own. A process begins a new file
// at its first Append.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/sample/trajectory.h"

namespace tidepool::storage {

// Where a payload is; what ENQ holds.
struct PayloadRef {
  int64_t file = -1;
  int64_t offset = 0;
  int64_t bytes = 0;
  uint64_t digest = 0;
  friend bool operator==(const PayloadRef&, const PayloadRef&) = default;
};

inline constexpr int64_t kPayloadFileBytes = int64_t{64} << 20;  // then the next one begins
inline constexpr int64_t kFilesOfWriter = int64_t{1} << 20;
inline constexpr int64_t kControllerFiles = 0;  // the number of its first file
constexpr int64_t FirstFileOf(const Incarnation& inc) { return (inc.value + 1) * kFilesOfWriter; }
constexpr int64_t WriterOf(int64_t file) { return file / kFilesOfWriter; }

// Not thread-safe: one thread owns it.
class PayloadWriter {
 public:
  // Makes `dir` if need be. Files of earlier lives are left alone; numbers go on after those of this writer,
  // whose first one is `first`.
  static StatusOr<std::unique_ptr<PayloadWriter>> Open(FileSystem& fs, const std::string& dir,
                                                       const std::string& run_id,
                                                       int64_t file_bytes = kPayloadFileBytes,
                                                       int64_t first = kControllerFiles);
  // The journal names files up to this one: its number is not given out again, even where the file is gone.
  // Before the first Append.
  void After(int64_t number) { number_ = std::max(number_, number); }
  // Writes the payload (safe from the death of this process) and says where. kInvalidArgument;
  // kResourceExhausted: disk full, nothing written, may be tried again; other errors are final.
  StatusOr<PayloadRef> Append(const sample::Trajectory& trajectory);
  // The file that is written now, empty before the first; earlier ones are durable.
  [[nodiscard]] std::string current_file() const;
  // Returns when everything appended so far is durable.
  Status Sync();

 private:
  PayloadWriter(FileSystem& fs, std::string dir, std::string run_id, int64_t file_bytes)
      : fs_(fs), dir_(std::move(dir)), run_id_(std::move(run_id)), file_bytes_(file_bytes) {}
  Status StartFile();

  FileSystem& fs_;
  std::string dir_, run_id_;
  int64_t file_bytes_;
  int64_t number_ = -1;
  std::unique_ptr<WritableFile> file_;
  bool unsynced_ = false;
  Status broken_;
};

// A payload as it lies in its file; whoever uses it compares its digest.
struct PayloadBytes {
  uint32_t schema = 0;  // of the file
  std::string bytes;
};
// kDataLoss, begun with `where`: the bytes do not have the digest of `ref`, or are cut short.
StatusOr<sample::Trajectory> DecodePayload(const PayloadBytes& payload, const PayloadRef& ref,
                                           const std::string& where);
// What that ENQ says was stored: also kDataLoss if sample, attempt, lengths or versions are not the record's.
StatusOr<sample::Trajectory> DecodePayload(const PayloadBytes& payload, const record::Enq& enq,
                                           const std::string& where);

// Thread-safe.
class PayloadReader {
 public:
  PayloadReader(FileSystem& fs, std::string dir) : fs_(fs), dir_(std::move(dir)) {}
  // kNotFound: the file is gone; kDataLoss: as DecodePayload.
  StatusOr<sample::Trajectory> Read(const PayloadRef& ref);
  StatusOr<sample::Trajectory> Read(const record::Enq& enq);
  // Up to `bytes` bytes of a file from `offset`, fewer at its end. kInvalidArgument: a negative place.
  // A file that has grown or was replaced since it was opened is opened anew, as one of another host is.
  StatusOr<PayloadBytes> ReadBytes(int64_t file, int64_t offset, int64_t bytes);
  // kNotFound: the folder itself is not there.
  [[nodiscard]] Status CheckFolder() { return fs_.Stat(dir_).status(); }
  // "DIR/0007.tpp: offset 16", for messages.
  [[nodiscard]] std::string Where(int64_t file, int64_t offset) const;

 private:
  FileSystem& fs_;
  std::string dir_;
  Mutex mu_;
  struct OpenFile {
    std::unique_ptr<ReadableFile> file;
    uint32_t schema = 0;
  };
  StatusOr<std::shared_ptr<const OpenFile>> Open(int64_t number) TP_EXCLUDES(mu_);
  void Forget(int64_t number) TP_EXCLUDES(mu_);

  std::map<int64_t, std::shared_ptr<const OpenFile>> files_
      TP_GUARDED_BY(mu_);  // shared with reads in flight
};

// A file of each writer, by WriterOf: the first that is there, or that is needed.
using FirstFiles = std::map<int64_t, int64_t>;
void AddFile(FirstFiles& first, int64_t file);
// What is in `dir`; empty: no payload file is.
StatusOr<FirstFiles> FirstPayloadFiles(FileSystem& fs, const std::string& dir);
// Deletes the files below the first one of their writer that an ENQ which may still be trained, or trained
// again from a kept checkpoint, refers to; all of a writer that `needed` does not name, but those of writers
// behind `newest_writer`, which have begun since it was made. The newest file of all stays. Returns how many
// went.
StatusOr<int64_t> DeletePayloadFilesBelow(FileSystem& fs, const std::string& dir, const FirstFiles& needed,
                                          int64_t newest_writer);

}  // namespace tidepool::storage
