// Some slots train, the others generate, from the beginning to the end.
#include "scheduler/policies/policy_plugin.h"

namespace tidepool::scheduler {
namespace {

Plan Split(const PoolView& pool, const LedgerView&, const Forecast&, TimePoint) {
  Plan plan{.roles = {}, .why = "split"};
  for (const SlotView& s : pool.slots) {
    if (s.live) plan.roles[s.id] = s.id.value < pool.actor_slots ? Role::kActor : Role::kRollout;
  }
  return plan;
}

}  // namespace

TP_PLUGIN(Policy, split) {
  return {.summary = "slots 0 .. actor_slots-1 train, the others generate",
          .placement = PlacementKind::kSplit,
          .decide = Split,
          .by_slot = true};
}

}  // namespace tidepool::scheduler
