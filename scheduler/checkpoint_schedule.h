#pragma once
// When a checkpoint is written, which are kept, which is restored first, when failures end the run.
//
// Step 0 before the first admission, every `every_steps` steps, at the end and at a stop. A failed write
// is tried again at the next step; three failures in a row end the run (training would go on without a
// net). K >= 2 are kept; one is deleted only after a newer one was read back. Restored is the newest
// commit whose every digest is right; one that is not is rejected and the next older is tried.
// Pure; not thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/time.h"

namespace tidepool::scheduler {

using CommittedCheckpoints =
    std::map<int64_t, record::CheckpointCommit>;  // by id, neither rejected nor deleted

class CheckpointSchedule {
 public:
  struct Options {
    int64_t every_steps = 20, keep = 2;
  };
  static constexpr int64_t kFailuresToStop = 3;

  explicit CheckpointSchedule(const Options& options) : options_(options) {}

  // A checkpoint of `step` is wanted now. `must`: the end of the run, or a stop.
  [[nodiscard]] bool Due(StepNumber step, bool must, const CommittedCheckpoints& committed,
                         TimePoint now) const;
  void Written() {
    failures_ = 0;
    retry_after_.reset();
  }
  // Returns true if the run has to end.
  bool Failed(StepNumber step, TimePoint now);
  [[nodiscard]] int64_t failures() const { return failures_; }

  // The newest K stay, and those of `awaited` steps: whether one is the best is not known yet. Ids of the
  // others, oldest first.
  [[nodiscard]] std::vector<int64_t> ToDelete(const CommittedCheckpoints& committed,
                                              const std::set<StepNumber>& awaited = {}) const;
  [[nodiscard]] static StepNumber NewestStep(const CommittedCheckpoints& committed);  // invalid: none

 private:
  Options options_;
  int64_t failures_ = 0;
  std::optional<std::pair<StepNumber, TimePoint>> retry_after_;  // not again for this step before
};

}  // namespace tidepool::scheduler
