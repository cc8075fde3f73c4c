// The slots that train share the optimizer's state (train.zero): each has a part, and what is lost with a
// worker is only in a checkpoint. That each step finds the part of its rank everywhere, and each checkpoint
// all parts, the modelled devices check.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "scheduler/checker.h"
#include "tests/scheduler/sim_cluster.h"
#include "tests/scheduler/swarm.h"

namespace tidepool::scheduler {
namespace {

SimOptions Sharing(PlacementKind placement, int64_t slots) {
  SimOptions o{.controller = SmallJob(placement, slots), .seed = 11, .faults = {}};
  o.controller.fleet.zero = true;
  o.controller.fleet.actor_slots = placement == PlacementKind::kColocated ? 1 : slots - 1;
  return o;
}

void ExpectProven(const SimCluster& cluster) {
  const CheckResult check = Check(cluster.journal());
  EXPECT_TRUE(check.ok) << check.predicate << " at record " << check.lsn.value << ": " << check.why;
}

// Nobody takes a part from another slot, and the parts are those of the ranks.
TEST(ShardsTest, EachSlotThatTrainsTakesItsPartFromTheSource) {
  for (const PlacementKind placement :
       {PlacementKind::kColocated, PlacementKind::kSplit, PlacementKind::kMultiplexed}) {
    SCOPED_TRACE(static_cast<int>(placement));
    SimCluster cluster(Sharing(placement, 4));
    const int64_t world = placement == PlacementKind::kColocated ? 4 : 3;
    std::map<SlotId, Shard> made;
    int64_t fetched = 0, smallest = world;
    cluster.on_command = [&](const Command& c) {
      if (const auto* init = std::get_if<command::InitState>(&c)) made[init->slot] = init->shard;
      if (const auto* train = std::get_if<command::Train>(&c)) smallest = std::min(smallest, train->world);
      fetched += std::holds_alternative<command::FetchState>(c) ? 1 : 0;
      if (const auto* write = std::get_if<command::WriteCheckpoint>(&c)) {
        EXPECT_EQ(static_cast<int64_t>(write->others.size()), world - 1);
      }
    };
    const SimResult r = cluster.Run();
    EXPECT_EQ(r.code, 0) << r.why;
    EXPECT_EQ(fetched, 0);
    EXPECT_EQ(smallest, world);
    ASSERT_EQ(static_cast<int64_t>(made.size()), world);
    for (const auto& [slot, shard] : made) EXPECT_EQ(shard, (Shard{slot.value, world}));
    ExpectProven(cluster);
  }
}

// The others keep their parts, but there is no state without the one that is gone: all go back to the newest
// checkpoint, and no further.
TEST(ShardsTest, APartThatIsLostIsTakenFromTheNewestCheckpoint) {
  SimOptions o = Sharing(PlacementKind::kSplit, 4);
  o.controller.checkpoint.every_steps = 2;
  SimCluster cluster(o);
  std::set<std::pair<SlotId, Shard>> restored;
  bool killed = false;
  cluster.on_executed = [&](const Command& c) {
    if (const auto* train = std::get_if<command::Train>(&c);
        train != nullptr && train->step.value == 4 && !killed) {
      killed = true;
      cluster.KillWorker({1});
    }
    if (const auto* restore = std::get_if<command::RestoreState>(&c)) {
      EXPECT_EQ(restore->step, StepNumber{2});
      restored.insert({restore->slot, restore->shard});
    }
  };
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 0) << r.why;
  EXPECT_EQ(restored, (std::set<std::pair<SlotId, Shard>>{
                          {SlotId{0}, {0, 3}}, {SlotId{1}, {1, 3}}, {SlotId{2}, {2, 3}}}));
  int64_t restores = 0;
  for (const JournalEntry& e : cluster.journal())
    if (const auto* restore = std::get_if<record::Restore>(&e.record)) {
      ++restores;
      EXPECT_EQ(restore->step, StepNumber{2});
    }
  EXPECT_EQ(restores, 1);
  ExpectProven(cluster);
}

// One that generates has no part: the state stays where it is.
TEST(ShardsTest, AWorkerThatOnlyGeneratesTakesNoPartAlong) {
  SimCluster cluster(Sharing(PlacementKind::kSplit, 4));
  bool killed = false;
  int64_t restored = 0;
  cluster.on_executed = [&](const Command& c) {
    if (const auto* train = std::get_if<command::Train>(&c);
        train != nullptr && train->step.value == 3 && !killed) {
      killed = true;
      cluster.KillWorker({3});
    }
    restored += std::holds_alternative<command::RestoreState>(c) ? 1 : 0;
  };
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 0) << r.why;
  EXPECT_TRUE(killed);
  EXPECT_EQ(restored, 0);
  ExpectProven(cluster);
}

// The next controller finds all parts where they are, or, with fewer slots, goes back to a checkpoint.
TEST(ShardsTest, AControllerThatIsStartedAgainTakesThePartsAsTheyAre) {
  SimOptions o = Sharing(PlacementKind::kSplit, 4);
  o.controller.fleet.reattach_grace_s = 5;
  SimCluster cluster(o);
  bool crashed = false;
  int64_t restored = 0;
  cluster.on_executed = [&](const Command& c) {
    if (const auto* report = std::get_if<command::StepReport>(&c);
        report != nullptr && report->step.value == 4 && !crashed) {
      crashed = true;
      cluster.CrashController();
    }
    restored += std::holds_alternative<command::RestoreState>(c) ? 1 : 0;
  };
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 0) << r.why;
  EXPECT_EQ(r.lives, 2);
  EXPECT_EQ(restored, 0);
  ExpectProven(cluster);
}

TEST(ShardsTest, ManyFaultsLoseNoPartWithoutGoingBack) {
  int64_t faults = 0;
  std::vector<uint64_t> seeds(60);
  std::iota(seeds.begin(), seeds.end(), uint64_t{0});
  // Found by a longer swarm: a row that is read again while a sample of its group is played again for its
  // verdict.
  seeds.push_back(7497);
  for (const uint64_t seed : seeds) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const SimOptions o = SwarmOfShards(seed);
    SimCluster cluster(o);
    SimResult r = cluster.Run();
    if (WasStopped(r)) r = cluster.Run();
    ASSERT_EQ(Unexplained(o, r), "");
    ExpectProven(cluster);
    faults += r.faults;
  }
  EXPECT_GT(faults, 1000);
}

}  // namespace
}  // namespace tidepool::scheduler
