// A policy whose plans are valid and never train.
#include "scheduler/policies/policy_plugin.h"
#include "tests/plugins/faulty/faults.h"

namespace tidepool::scheduler {
namespace {

Plan NeverTrains(const PoolView& pool, const LedgerView& ledger, const Forecast&, TimePoint) {
  if (ledger.need == TrainerNeed::kState) {
    std::vector<SlotId> all;
    for (const SlotView& slot : pool.slots) {
      if (slot.live && slot.id.value < pool.actor_slots) all.push_back(slot.id);
    }
    return Shrink(pool, all, static_cast<int64_t>(all.size()), "state");
  }
  return Everywhere(pool, Role::kRollout, "as ever");
}
Plan Stays(const PoolView& pool, const LedgerView&, const Forecast&, TimePoint) {
  return Stay(pool, Role::kRollout, "as ever");
}

Plan Throws(const PoolView&, const LedgerView&, const Forecast&, TimePoint) {
  DoWrong("throw");
  return {};
}
Plan Hangs(const PoolView&, const LedgerView&, const Forecast&, TimePoint) {
  DoWrong("hang");
  return {};
}
Plan Crashes(const PoolView&, const LedgerView&, const Forecast&, TimePoint) {
  DoWrong("crash");
  return {};
}

}  // namespace

TP_PLUGIN(Policy, throws) {
  return {.summary = "throws", .placement = PlacementKind::kMultiplexed, .decide = Throws};
}
TP_PLUGIN(Policy, hangs) {
  return {.summary = "hangs", .placement = PlacementKind::kMultiplexed, .decide = Hangs};
}
TP_PLUGIN(Policy, crashes) {
  return {.summary = "crashes", .placement = PlacementKind::kMultiplexed, .decide = Crashes};
}
TP_PLUGIN(Policy, never_trains) {
  return {.summary = "makes the state and then generates for ever",
          .placement = PlacementKind::kMultiplexed,
          .decide = NeverTrains};
}
TP_PLUGIN(Policy, stays) {
  return {.summary = "generates for ever", .placement = PlacementKind::kMultiplexed, .decide = Stays};
}

}  // namespace tidepool::scheduler
