#include "scheduler/standing_plan.h"

#include <utility>

namespace tidepool::scheduler {

void StandingPlan::Decide(const Placement& placement, const PoolView& pool, const LedgerView& ledger,
                          const Forecast& forecast, TimePoint now) {
  decided_ = placement.decide(pool, ledger, forecast, now);
  totals_ = {};
  refused_ = CheckSlots(decided_, pool, totals_);
  slots_valid_ = refused_.ok();
  if (slots_valid_) refused_ = CheckTotals(totals_, pool, ledger, placement.keeps_floor);
  all_new_ = true;
  if (refused_.ok()) plan_ = decided_;
}

bool StandingPlan::Update(const Placement& placement, const PoolView& changed, const LedgerView& ledger,
                          const Forecast& forecast, TimePoint now) {
  if (!slots_valid_) return false;
  const Plan next = placement.decide(changed, ledger, forecast, now);
  PlanTotals totals;
  if (!CheckSlots(next, changed, totals).ok() || next.why != decided_.why || next.dwell_s != decided_.dwell_s)
    return false;
  const bool stood = refused_.ok();
  for (const SlotView& s : changed.slots) {
    if (const auto was = decided_.roles.find(s.id); was != decided_.roles.end())
      totals_.Count(was->second, -s.slots);
    const auto is = next.roles.find(s.id);
    if (is == next.roles.end()) {
      decided_.roles.erase(s.id);
    } else {
      totals_.Count(is->second, s.slots);
      decided_.roles[s.id] = is->second;
    }
  }
  refused_ = CheckTotals(totals_, changed, ledger, placement.keeps_floor);
  all_new_ = !stood && refused_.ok();
  if (!refused_.ok()) return true;
  if (all_new_) {
    plan_ = decided_;
    return true;
  }
  for (const SlotView& s : changed.slots) {
    const auto is = next.roles.find(s.id);
    if (is == next.roles.end())
      plan_.roles.erase(s.id);
    else
      plan_.roles[s.id] = is->second;
  }
  return true;
}

}  // namespace tidepool::scheduler
