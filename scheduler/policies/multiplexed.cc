// All generate; when a batch is ready, some train it and come back at once after the optimizer step.
#include <vector>

#include "scheduler/policies/policy_plugin.h"

namespace tidepool::scheduler {
namespace {

Plan Multiplexed(const PoolView& pool, const LedgerView& l, const Forecast&, TimePoint) {
  std::vector<SlotId> set;
  bool avoided = false;
  for (const SlotView& s : pool.slots) {
    if (!s.live || s.id.value >= pool.actor_slots) continue;
    if (s.avoid && s.role != Role::kActor) {
      avoided = true;  // the others train without it
      continue;
    }
    set.push_back(s.id);
  }
  const auto n = static_cast<int64_t>(set.size());
  switch (l.need) {
    case TrainerNeed::kState:
      return Shrink(pool, set, n, "state");
    case TrainerNeed::kStep:
      return Stay(pool, Role::kRollout, "a step runs");
    case TrainerNeed::kBatch:
      if (l.evaluation) break;
      return Shrink(pool, set, n, avoided ? "shrink without slots that failed" : "shrink");
    case TrainerNeed::kDone:
      if (l.evaluation && !l.stopping) break;
      return Stay(pool, Role::kRollout, "the end");
    case TrainerNeed::kPublish:
    case TrainerNeed::kNothing:
      break;
  }
  return Everywhere(pool, Role::kRollout, "expand");
}

}  // namespace

TP_PLUGIN(Policy, multiplexed) {
  return {.summary = "all generate; slots 0 .. actor_slots-1 leave for each optimizer step and come back",
          .placement = PlacementKind::kMultiplexed,
          .decide = Multiplexed,
          .by_slot = true};
}

}  // namespace tidepool::scheduler
