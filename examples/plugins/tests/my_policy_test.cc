#include <gtest/gtest.h>

#include "scheduler/placement.h"

namespace tidepool::scheduler {
namespace {

PoolView FourSlots() {
  PoolView pool{.slots = {}, .actor_slots = 2, .rollout_floor = 1};
  for (int64_t i = 0; i < 4; ++i) pool.slots.push_back({.id = {i}, .role = Role::kRollout, .live = true});
  return pool;
}

// tests/scheduler/controller_sim_test.cc shows how a policy is run under faults.
TEST(MyPolicyTest, PlansAreValidWhateverTheTrainerNeeds) {
  ASSERT_TRUE(CheckPolicy(PlacementKind::kMultiplexed, "my_policy").ok());
  const Placement placement = PlacementOf(PlacementKind::kMultiplexed, "my_policy");
  const PoolView pool = FourSlots();
  for (const TrainerNeed need :
       {TrainerNeed::kState, TrainerNeed::kBatch, TrainerNeed::kNothing, TrainerNeed::kPublish}) {
    const LedgerView ledger{.need = need, .groups_per_step = 8, .batch_groups = 8};
    PlanTotals totals;
    const Status slots = CheckSlots(placement.decide(pool, ledger, {}, {}), pool, totals);
    EXPECT_TRUE(slots.ok()) << slots.message();
    const Status all = CheckTotals(totals, pool, ledger, /*floor=*/true);
    EXPECT_TRUE(all.ok()) << all.message();
  }
}

}  // namespace
}  // namespace tidepool::scheduler
