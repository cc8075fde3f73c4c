// All slots switch together: every slot generates, then every slot trains.
#include "scheduler/policies/policy_plugin.h"

namespace tidepool::scheduler {
namespace {

Plan Colocated(const PoolView& pool, const LedgerView& l, const Forecast&, TimePoint) {
  switch (l.need) {
    case TrainerNeed::kState:
    case TrainerNeed::kStep:
    case TrainerNeed::kPublish:
      return Everywhere(pool, Role::kActor, "all train");
    case TrainerNeed::kDone:
      return l.evaluation && !l.stopping ? Everywhere(pool, Role::kRollout, "all evaluate")
                                         : Stay(pool, Role::kActor, "the end");
    case TrainerNeed::kBatch:
      return l.evaluation ? Everywhere(pool, Role::kRollout, "all evaluate")
                          : Everywhere(pool, Role::kActor, "all train");
    case TrainerNeed::kNothing:
      break;
  }
  if (l.evaluation || l.generates) return Everywhere(pool, Role::kRollout, "all generate");
  return Everywhere(pool, Role::kActor, "all train");
}

}  // namespace

TP_PLUGIN(Policy, colocated) {
  return {.summary = "all slots switch together between generating and training",
          .placement = PlacementKind::kColocated,
          .decide = Colocated,
          .by_slot = true};
}

}  // namespace tidepool::scheduler
