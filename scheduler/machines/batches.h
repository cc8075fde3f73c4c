#pragma once
// What is trained next: the groups of the next step, and whether the step waits for groups that would be too
// old after it.

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/ledger.h"
#include "scheduler/machines/machine.h"

namespace tidepool::scheduler {

class Batches : public Machine {
 public:
  explicit Batches(Machines& all) : Machine(all) {}

  // The groups that the next step would train; empty: too few are ready.
  const std::vector<GroupKey>& Choose();
  bool WaitForStraggler();  // the batch is there, and an urgent group is worth a short wait
  void MarkUrgent();        // looks anew for groups that would expire at the next version
  void StepBegins() { straggling_since_.reset(); }

  [[nodiscard]] const std::vector<GroupKey>& chosen() const { return batch_; }  // by the last Choose

 private:
  bool StragglerIsWorthIt();
  [[nodiscard]] bool WouldLean() const;

  std::vector<GroupKey> batch_;
  std::pair<int64_t, Version> batch_of_{
      -1, {}};                // the ledger's count of changes and the version it was chosen at
  std::set<GroupId> urgent_;  // would expire at the next version, and its batch is not chosen yet
  std::optional<TimePoint> straggling_since_;  // the batch waits since then
  // The result of WouldLean for a step, computed when the step first had a batch.
  std::pair<StepNumber, bool> foreseen_{{-1}, false};
  std::optional<StepNumber> not_waiting_;  // the step after this one does not wait for stragglers
};

}  // namespace tidepool::scheduler
