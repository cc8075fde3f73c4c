// my_policy: who trains and who generates, in a sentence.
//
// To do: write the decision. docs/adding_a_policy.md says what it is shown and what a plan has to keep to. A
// pure function: no clock, no state, no I/O; it is asked anew after every event, and the same views give the
// same plan.
#include "scheduler/policies/policy_plugin.h"

namespace tidepool::scheduler {
namespace {

// As an example: as multiplexed, but a batch is trained only once all slots that may train can leave at once.
Plan MyPolicy(const PoolView& pool, const LedgerView& ledger, const Forecast& /*forecast*/,
              TimePoint /*now*/) {
  std::vector<SlotId> set;  // slots that may train: with a worker, below scheduler.actor_slots
  bool ready = true;
  for (const SlotView& slot : pool.slots) {
    if (!slot.live || slot.id.value >= pool.actor_slots) continue;
    ready = ready && !slot.avoid;  // it failed to change hands a moment ago
    set.push_back(slot.id);
  }
  const auto n = static_cast<int64_t>(set.size());
  switch (ledger.need) {
    case TrainerNeed::kState:  // the trainer's state has to be made or restored: it needs a slot
      return Shrink(pool, set, n, "state");
    case TrainerNeed::kStep:  // a step runs: its slots stay
      return Stay(pool, Role::kRollout, "a step runs");
    case TrainerNeed::kBatch:  // a batch is ready and may be trained
      if (ledger.evaluation || !ready) break;
      return Shrink(pool, set, n, "shrink");
    case TrainerNeed::kDone:
      if (ledger.evaluation && !ledger.stopping) break;
      return Stay(pool, Role::kRollout, "the end");
    case TrainerNeed::kPublish:
    case TrainerNeed::kNothing:
      break;
  }
  return Everywhere(pool, Role::kRollout, "expand");
}

}  // namespace

TP_PLUGIN(Policy, my_policy) {
  return {.summary = "as multiplexed, but all training slots leave together",
          .placement = PlacementKind::kMultiplexed,  // what its slots may ever hold
          .decide = MyPolicy};
}

}  // namespace tidepool::scheduler
