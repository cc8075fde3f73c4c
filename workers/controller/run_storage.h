#pragma once
// Journal and payload of a run, written by a thread of their own, so that a slow disk delays effects and
// nothing else. The caller hands over records and payloads in order and is told, in that order, when they are
// safe; what is handed over while the disk is at work goes to it together, with one sync.
//
// Safe is what the disk holds. With `ends_with_the_machine` (no process of the run outlives the machine it
// runs on) tokens, and records about processes, are safe once the operating system has them (its page cache):
// a killed controller loses nothing. A power cut may lose records, but it also ends every process that acted
// on them. A sync beside the loop brings them to the disk within about 20 ms, tokens first. Nothing promises
// that order: the system writes pages when it likes, so after a power cut an ENQ may name tokens that are not
// there. docs/journal.md says what becomes of it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/disk_thread.h"
#include "core/base/file_system.h"
#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/sample/trajectory.h"
#include "core/storage/journal.h"
#include "core/storage/payload.h"

namespace tidepool::workers {

struct StorageOptions {
  std::string run_dir, run_id;
  bool ends_with_the_machine = false;
  int64_t begun_unix_ms = 0;       // when the clock of the records began
  bool take_over = false;          // JournalOptions
  storage::JournalMark mark = {};  // what the caller has read before,
  int64_t newest_payload = -1;     // and the newest file of OwnPayload in it
};
// The payload file of the controller's own that this record names; -1: none.
int64_t OwnPayload(const JournalRecord& r);

// What became of what was handed over.
struct BatchStored {  // this one and all before it
  int64_t batch = 0;
  double seconds = 0;  // the disk was at it
};
struct PayloadStored {
  SampleId tid;
  int32_t att = 0;
  int64_t prompt_tokens = 0, response_tokens = 0;  // of the response: steps of a fragment
  std::vector<sample::VersionRun> versions_with_loss;
  storage::PayloadRef ref;
};
// For good: no more tokens are stored. The journal still takes records, so that the end of the run can be
// told there, unless `journal`.
struct StorageFailed {
  std::string why;
  bool journal = false;     // that too: nothing more is written
  bool taken_over = false;  // by another controller
};
using StorageDone = std::variant<BatchStored, PayloadStored, StorageFailed>;

// One thread calls.
class RunStorage {
 public:
  struct Record {
    JournalRecord record;
    uint64_t mono_ns = 0;  // of the decision
  };
  // Reads what is there (JournalWriter::Open says which errors), then starts the thread. `done` is called on
  // it and may be called after this object is gone, if the disk hangs: it owns what it uses. `take` is given
  // each record of earlier lives behind options.mark in order; an error of it is returned.
  static StatusOr<std::unique_ptr<RunStorage>> Open(std::shared_ptr<FileSystem> fs,
                                                    const StorageOptions& options,
                                                    storage::JournalSummary* earlier,
                                                    const std::function<Status(const JournalEntry&)>& take,
                                                    std::function<void(StorageDone)> done);

  // Returns the batch's number; they count up from 1.
  int64_t Append(std::vector<Record> records);
  void Store(sample::Trajectory trajectory);  // -> PayloadStored
  // StorageOptions::begun_unix_ms of the records that are appended from here on.
  void SetBegun(int64_t begun_unix_ms);

  [[nodiscard]] uint32_t ctl_epoch() const { return ctl_epoch_; }
  [[nodiscard]] Lsn next_lsn() const { return next_lsn_; }    // of the next record to be handed over
  [[nodiscard]] bool TakenOver() const;                       // by another controller; looks at the disk
  [[nodiscard]] std::function<bool()> AsksTakenOver() const;  // the same, for a thread that may outlive it
  // The same on the thread of writes, beside which it is looked at anyway: -> StorageFailed, if it is so.
  void LookForSuccessor();
  // What the disk is at, and for how long.
  [[nodiscard]] std::optional<DiskThread::Operation> Busy() const;
  // Writes what was handed over and closes the journal. kDeadlineExceeded names what hangs.
  Status Close(std::chrono::steady_clock::duration patience);

 private:
  struct State;
  RunStorage() = default;
  void Work(std::string operation);

  std::shared_ptr<State> state_;
  int64_t batches_ = 0;
  Lsn next_lsn_{0};
  uint32_t ctl_epoch_ = 0;
  DiskThread writing_;
};

}  // namespace tidepool::workers
