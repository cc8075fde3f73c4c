// Policies, plans, and how a batch is shared.

#include "scheduler/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/rng.h"
#include "scheduler/balance.h"
#include "scheduler/kv_admission.h"
#include "scheduler/length_model.h"
#include "scheduler/standing_plan.h"

namespace tidepool::scheduler {
namespace {

PoolView Fleet(int64_t slots, int64_t actors) {
  PoolView p{.slots = {}, .actor_slots = actors, .rollout_floor = 1};
  for (int64_t i = 0; i < slots; ++i) p.slots.push_back({.id = {i}, .role = Role::kRollout, .live = true});
  return p;
}
Status CheckPlan(const Plan& plan, const PoolView& pool, const LedgerView& ledger, bool floor) {
  PlanTotals totals;
  const Status slots = CheckSlots(plan, pool, totals);
  return slots.ok() ? CheckTotals(totals, pool, ledger, floor) : slots;
}
int64_t Count(const Plan& plan, Role role) {
  return std::count_if(plan.roles.begin(), plan.roles.end(), [&](const auto& r) { return r.second == role; });
}

TEST(PolicyTest, MultiplexedLeavesOnlyForABatchAndComesBack) {
  const Placement placement = PlacementOf(PlacementKind::kMultiplexed);
  const PoolView pool = Fleet(8, 3);
  LedgerView l{.need = TrainerNeed::kBatch, .batch_groups = 8};
  const Plan shrink = placement.decide(pool, l, {}, {});
  EXPECT_EQ(Count(shrink, Role::kActor), 3);
  EXPECT_TRUE(CheckPlan(shrink, pool, l, true).ok());
  l.need = TrainerNeed::kPublish;
  EXPECT_EQ(Count(placement.decide(pool, l, {}, {}), Role::kRollout), 8)
      << "before the new weights are even published";
}

TEST(PolicyTest, IsNamedWithinThePlacementThatItIsFor) {
  for (const PlacementKind kind : AllOf<PlacementKind>()) {
    EXPECT_TRUE(CheckPolicy(kind, "").ok()) << Name(kind);
    EXPECT_TRUE(CheckPolicy(kind, Name(kind)).ok()) << Name(kind);
    EXPECT_EQ(PlacementOf(kind).name, Name(kind));
  }
  EXPECT_NE(CheckPolicy(PlacementKind::kSplit, "elastik").message().find("did you mean 'elastic'?"),
            std::string::npos);
  EXPECT_NE(CheckPolicy(PlacementKind::kSplit, "multiplexed")
                .message()
                .find("write scheduler.placement: multiplexed, or a policy of split (split)"),
            std::string::npos);
}

TEST(PolicyTest, PlanThatIsNotValidIsRefusedWithItsReason) {
  PoolView pool = Fleet(4, 2);
  const LedgerView l{.need = TrainerNeed::kBatch, .batch_groups = 3};
  Plan plan;
  for (int64_t i = 0; i < 4; ++i) plan.roles[{i}] = Role::kActor;
  EXPECT_NE(CheckPlan(plan, pool, l, true).message().find("rollout_floor"), std::string::npos);
  EXPECT_NE(CheckPlan(plan, pool, l, false).message().find("cannot share 3 groups"), std::string::npos);
  plan.roles.erase(SlotId{0});
  EXPECT_NE(CheckPlan(plan, pool, l, true).message().find("no role"), std::string::npos);
  plan.roles[{0}] = Role::kRollout;
  pool.slots[0].trains = true;
  EXPECT_NE(CheckPlan(plan, pool, l, true).message().find("trains the running step"), std::string::npos);
  plan.roles[{9}] = Role::kRollout;
  pool.slots[0].trains = false;
  EXPECT_FALSE(CheckPlan(plan, pool, l, true).ok());
}

TEST(PolicyTest, ARunningStepKeepsItsSlotsWhereTheOnlyOneThatGeneratesIsLost) {
  PoolView pool = Fleet(3, 2);
  for (const size_t i : {0, 1}) pool.slots[i].role = Role::kActor, pool.slots[i].trains = true;
  pool.slots[2].live = false;
  const LedgerView step{.need = TrainerNeed::kStep, .generates = true};
  const Plan stays = PlacementOf(PlacementKind::kMultiplexed).decide(pool, step, {}, {});
  EXPECT_EQ(Count(stays, Role::kActor), 2);
  EXPECT_EQ(CheckPlan(stays, pool, step, true).message(), "");
}

// A job of which the elastic placement chooses the training slots, cycle after cycle.
class ElasticJob {
 public:
  // Seconds of a cycle with so many training slots, without deviations; and of them, those of the step.
  using Seconds = std::function<double(int64_t slots)>;

  explicit ElasticJob(int64_t slots) : pool_(Fleet(slots, 1)) {}

  void Run(int64_t steps, const Seconds& cycle_s, const Seconds& train_s, double deviation = 0) {
    const LedgerView l{.need = TrainerNeed::kBatch, .batch_groups = 64};
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t m = ChooseElastic(
          pool_, l,
          {.group_s = group_s_, .cycles = std::span(cycles_).last(std::min<size_t>(cycles_.size(), 256))});
      chosen_.push_back(m);
      const double batch = 1 + deviation * (2 * rng_.Uniform() - 1);  // longer answers
      const double seconds = cycle_s(m) * batch * (1 + deviation * (2 * rng_.Uniform() - 1));
      cycles_.push_back({.slots = m,
                         .live = static_cast<int64_t>(pool_.slots.size()),
                         .seconds = seconds,
                         .train_s = train_s(m) * batch,
                         .tokens = 1000 * batch});
      time_s_ += seconds;
      if (i > 0 && m != chosen_[chosen_.size() - 2]) {
        ++changes_;
        time_s_ += group_s_;
      }
    }
  }
  void SetGroupSeconds(double s) { group_s_ = s; }
  // Since the last call.
  double TakeSeconds() { return std::exchange(time_s_, 0); }
  int64_t TakeChanges() { return std::exchange(changes_, 0); }
  [[nodiscard]] int64_t last() const { return chosen_.back(); }
  [[nodiscard]] const std::vector<int64_t>& chosen() const { return chosen_; }
  // How often of the last `steps`.
  [[nodiscard]] int64_t Times(int64_t m, int64_t steps) const {
    return std::count(chosen_.end() - steps, chosen_.end(), m);
  }

 private:
  PoolView pool_;
  Rng rng_{7};
  double group_s_ = 0, time_s_ = 0;
  int64_t changes_ = 0;
  std::vector<Cycle> cycles_;
  std::vector<int64_t> chosen_;
};

// As 16 paced slots: a step shares 190 slot-seconds, and the refill takes 28 s whatever their number, unless
// a single slot has all that is generated beside the step.
TEST(ElasticTest, BeginsWithAllButAnEighthAndStaysWhereNothingIsBetter) {
  ElasticJob job(16);
  job.SetGroupSeconds(4);
  const auto train = [](int64_t m) { return 190.0 / static_cast<double>(m); };
  const auto cycle = [&](int64_t m) { return train(m) + (m < 15 ? 28 : 36); };
  job.Run(12, cycle, train, 0.1);
  EXPECT_EQ(job.Times(14, 12), 12) << "a number is not left before it is known";
  job.Run(188, cycle, train, 0.1);
  EXPECT_GE(job.Times(14, 188), 165);
  EXPECT_LE(job.TakeChanges(), 8) << "each forms another group";
  EXPECT_LT(job.TakeSeconds(), 1.015 * 200 * cycle(14));
}

TEST(ElasticTest, FindsTheBestNumberWhereverItIs) {
  for (const int64_t slots : {2, 4, 16, 64}) {
    for (const double at : {0.1, 0.3, 0.6, 0.95}) {
      const auto best = std::clamp<int64_t>(std::llround(at * static_cast<double>(slots)), 1, slots - 1);
      // A fifth more at twice or half of it.
      const auto cycle = [&](int64_t m) {
        const double off = std::log2(static_cast<double>(m) / static_cast<double>(best));
        return 40 * (1 + 0.2 * off * off);
      };
      const auto train = [](int64_t m) { return 100.0 / static_cast<double>(m); };
      ElasticJob job(slots);
      job.SetGroupSeconds(1);
      job.Run(150, cycle, train, 0.03);
      job.TakeSeconds();
      job.TakeChanges();
      job.Run(100, cycle, train, 0.03);
      EXPECT_LT(job.TakeSeconds(), 1.05 * 100 * 40) << "best " << best << " of " << slots;
      EXPECT_LE(job.TakeChanges(), 10) << "best " << best << " of " << slots;
    }
  }
}

// First much is generated for a short step, then steps become long.
TEST(ElasticTest, FollowsALoadThatChanges) {
  ElasticJob job(16);
  job.SetGroupSeconds(2);
  const auto few_train = [](int64_t) { return 4.0; };
  const auto few = [](int64_t m) { return 30.0 + static_cast<double>(m); };
  const auto many_train = [](int64_t m) { return 400.0 / static_cast<double>(m); };
  const auto many = [&](int64_t m) { return 30 + many_train(m); };
  job.Run(120, few, few_train, 0.03);
  EXPECT_LE(job.last(), 4);
  job.Run(120, many, many_train, 0.03);
  EXPECT_GE(job.last(), 12);
  job.Run(120, few, few_train, 0.03);
  EXPECT_LE(job.last(), 4);
  EXPECT_LE(job.TakeChanges(), 60);
}

// A trial far off the mark ends after a look; where forming groups is dear, trials are rare.
TEST(ElasticTest, TrialsCostLittle) {
  const auto train = [](int64_t m) { return 1000.0 / static_cast<double>(m); };
  const auto cycle = [&](int64_t m) { return 10 + train(m) + (m > 14 ? 100 : 0); };
  ElasticJob job(16);
  job.Run(200, cycle, train);
  EXPECT_LE(job.Times(15, 200), 3);
  for (const double group_s : {1.0, 20.0, 300.0}) {
    ElasticJob other(16);
    other.SetGroupSeconds(group_s);
    const auto even = [](int64_t) { return 50.0; };
    other.Run(1000, even, [](int64_t) { return 10.0; });
    EXPECT_LE(static_cast<double>(other.TakeChanges()) * group_s, 0.025 * 1000 * 50) << group_s;
  }
}

// At a lag of 0 the others have nothing to do meanwhile.
TEST(ElasticTest, TrainsOnAllThatMayWhereNothingIsGeneratedBesideAStep) {
  const LedgerView l{.need = TrainerNeed::kBatch, .batch_groups = 64};
  EXPECT_EQ(ChooseElastic(Fleet(16, 1), l, {.beside = false}), 15);
  EXPECT_EQ(ChooseElastic(Fleet(16, 6), l, {.beside = false}), 6) << "scheduler.actor_slots";
}

TEST(ElasticTest, KeepsToWhatMayTrain) {
  const LedgerView l{.need = TrainerNeed::kBatch, .batch_groups = 64};
  PoolView pool = Fleet(16, 1);
  EXPECT_EQ(ChooseElastic(pool, l, {}), 14);
  pool.rollout_floor = 5;
  EXPECT_EQ(ChooseElastic(pool, l, {}), 11);
  pool.rollout_floor = 1;
  pool.uneven_dp = false;
  EXPECT_EQ(ChooseElastic(pool, l, {}), 8);
  // What other slots took says nothing about those that are there now.
  std::vector<Cycle> of_more(30, {.slots = 3, .live = 16, .seconds = 10, .train_s = 1, .tokens = 1});
  EXPECT_EQ(ChooseElastic(Fleet(8, 1), l, {.cycles = of_more}), 7);
  EXPECT_EQ(ChooseElastic(Fleet(1, 1), l, {}), 0) << "nobody would generate";
}

// As soon as more slots have rested than the step would lose by waiting for them, it waits.
TEST(ElasticTest, WaitsForSlotsThatRestOnlyWhereThatIsOverSooner) {
  const Placement placement = PlacementOf(PlacementKind::kElastic);
  const LedgerView l{.need = TrainerNeed::kBatch, .batch_groups = 64};
  PoolView pool = Fleet(16, 1);
  for (size_t i = 2; i < 16; ++i) pool.slots[i].taken_s = 7;
  const std::vector<Cycle> longer(4, {.slots = 14, .live = 16, .seconds = 20, .train_s = 10, .tokens = 1}),
      shorter(4, {.slots = 14, .live = 16, .seconds = 20, .train_s = 0.1, .tokens = 1});
  Forecast f{.switch_s = 1, .cycles = longer};  // they rest for 10 s
  EXPECT_EQ(placement.decide(pool, l, f, {}).why, "rest");
  f.cycles = shorter;
  EXPECT_EQ(Count(placement.decide(pool, l, f, {}), Role::kActor), 2);
}

// Slots that join, leave and move, one or a few at a time; now and then the ledger changes, and all is
// decided anew.
TEST(StandingPlanTest, SlotBySlotItIsWhatTheWholePlanWouldBe) {
  int64_t updates = 0, refusals = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    for (const PlacementKind kind :
         {PlacementKind::kColocated, PlacementKind::kSplit, PlacementKind::kMultiplexed}) {
      Rng rng(seed);
      const Placement placement = PlacementOf(kind);
      ASSERT_TRUE(placement.by_slot);
      PoolView pool = Fleet(1 + rng.Below(12), 1 + rng.Below(6));
      pool.rollout_floor = rng.Below(4);
      pool.uneven_dp = rng.Chance(0.5);
      for (SlotView& s : pool.slots) s = {.id = s.id};
      LedgerView ledger{.need = TrainerNeed::kState, .groups_per_step = 4};
      StandingPlan stands, anew;
      stands.Decide(placement, pool, ledger, {}, {});
      anew.Decide(placement, pool, ledger, {}, {});
      for (int i = 0; i < 40; ++i) {
        PoolView changed = pool;
        changed.slots.clear();
        for (SlotView& s : pool.slots) {
          if (!rng.Chance(0.2)) continue;
          s.live = rng.Chance(0.8);
          constexpr std::array kRolesOfSlots = {Role::kNone, Role::kRollout, Role::kActor};
          s.role = kRolesOfSlots[static_cast<size_t>(rng.Below(3))];
          s.trains = ledger.need == TrainerNeed::kStep && s.live && rng.Chance(0.1);
          changed.slots.push_back(s);
        }
        if (rng.Chance(0.2)) {
          ledger.need = static_cast<TrainerNeed>(rng.Below(6));
          ledger.batch_groups = ledger.need == TrainerNeed::kBatch ? 1 + rng.Below(6) : 0;
          ledger.evaluation = rng.Chance(0.2);
          stands.Decide(placement, pool, ledger, {}, {});
        } else if (stands.Update(placement, changed, ledger, {}, {})) {
          ++updates;
        } else {
          stands.Decide(placement, pool, ledger, {}, {});
        }
        anew.Decide(placement, pool, ledger, {}, {});
        ASSERT_TRUE(std::ranges::equal(stands.plan().roles, anew.plan().roles))
            << Name(kind) << " seed " << seed << " change " << i;
        ASSERT_EQ(stands.plan().why, anew.plan().why);
        ASSERT_EQ(stands.refused().message(), anew.refused().message())
            << Name(kind) << " seed " << seed << " change " << i;
        refusals += stands.refused().ok() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(updates, 1000);
  EXPECT_GT(refusals, 1000);
}

TEST(BalancedPartitionTest, SharesEverythingOnceAndNeverWorseThanHalfMoreThanEven) {
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    const int64_t n = rng.InRange(1, 60), k = rng.InRange(1, 8);
    std::vector<double> costs;
    for (int64_t i = 0; i < n; ++i) costs.push_back(1 + 99 * rng.Uniform());
    const auto shares = BalancedPartition(costs, k);
    ASSERT_EQ(shares.size(), static_cast<size_t>(k));
    std::vector<int> seen(static_cast<size_t>(n));
    double most = 0;
    for (const auto& share : shares) {
      double sum = 0;
      for (const int64_t i : share) {
        ++seen[static_cast<size_t>(i)];
        sum += costs[static_cast<size_t>(i)];
      }
      most = std::max(most, sum);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), n);
    const double even = std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(k);
    const double largest = *std::max_element(costs.begin(), costs.end());
    EXPECT_LE(most, even + largest);  // what any greedy rule keeps
  }
}

// The plain form: k bins in every tuple, empty ones too, sorted again after every step.
std::vector<std::vector<int64_t>> PlainPartition(const std::vector<double>& costs, int64_t ranks) {
  const auto k = static_cast<size_t>(ranks);
  using Bin = std::pair<double, std::vector<int64_t>>;
  using Tuple = std::pair<int64_t, std::vector<Bin>>;  // smallest item, bins
  std::vector<Tuple> tuples;
  for (size_t i = 0; i < costs.size(); ++i) {
    tuples.push_back({static_cast<int64_t>(i), std::vector<Bin>(k)});
    tuples.back().second[0] = {costs[i], {static_cast<int64_t>(i)}};
  }
  const auto take = [&] {
    const auto spread = [](const Tuple& t) { return t.second.front().first - t.second.back().first; };
    const auto at = std::ranges::max_element(tuples, [&](const Tuple& x, const Tuple& y) {
      return spread(x) != spread(y) ? spread(x) < spread(y) : x.first > y.first;
    });
    Tuple t = *at;
    tuples.erase(at);
    return t;
  };
  while (tuples.size() > 1) {
    Tuple x = take(), y = take();
    for (size_t i = 0; i < k; ++i) {
      x.second[i].first += y.second[k - 1 - i].first;
      for (const int64_t item : y.second[k - 1 - i].second) x.second[i].second.push_back(item);
    }
    x.first = std::min(x.first, y.first);
    std::stable_sort(x.second.begin(), x.second.end(),
                     [](const Bin& a, const Bin& b) { return a.first > b.first; });
    tuples.push_back(x);
  }
  std::vector<std::vector<int64_t>> shares;
  for (Bin& b : tuples[0].second) {
    std::ranges::sort(b.second);
    if (!b.second.empty()) shares.push_back(b.second);
  }
  std::ranges::sort(shares);
  shares.resize(k);
  return shares;
}

TEST(BalancedPartitionTest, EqualsThePlainForm) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto n = static_cast<int64_t>(1 + Mix64(seed) % 40),
               k = static_cast<int64_t>(1 + Mix64(seed + 1000) % 12);
    std::vector<double> costs;
    for (int64_t i = 0; i < n; ++i)
      costs.push_back(1.0 + static_cast<double>(Mix64(seed * 77 + static_cast<uint64_t>(i)) %
                                                (seed % 2 == 0 ? 5 : 1000)));  // many ties, or few
    EXPECT_EQ(BalancedPartition(costs, k), PlainPartition(costs, k))
        << "seed " << seed << " n " << n << " k " << k;
  }
}

TEST(BalancedPartitionTest, EqualCountsDifferByAtMostOne) {
  std::vector<double> costs(23);
  std::iota(costs.begin(), costs.end(), 1.0);
  size_t least = 100, most = 0;
  for (const auto& share : BalancedPartition(costs, 4, /*equal_count=*/true)) {
    least = std::min(least, share.size());
    most = std::max(most, share.size());
  }
  EXPECT_LE(most - least, 1U);
}

TEST(LengthModelTest, SiblingsCountOnlyWhileTheyCorrelate) {
  Rng rng(3);
  const auto feed = [&](double between, double within) {
    LengthModel m;
    for (int g = 0; g < 64; ++g) {
      const double base = 6 + between * rng.Normal();
      std::vector<int64_t> lengths;
      for (int i = 0; i < 8; ++i)
        lengths.push_back(static_cast<int64_t>(std::exp(base + within * rng.Normal())) + 1);
      m.GroupFinished(lengths);
    }
    return m;
  };
  EXPECT_EQ(feed(1, 0.3).mode(), SiblingMode::kContext);
  EXPECT_NEAR(feed(1, 0.35).icc(), 1 / (1 + 0.35 * 0.35), 0.08);
  EXPECT_EQ(feed(1, 1.5).mode(), SiblingMode::kIgnore);
  EXPECT_EQ(feed(1, 0.02).mode(), SiblingMode::kNoProbe);
}

TEST(LengthModelTest, ResidualLifeOfAnExponentialDoesNotDependOnAge) {
  LengthModel m;
  Rng rng(5);
  for (int i = 0; i < 20000; ++i) m.Finished(1 + static_cast<int64_t>(-1000 * std::log(1 - rng.Uniform())));
  EXPECT_NEAR(m.ResidualLife(1, 1), 1000, 200);
  EXPECT_NEAR(m.ResidualLife(1500, 1), 1000, 300);
  EXPECT_EQ(m.ResidualLife(10000000, 77), 77) << "nothing as long has been seen";
}

TEST(KvAdmissionTest, TrimsUnderPressureAndIgnoresFurtherCutsWhileItDrains) {
  KvAdmission a(100, 4, 1000);
  a.Sample({.slot = {0}, .kv_usage = 0.95, .running = 100, .waiting = 0, .step_s = 0.1}, 100,
           {FromSeconds(1)});
  EXPECT_EQ(a.cap(), 73);  // 100 * 0.7 / 0.95
  EXPECT_EQ(a.TakeExcess(), 27);
  EXPECT_EQ(a.TakeExcess(), 0);
  a.Sample({.slot = {0}, .kv_usage = 0.95, .running = 100, .waiting = 90, .step_s = 0.1}, 100,
           {FromSeconds(2)});
  EXPECT_EQ(a.cap(), 73) << "it is draining already";
  const int64_t before = a.cap();
  for (int i = 0; i < 400; ++i) {
    a.Sample({.slot = {0}, .kv_usage = 0.3, .running = 70, .waiting = 0, .step_s = 0.1}, a.cap(),
             {FromSeconds(3)});
    a.UnitDone(10, a.cap(), false, {FromSeconds(3)});
  }
  EXPECT_GT(a.cap(), before);
  // Nobody hears of worker 1 any more.
  a.Sample({.slot = {1}, .kv_usage = 0.3, .running = 70, .waiting = 0, .step_s = 0.1}, a.cap(),
           {FromSeconds(3)});
  const auto grows = [&] {
    const int64_t from = a.cap();
    for (int i = 0; i < 400; ++i) {
      a.Sample({.slot = {0}, .kv_usage = 0.3, .running = 70, .waiting = 0, .step_s = 0.1}, a.cap(),
               {FromSeconds(30)});
      a.UnitDone(10, a.cap(), false, {FromSeconds(30)});
    }
    return a.cap() > from;
  };
  EXPECT_FALSE(grows()) << "its cache may be full by now";
  a.Forget({1});
  EXPECT_TRUE(grows());
}

}  // namespace
}  // namespace tidepool::scheduler
