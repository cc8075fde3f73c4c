// Runs that begin with fewer slots than they may have (cluster.min_slots), take newcomers, and go on without
// places that are gone for good.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/checker.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

constexpr WorkerId kReward{3};  // of three slots

// Workers are started by hand: nobody starts one again.
SimOptions ByHand(PlacementKind placement, int64_t min_slots) {
  SimOptions o{.controller = SmallJob(placement, 3), .seed = 3, .faults = {}};
  o.controller.fleet.launch_workers = false;
  o.controller.fleet.min_slots = min_slots;
  o.controller.steps = 60;
  o.controller.data_rows = 400;
  return o;
}

double At(const JournalEntry& e) { return static_cast<double>(e.mono_ns) * 1e-9; }

void ExpectProven(const SimCluster& cluster) {
  const CheckResult check = Check(cluster.journal());
  EXPECT_TRUE(check.ok) << check.predicate << " at record " << check.lsn.value << ": " << check.why;
}

// Seconds at which a slot got a role, the first time; 1e9: never.
std::map<int64_t, double> FirstGrants(const SimCluster& cluster) {
  std::map<int64_t, double> at{{0, 1e9}, {1, 1e9}, {2, 1e9}};
  for (const JournalEntry& e : cluster.journal()) {
    if (const auto* grant = std::get_if<record::Grant>(&e.record))
      at[grant->slot.value] = std::min(at[grant->slot.value], At(e));
  }
  return at;
}

int64_t StepsBefore(const SimCluster& cluster, double seconds) {
  int64_t steps = 0;
  for (const JournalEntry& e : cluster.journal())
    steps += std::holds_alternative<record::StepCommit>(e.record) && At(e) < seconds ? 1 : 0;
  return steps;
}

std::string FaultsSaid(const SimCluster& cluster) {
  std::string all;
  for (const JournalEntry& e : cluster.journal()) {
    if (const auto* f = std::get_if<record::Fault>(&e.record)) all += f->kind + " " + f->actor + "; ";
  }
  return all;
}

// The third one comes when the run is well under way, works, and dies for good.
TEST(MinSlotsTest, ARunBeginsWithThemTakesANewcomerAndGoesOnWithoutOneThatDies) {
  for (const PlacementKind placement : AllOf<PlacementKind>()) {
    SCOPED_TRACE(Name(placement));
    SimCluster cluster(ByHand(placement, 2));
    cluster.Come(kReward, 0);
    cluster.Come({0}, 0);
    cluster.Come({1}, 4);
    cluster.Come({2}, 8);
    int64_t work = 0;  // of the newcomer
    cluster.on_executed = [&](const Command& c) {
      const auto* chunk = std::get_if<command::StartChunk>(&c);
      const auto* train = std::get_if<command::Train>(&c);
      const SlotId slot = chunk != nullptr ? chunk->slot : train != nullptr ? train->slot : SlotId{};
      if (slot == SlotId{2} && ++work == 20) cluster.KillWorker({2});
    };
    const SimResult r = cluster.Run();
    EXPECT_EQ(r.code, 0) << r.why;
    const auto granted = FirstGrants(cluster);
    EXPECT_GT(granted.at(0), 4) << "nothing is given out before the second one is there";
    EXPECT_LT(granted.at(0), 6);
    EXPECT_LT(granted.at(1), 6);
    EXPECT_GT(granted.at(2), 8);
    EXPECT_GT(StepsBefore(cluster, granted.at(2)), 0);
    EXPECT_GE(work, 20);
    EXPECT_TRUE(FaultsSaid(cluster).starts_with("worker_lost device-2; ")) << FaultsSaid(cluster);
    ExpectProven(cluster);
  }
}

TEST(MinSlotsTest, APlaceToWhichNobodyComesIsGoneAndWhoeverComesLaterHasIt) {
  for (const PlacementKind placement : AllOf<PlacementKind>()) {
    SCOPED_TRACE(Name(placement));
    SimOptions o = ByHand(placement, 2);
    o.controller.fleet.start_timeout_s = 10;
    SimCluster cluster(o);
    cluster.Come(kReward, 0);
    cluster.Come({0}, 0);
    cluster.Come({1}, 0);
    cluster.Come({2}, 12);
    const SimResult r = cluster.Run();
    EXPECT_EQ(r.code, 0) << r.why;
    EXPECT_EQ(FaultsSaid(cluster), "gone device-2; ");
    EXPECT_LT(FirstGrants(cluster).at(2), 20);
    ExpectProven(cluster);
  }
}

TEST(MinSlotsTest, OneThatIsLostAndDoesNotComeBackIsGoneAndTheRunEndsWithTheSecond) {
  SimOptions o = ByHand(PlacementKind::kSplit, 2);
  o.controller.fleet.start_timeout_s = 5;
  o.controller.steps = 2000;
  o.controller.data_rows = 10000;
  SimCluster cluster(o);
  for (int64_t place = 0; place < 4; ++place) cluster.Come({place}, 0);
  int64_t steps = 0;
  cluster.on_executed = [&](const Command& c) {
    if (!std::holds_alternative<command::StepReport>(c)) return;
    ++steps;
    if (steps == 5) cluster.KillWorker({2});
    if (steps == 80) cluster.KillWorker({1});
  };
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 3);
  EXPECT_TRUE(r.why.starts_with("fault=fleet_dead actor=pool ")) << r.why;
  for (const char* part :
       {"1 of 3 slots are left, and cluster.min_slots is 2; gone: device-1 (did not come back",
        "device-2 (did not come back within cluster.start_timeout_s; it ended because: killed)",
        "--resume"}) {
    EXPECT_NE(r.why.find(part), std::string::npos) << part << " in " << r.why;
  }
  EXPECT_EQ(FaultsSaid(cluster),
            "worker_lost device-2; gone device-2; worker_lost device-1; gone device-1; fleet_dead pool; ");
  ExpectProven(cluster);
}

TEST(MinSlotsTest, FewerThanAskedForEndTheRunBeforeItBegins) {
  SimOptions o = ByHand(PlacementKind::kMultiplexed, 3);
  SimCluster cluster(o);
  for (const int64_t place : {0, 1, 3}) cluster.Come({place}, 0);
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 3);
  EXPECT_NE(
      r.why.find("2 of 3 slots are left, and cluster.min_slots is 3; gone: device-2 (did not join within "
                 "cluster.start_timeout_s)"),
      std::string::npos)
      << r.why;
  EXPECT_EQ(FirstGrants(cluster).at(0), 1e9);
  ExpectProven(cluster);
}

TEST(MinSlotsTest, WithoutTheKeyEveryPlaceHasToCome) {
  SimOptions o = ByHand(PlacementKind::kSplit, 0);
  o.controller.fleet.start_timeout_s = 10;
  SimCluster cluster(o);
  for (const int64_t place : {0, 1, 3}) cluster.Come({place}, 0);
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 3);
  EXPECT_TRUE(r.why.starts_with("fault=start_failed actor=device-2 ")) << r.why;
}

// Where the controller starts the workers itself.
TEST(MinSlotsTest, APlaceWhoseRestartsAreSpentIsGivenUpAndItsNewcomerWorks) {
  for (const int64_t least : {2, 3}) {
    SimOptions o{.controller = SmallJob(PlacementKind::kSplit, 3), .seed = 3, .faults = {}};
    o.controller.fleet.min_slots = least;
    o.controller.steps = 600;
    o.controller.data_rows = 4000;
    SimCluster cluster(o);
    int64_t deaths = 0;
    double retired = 1e9, joined = 1e9;
    cluster.on_executed = [&](const Command& c) {
      const auto* chunk = std::get_if<command::StartChunk>(&c);
      if (chunk != nullptr && chunk->slot == SlotId{2} && deaths < 6) cluster.KillWorker({2});
      const auto* append = std::get_if<command::Append>(&c);
      const auto* fault = append == nullptr ? nullptr : std::get_if<record::Fault>(&append->record);
      if (fault != nullptr && fault->kind == "retired") cluster.Come({2}, 5);
    };
    cluster.on_event = [&](const Event& e) {
      const auto* lost = std::get_if<event::WorkerLost>(&e);
      deaths += lost != nullptr && lost->worker.worker == WorkerId{2} ? 1 : 0;
      return true;
    };
    const SimResult r = cluster.Run();
    for (const JournalEntry& e : cluster.journal()) {
      const auto* fault = std::get_if<record::Fault>(&e.record);
      const auto* join = std::get_if<record::Join>(&e.record);
      if (fault != nullptr && fault->kind == "retired") retired = At(e);
      if (join != nullptr && join->worker.worker == WorkerId{2} && At(e) > retired) joined = At(e);
    }
    ExpectProven(cluster);
    EXPECT_EQ(deaths, 6);
    if (least == 3) {
      EXPECT_EQ(r.code, 3);
      EXPECT_NE(
          r.why.find("2 of 3 slots are left, and cluster.min_slots is 3; gone: device-2 (it died 6 times"),
          std::string::npos)
          << r.why;
      continue;
    }
    EXPECT_EQ(r.code, 0) << r.why;
    EXPECT_LT(joined, r.seconds);
    EXPECT_GT(StepsBefore(cluster, r.seconds), StepsBefore(cluster, joined));
  }
}

TEST(MinSlotsTest, APlaceThatCannotBeStartedEndsOnlyARunThatNeedsIt) {
  for (const bool lacks : {false, true}) {
    SimOptions o{.controller = SmallJob(PlacementKind::kColocated, 3), .seed = 3, .faults = {}};
    o.faults.last_stays_away = true;
    o.controller.fleet.start_timeout_s = 2;
    o.controller.fleet.min_slots = lacks ? 2 : 0;
    o.controller.steps = 60;
    o.controller.data_rows = 400;
    SimCluster cluster(o);
    const SimResult r = cluster.Run();
    EXPECT_EQ(r.code, lacks ? 0 : 3) << r.why;
    EXPECT_NE((lacks ? FaultsSaid(cluster) : r.why).find(lacks ? "gone device-2" : "fault=start_failed"),
              std::string::npos)
        << r.why << FaultsSaid(cluster);
    ExpectProven(cluster);
  }
}

// Two of three are granted their part in a step, and hear of it when the third is dead already: one of them
// would have to generate.
TEST(MinSlotsTest, AStepKeepsItsSlotsWhereTheOneThatGeneratesDiesAsItBegins) {
  SimOptions o = ByHand(PlacementKind::kMultiplexed, 2);
  o.controller.fleet.actor_slots = 2;
  SimCluster cluster(o);
  for (int64_t place = 0; place < 4; ++place) cluster.Come({place}, 0);
  int64_t grants = 0, members = 0;
  bool killed = false, lost = false;
  std::vector<Event> held;
  cluster.on_executed = [&](const Command& c) {
    const auto* grant = std::get_if<command::Grant>(&c);
    const auto* train = std::get_if<command::Train>(&c);
    if (train != nullptr && lost && members == 0) members = train->world;
    if (grant == nullptr || grant->role != Role::kActor || grant->slot != SlotId{1} || ++grants != 3) return;
    cluster.KillWorker({2});
    killed = true;
  };
  cluster.on_event = [&](const Event& e) {
    if (std::holds_alternative<event::Granted>(e) && killed && !lost) {
      held.push_back(e);
      return false;
    }
    lost = lost || std::holds_alternative<event::WorkerLost>(e);
    if (lost && std::holds_alternative<event::Tick>(e)) {
      for (const Event& granted : std::exchange(held, {})) cluster.Inject(granted);
    }
    return true;
  };
  const SimResult r = cluster.Run();  // a drain inside of a step would fail a check of the model
  EXPECT_EQ(r.code, 0) << r.why;
  EXPECT_EQ(members, 2);
  ExpectProven(cluster);
}

// Without the key, too: what is left of multiplexed placement are its training slots.
TEST(MinSlotsTest, WhereAPlaceIsRetiredThoseThatTrainAreFewer) {
  struct Case {
    int64_t slots = 3, left = 1;  // left: that train without the last one
    bool deterministic = false, uneven = true;
  };
  // Four groups: three slots could not share them evenly.
  for (const Case& c :
       {Case{}, Case{.left = 2, .deterministic = true}, Case{.slots = 5, .left = 2, .uneven = false}}) {
    SCOPED_TRACE(testing::Message() << c.slots << " " << c.deterministic << " " << c.uneven);
    const bool deterministic = c.deterministic;
    const SlotId last{c.slots - 1};
    SimOptions o{.controller = SmallJob(PlacementKind::kMultiplexed, c.slots), .seed = 3, .faults = {}};
    o.controller.fleet.actor_slots = c.slots - 1;
    o.controller.fleet.uneven_dp = c.uneven;
    o.controller.deterministic = deterministic;
    o.controller.steps = 600;
    o.controller.data_rows = 4000;
    SimCluster cluster(o);
    int64_t deaths = 0, fewest = c.slots;
    cluster.on_executed = [&](const Command& command) {
      const auto* chunk = std::get_if<command::StartChunk>(&command);
      if (chunk != nullptr && chunk->slot == last) cluster.KillWorker({last.value});
      if (const auto* train = std::get_if<command::Train>(&command)) fewest = std::min(fewest, train->world);
    };
    cluster.on_event = [&](const Event& e) {
      deaths += std::holds_alternative<event::WorkerLost>(e) ? 1 : 0;
      return true;
    };
    const SimResult r = cluster.Run();
    EXPECT_EQ(deaths, 6);
    EXPECT_EQ(fewest, c.left);
    EXPECT_EQ(r.code, deterministic ? 3 : 0) << r.why;
    if (deterministic) {
      EXPECT_TRUE(r.why.starts_with("fault=fleet_dead actor=pool ")) << r.why;
    }
    ExpectProven(cluster);
  }
}

// The controller is killed while it waits, and while it works.
TEST(MinSlotsTest, AControllerThatIsStartedAgainWaitsForThemAgain) {
  SimOptions o{.controller = SmallJob(PlacementKind::kMultiplexed, 4), .seed = 5, .faults = {}};
  o.controller.fleet.min_slots = 3;
  o.faults.last_stays_away = true;
  o.faults.controller_crash_mean_s = 4;
  o.faults.heal_after_s = 60;
  o.controller.steps = 30;
  o.controller.data_rows = 400;
  for (const double grace : {0.0, 5.0}) {
    o.controller.fleet.reattach_grace_s = grace;
    SimCluster cluster(o);
    const SimResult r = cluster.Run();
    EXPECT_EQ(r.code, 0) << r.why;
    EXPECT_GT(r.lives, 3);
    ExpectProven(cluster);
  }
}

}  // namespace
}  // namespace tidepool::scheduler
