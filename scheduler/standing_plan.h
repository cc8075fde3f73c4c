#pragma once
// The plan that stands: the last one of the placement that was valid. Where it is possible it is kept up to
// date slot by slot.
//
// A plan names a role for every slot. It is asked for whenever a worker joins, so thousands of slots that
// join one after the other would cost a square of their number. Most policies give a slot its role whatever
// the others do (Placement::by_slot); of those, only the slots that changed are asked for. Update() leaves
// behind what Decide() would have (StandingPlanTest). Pure; not thread-safe.

#include <string>

#include "core/base/status.h"
#include "scheduler/placement.h"

namespace tidepool::scheduler {

class StandingPlan {
 public:
  // The whole pool is shown to the placement. A plan that is not valid is refused and the one before it
  // stays.
  void Decide(const Placement& placement, const PoolView& pool, const LedgerView& ledger,
              const Forecast& forecast, TimePoint now);
  // The same, where only `changed.slots` have changed since the last Decide() or Update(), and of `ledger`
  // nothing. False: it is not known what the whole plan would be; Decide() has to be called. requires
  // placement.by_slot
  bool Update(const Placement& placement, const PoolView& changed, const LedgerView& ledger,
              const Forecast& forecast, TimePoint now);

  [[nodiscard]] const Plan& plan() const { return plan_; }
  // Why the newest was refused; OK: it was not.
  [[nodiscard]] const Status& refused() const { return refused_; }
  // Slots beyond those that were shown may have another role in plan() than before the last call.
  [[nodiscard]] bool all_new() const { return all_new_; }

 private:
  Plan plan_, decided_;  // decided_: the newest, valid or not
  PlanTotals totals_;    // of decided_
  Status refused_;
  bool slots_valid_ = false;  // decided_ may be refused for its totals, not for a single slot
  bool all_new_ = true;
};

}  // namespace tidepool::scheduler
