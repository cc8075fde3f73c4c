#pragma once
// What of a run's folder may go, and its removal: `tidepool prune`.
//
// Always: what tries that did not end have left (checkpoints/*.tmp, final.tmp-*, offload/) and checkpoint
// folders that the journal does not call committed (unless it lacks the end that summary.json tells of). Then
// checkpoints but the newest ones, as the run itself would delete them: CK_DELETE in the journal, then the
// folder; the newest was read back and verified before. A run that was resumable stays so unless `final_only`
// is asked for. Its warm start is treated as it is.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/file_system.h"
#include "core/base/status.h"

namespace tidepool::workers {

struct PruneOptions {
  int64_t keep = 1;         // newest checkpoints, at least 1
  bool final_only = false;  // no checkpoint stays: only of a run that is finished and has final/
  bool keep_best = false;   // best/ stays also with final_only
  bool payload = false;     // files of payload/ that none of the kept checkpoints needs
  bool samples = false;     // samples/
  bool only_look = false;   // nothing is to be removed, so nothing is written, not even the lock
};

struct PrunedItem {
  std::string path;  // below the run's folder
  std::string what;
  int64_t bytes = 0;  // that its removal frees: a file with another name elsewhere frees nothing
  // A checkpoint, or what it needs: it goes once the journal says so.
  bool by_record = false;
};
TP_FIELDS(PrunedItem, path, what, bytes)

struct PrunePlan {
  std::string run;
  std::vector<PrunedItem> items;   // in the order of their removal
  std::vector<std::string> stays;  // checkpoints that stay, and what else was to be said
  // Of the run, then of its warm start.
  struct Deletions {
    std::string dir;
    std::vector<int64_t> ids;  // for CK_DELETE
    std::string verify;        // folder of the newest checkpoint that stays; empty: none
    uint64_t digest = 0;       // of its manifest
    bool half_tidy = false;    // RemoveLeftovers or FinishPublish has something to do
  };
  std::vector<Deletions> deletions;
  [[nodiscard]] int64_t bytes() const;
};

// Holds the lock of the run from before the first look until the end of the removal.
class Pruner {
 public:
  // kFailedPrecondition: a live run has the lock; `final_only` of a run that is not finished or without
  // final/. Errors of ScanJournal.
  static StatusOr<std::unique_ptr<Pruner>> Open(const std::string& run_dir, const PruneOptions& options);
  [[nodiscard]] const PrunePlan& plan() const { return plan_; }
  // First what needs no record, so that on a full disk there is room for those of the checkpoints. Where that
  // is not enough the report goes, too, which `tidepool report` makes again. kDataLoss: the newest checkpoint
  // does not verify, nothing was removed. Errors of JournalWriter::Open and of the file system.
  Status Remove();

 private:
  Pruner() = default;
  Status RemoveItems(bool by_record) const;
  static Status Record(const PrunePlan::Deletions& d);
  std::unique_ptr<FileLock> lock_;
  PrunePlan plan_;
};

}  // namespace tidepool::workers
