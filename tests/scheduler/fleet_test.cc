// Workers with more slots than one, and gangs of more slots than one: in the pool, with a real journal.

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "scheduler/checker.h"
#include "scheduler/fleet/gang.h"
#include "scheduler/fleet/layout.h"
#include "scheduler/fleet/pool.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

constexpr WorkerRef kNobody;

// A pool alone. Its journal is kept and has to satisfy the checker after every test.
class PoolTest : public testing::Test {
 protected:
  PoolTest() {
    out_.Record(record::Config(record::RunTerms{
        .run_id = "r", .job = "rl", .groups_per_step = 1, .group_size = 2, .data_size = 8, .slots = 4}));
  }
  ~PoolTest() override {
    Told();
    const CheckResult checked = Check(journal_);
    EXPECT_TRUE(checked.ok) << checked.predicate << ": " << checked.why;
  }

  // A device worker with its slots; none named: one of its own number.
  WorkerRef Join(int64_t worker, std::vector<SlotId> slots = {}) {
    const WorkerRef ref{{worker}, state_.next_incarnation()};
    out_.Record(record::Join{ref, "w", Role::kNone, std::move(slots)});
    return ref;
  }
  // A new process in that place, as the controller does it after a loss.
  void Fence(const WorkerRef& ref) { out_.Record(record::Fence{ref}); }

  // Commands to workers since the last call.
  std::vector<Command> Told() {
    std::vector<Command> told;
    for (Command& c : out_.Take()) {
      if (const auto* a = std::get_if<command::Append>(&c)) {
        journal_.push_back({Lsn{static_cast<int64_t>(journal_.size())}, 1, ++ns_, a->record});
      } else {
        told.push_back(std::move(c));
      }
    }
    return told;
  }
  template <typename T>
  std::vector<T> ToldAll() {
    std::vector<T> all;
    for (const Command& c : Told()) {
      const T* x = std::get_if<T>(&c);
      EXPECT_NE(x, nullptr) << "another command";
      if (x != nullptr) all.push_back(*x);
    }
    return all;
  }
  // A gang takes a role that nothing held before.
  void Take(SlotId gang, Role role) {
    pool_.Begin({{gang, role}}, "join", 0, now_);
    for (const auto& g : ToldAll<command::Grant>())
      EXPECT_TRUE(pool_.Granted({g.worker, g.slot, g.epoch}, now_));
    EXPECT_TRUE(pool_.Holds(gang, role));
  }

  RunState state_;
  Outbox out_{state_};
  Waits waits_;
  TimePoint now_{FromSeconds(1)};
  Pool pool_{{.need_bytes_rollout = 100, .need_bytes_actor = 100}, state_, out_, waits_};
  std::vector<JournalEntry> journal_;
  uint64_t ns_ = 0;
};

TEST_F(PoolTest, AWorkerMayHoldTwoSlotsThatChangeHandsByThemselves) {
  pool_.Add({{0}});
  pool_.Add({{1}});
  const WorkerRef w = Join(0, {{0}, {1}});
  pool_.Attach({0}, w);
  pool_.Attach({1}, w);
  Take({0}, Role::kRollout);
  Take({1}, Role::kActor);
  pool_.Begin({{{0}, Role::kActor}}, "plan", 0, now_);
  const auto drains = ToldAll<command::Drain>();
  ASSERT_EQ(drains.size(), 1U);
  EXPECT_EQ(drains[0].slot, SlotId{0});
  EXPECT_TRUE(pool_.Holds({1}, Role::kActor)) << "its other slot is not touched";
  EXPECT_FALSE(pool_.Drained({w, {1}, drains[0].epoch}, now_)) << "nobody asked that slot";
  EXPECT_TRUE(pool_.Drained({w, {0}, drains[0].epoch}, now_));
  // The worker dies: both slots are lost, and nobody else is to be replaced.
  pool_.Lost({0}, "died", now_);
  pool_.Lost({1}, "died", now_);
  EXPECT_TRUE(pool_.TakeFenced().empty());
  EXPECT_EQ(pool_.slot({1}).phase, SlotPhase::kLost);
}

TEST_F(PoolTest, AGangIsGrantedAndDrainedWhenEveryPartHasAnswered) {
  pool_.Add({{0}, {1}});
  const WorkerRef a = Join(0), b = Join(1);
  pool_.Attach({0}, a);
  EXPECT_EQ(pool_.slot({0}).holder(), kNobody) << "a part of it has no worker yet";
  pool_.Attach({1}, b);
  EXPECT_EQ(pool_.slot({0}).holder(), a);

  pool_.Begin({{{0}, Role::kRollout}}, "join", 0, now_);
  const auto grants = ToldAll<command::Grant>();
  ASSERT_EQ(grants.size(), 2U);
  EXPECT_EQ(grants[0].worker, a);
  EXPECT_EQ(grants[1].worker, b);
  EXPECT_EQ(grants[0].epoch, grants[1].epoch);
  EXPECT_TRUE(pool_.Granted({b, {1}, grants[1].epoch}, now_));
  EXPECT_FALSE(pool_.Granted({b, {1}, grants[1].epoch}, now_)) << "a slot answers a grant once";
  EXPECT_FALSE(pool_.Holds({0}, Role::kRollout));
  EXPECT_TRUE(pool_.Granted({a, {0}, grants[0].epoch}, now_));
  EXPECT_TRUE(pool_.Holds({0}, Role::kRollout));

  pool_.Begin({{{0}, Role::kActor}}, "plan", 0, now_);
  const auto drains = ToldAll<command::Drain>();
  ASSERT_EQ(drains.size(), 2U);
  EXPECT_TRUE(pool_.Drained({a, {0}, drains[0].epoch}, now_));
  EXPECT_TRUE(Told().empty()) << "nothing is released before all have drained";
  EXPECT_TRUE(pool_.Drained({b, {1}, drains[1].epoch}, now_));
  const auto releases = ToldAll<command::Release>();
  ASSERT_EQ(releases.size(), 2U);
  EXPECT_EQ(pool_.Released({a, {0}, releases[0].epoch, 100}, now_), Pool::ReleaseOutcome::kReleased);
  EXPECT_TRUE(Told().empty()) << "nothing is granted before all have released";
  EXPECT_EQ(pool_.Released({b, {1}, releases[1].epoch, 100}, now_), Pool::ReleaseOutcome::kReleased);
  for (const auto& g : ToldAll<command::Grant>())
    EXPECT_TRUE(pool_.Granted({g.worker, g.slot, g.epoch}, now_));
  EXPECT_TRUE(pool_.Holds({0}, Role::kActor));
  EXPECT_TRUE(waits_.all().empty());
}

TEST_F(PoolTest, AGangThatLosesAPartIsFencedAsAWhole) {
  pool_.Add({{0}, {1}});
  const WorkerRef a = Join(0), b = Join(1);
  pool_.Attach({0}, a);
  pool_.Attach({1}, b);
  Take({0}, Role::kActor);
  Fence(b);
  pool_.Lost({1}, "died", now_);
  EXPECT_EQ(pool_.TakeFenced(), std::vector<WorkerRef>{a}) << "it holds a part of nothing";
  EXPECT_EQ(state_.slots().at({0}).role, Role::kNone);
  EXPECT_EQ(state_.slots().at({1}).role, Role::kNone);
  Fence(a);
  pool_.Lost({0}, "another part of its gang is gone", now_);
  EXPECT_TRUE(pool_.TakeFenced().empty());
  pool_.Attach({1}, Join(1));
  EXPECT_EQ(pool_.slot({0}).holder(), kNobody);
  pool_.Attach({0}, Join(0));
  Take({0}, Role::kActor);
}

TEST_F(PoolTest, AGangThatHoldsNothingLosesOnlyTheDeadPart) {
  pool_.Add({{0}, {1}});
  const WorkerRef a = Join(0), b = Join(1);
  pool_.Attach({0}, a);
  pool_.Attach({1}, b);
  Fence(b);
  pool_.Lost({1}, "died", now_);
  EXPECT_TRUE(pool_.TakeFenced().empty());
  pool_.Attach({1}, Join(1));
  EXPECT_EQ(pool_.slot({0}).holder(), a);
}

TEST_F(PoolTest, AGangOnOneWorkerDiesWithItAndFencesNobody) {
  pool_.Add({{0}, {1}});
  const WorkerRef w = Join(0, {{0}, {1}});
  pool_.Attach({0}, w);
  pool_.Attach({1}, w);
  Take({0}, Role::kActor);
  Fence(w);
  pool_.Lost({0}, "died", now_);
  pool_.Lost({1}, "died", now_);
  EXPECT_TRUE(pool_.TakeFenced().empty());
}

TEST_F(PoolTest, AGangWithAPartThatKeptItsMemoryIsOutOfUse) {
  pool_.Add({{0}, {1}});
  const WorkerRef a = Join(0), b = Join(1);
  pool_.Attach({0}, a);
  pool_.Attach({1}, b);
  Take({0}, Role::kRollout);
  pool_.Begin({{{0}, Role::kActor}}, "plan", 0, now_);
  for (const auto& d : ToldAll<command::Drain>())
    EXPECT_TRUE(pool_.Drained({d.worker, d.slot, d.epoch}, now_));
  const auto releases = ToldAll<command::Release>();
  ASSERT_EQ(releases.size(), 2U);
  EXPECT_EQ(pool_.Released({a, {0}, releases[0].epoch, 100}, now_), Pool::ReleaseOutcome::kReleased);
  EXPECT_EQ(pool_.Released({b, {1}, releases[1].epoch, 99}, now_), Pool::ReleaseOutcome::kQuarantined);
  EXPECT_EQ(pool_.slot({0}).phase, SlotPhase::kQuarantined);
  EXPECT_EQ(pool_.TakeFenced(), std::vector<WorkerRef>{a});
}

TEST_F(PoolTest, OfAGangThatAControllerLeftHalfGrantedNothingIsKept) {
  const WorkerRef a = Join(0), b = Join(1);
  // The last controller died between the two GRANTs.
  out_.Record(record::TransitionBegin{
      {0}, {{{0}, Role::kNone, Role::kActor, {1}}, {{1}, Role::kNone, Role::kActor, {1}}}, 1000, "join", 0});
  out_.Record(record::TransitionCommit{{0}});
  out_.Record(record::Grant{{0}, Role::kActor, {1}, a});
  pool_.Add({{0}, {1}});
  pool_.Recover(/*keep_holders=*/true);
  EXPECT_EQ(pool_.slot({0}).phase, SlotPhase::kLost);
  EXPECT_EQ(state_.slots().at({0}).role, Role::kNone);
  EXPECT_TRUE(state_.transitions().empty());
  EXPECT_TRUE(b.inc.valid());
}

TEST(FleetLayoutTest, ASlotThatNoGangNamesIsOneByItself) {
  const FleetLayout layout = FleetLayout::Even(4, 1, {{{2}, {1}}});
  EXPECT_EQ(layout.gangs, (std::vector<std::vector<SlotId>>{{{2}, {1}}, {{0}}, {{3}}}));
}

TEST(FleetLayoutTest, AControllerRefusesASlotThatIsInTwoGangsOrInNoFleet) {
  for (const int64_t wrong : {1, 4, -1}) {
    ControllerOptions job = SmallJob(PlacementKind::kSplit, 4);
    job.fleet.gangs = {{{0}, {1}}, {{2}, {wrong}}};
    const auto controller = Controller::Create(job, {});
    ASSERT_FALSE(controller.ok());
    EXPECT_EQ(controller.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(controller.status().message().find("slot " + std::to_string(wrong) + " of a gang"),
              std::string::npos)
        << controller.status().message();
  }
}

TEST(FleetLayoutTest, SlotsGoToWorkersInTurnAndTheLastOneHasWhatIsLeft) {
  const FleetLayout layout = FleetLayout::Even(5, 2);
  EXPECT_EQ(layout.slots.size(), 3U);
  EXPECT_EQ(layout.slots.at({0}), (std::vector<SlotId>{{0}, {1}}));
  EXPECT_EQ(layout.slots.at({2}), std::vector<SlotId>{{4}});
  EXPECT_EQ(layout.gangs.size(), 5U);
}

}  // namespace
}  // namespace tidepool::scheduler
