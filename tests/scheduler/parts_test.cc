// The parts of the controller by themselves.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "core/base/rng.h"
#include "scheduler/best_checkpoint.h"
#include "scheduler/checkpoint_schedule.h"
#include "scheduler/controller_options.h"
#include "scheduler/cycles.h"
#include "scheduler/evaluation.h"
#include "scheduler/fleet/health.h"
#include "scheduler/fleet/weight_roll.h"
#include "scheduler/grading.h"
#include "scheduler/infra_budget.h"
#include "scheduler/length_model.h"
#include "scheduler/live_cost.h"
#include "scheduler/ordinal_set.h"
#include "scheduler/repack.h"
#include "scheduler/run_state.h"
#include "scheduler/shutdown.h"
#include "scheduler/version_graph.h"
#include "scheduler/waits.h"

namespace tidepool::scheduler {
namespace {

TimePoint T(double s) { return {FromSeconds(s)}; }

TEST(OrdinalSetTest, AgreesWithAPlainSet) {
  Rng rng(1);
  for (int round = 0; round < 20; ++round) {
    OrdinalSet set;
    std::set<int64_t> plain;
    for (int i = 0; i < 200; ++i) {
      const int64_t x = rng.Below(150);
      EXPECT_EQ(set.Insert(x), plain.insert(x).second);
      const int64_t from = rng.Below(150);
      int64_t missing = from;
      while (plain.contains(missing)) ++missing;
      EXPECT_EQ(set.FirstMissing(from), missing);
      EXPECT_EQ(set.Contains(from), plain.contains(from));
      EXPECT_EQ(set.size(), static_cast<int64_t>(plain.size()));
    }
    int64_t last = -2;
    for (const auto& [first, end] : set.intervals()) {
      EXPECT_GT(first, last);  // apart from each other
      EXPECT_LT(first, end);
      last = end;
    }
  }
}

TEST(VersionGraphTest, LagIsTheDifferenceInsideALineage) {
  VersionGraph g;
  EXPECT_EQ(g.Lag({0, 3}, {0, 5}), 2);
  EXPECT_EQ(g.Lag({0, 5}, {0, 5}), 0);
  EXPECT_EQ(g.Lag({}, {0, 5}), 0);
}

TEST(VersionGraphTest, LagAcrossARestoreGoesThroughTheCommonAncestor) {
  VersionGraph g;
  g.Fork(1, 0, 4);
  EXPECT_EQ(g.Lag({0, 3}, {1, 6}), 3);      // made before the branch
  EXPECT_EQ(g.Lag({0, 4}, {1, 4}), 0);      // the branch point is one version
  EXPECT_EQ(g.Lag({0, 6}, {1, 5}), 1 + 2);  // undone work counts both ways
  g.Fork(2, 1, 2);                          // below the branch point of lineage 1
  EXPECT_EQ(g.Ancestor({2, 5}, 1), (Version{0, 1}));
  EXPECT_EQ(g.Lag({1, 5}, {2, 3}), 1 + 3);
  EXPECT_EQ(g.Lag({0, 2}, {2, 3}), 1);
  EXPECT_TRUE(g.IsAncestor({0, 2}, {2, 3}));
  EXPECT_FALSE(g.IsAncestor({1, 5}, {2, 3}));
}

TEST(VersionGraphTest, EqualDigestsAreOneVersion) {
  VersionGraph g;
  for (int64_t n = 0; n <= 6; ++n) g.Published({0, n}, 100 + static_cast<uint64_t>(n));
  g.Fork(1, 0, 4);
  g.Published({1, 4}, 104);
  g.Committed({1, 5}, 105);  // the same weights again
  EXPECT_EQ(g.Lag({0, 5}, {1, 5}), 0);
  EXPECT_EQ(g.Lag({0, 6}, {1, 5}), 1);  // one ahead of what is trained again
  EXPECT_TRUE(g.IsAncestor({0, 5}, {1, 5}));
  g.Committed({1, 6}, 999);  // now it differs
  EXPECT_EQ(g.Lag({0, 6}, {1, 6}), 2);
  EXPECT_EQ(g.Lag({0, 5}, {1, 6}), 1);
  EXPECT_FALSE(g.IsPublished({1, 6}));
}

HealthOptions Quick() { return {.heartbeat_s = 0.5, .start_timeout_s = 60, .seed = 1, .launch = true}; }

TEST(VersionGraphTest, TokensOfAnUndoneBranchAreAsOldAsTheirWayToTheTrainedOne) {
  VersionGraph g;
  g.Fork(1, 0, 4);
  // Made by 0.3 .. 0.6, trained at 1.6: lags 3, 2, 3, 4. By subtraction the newest would be the youngest.
  EXPECT_EQ(g.FirstWithin({0, 3}, {0, 6}, {1, 6}, 3), (Version{0, 3}));
  EXPECT_EQ(g.FirstWithin({0, 3}, {0, 6}, {1, 6}, 2), (Version{0, 4}));
  EXPECT_EQ(g.FirstWithin({0, 3}, {0, 6}, {1, 6}, 1), Version{});
  EXPECT_EQ(g.FirstWithin({0, 5}, {0, 6}, {1, 6}, 2), Version{});
  EXPECT_EQ(g.FirstWithin({0, 3}, {1, 6}, {1, 6}, 1), (Version{1, 5}));
}

// Folds the records, and the same with one of them replaced.
uint64_t DigestOf(const std::vector<JournalRecord>& records) {
  RunState s;
  for (const JournalRecord& r : records) EXPECT_TRUE(s.Apply(r).ok());
  return s.Digest();
}

TEST(RunStateTest, DigestDiffersWithEverythingThatADecisionDependsOn) {
  const WorkerRef w{{0}, {0}};
  const SampleId tid{0, 0, 0};
  const std::vector<JournalRecord> base = {
      record::Config({.job = "rl", .groups_per_step = 1, .group_size = 1}),
      record::Join{w, "w", Role::kNone},
      record::Loaded{w, {0, 1}, 7},
      record::Admit{w, {0, 1}},
      record::Issue{tid, {0}, 0, 5, 8},
      record::End{tid, 0, EndStatus::kOk},
      record::Enq{tid, 0, {0, 1}, {0, 1}, 5, 8, 3, 0, 0, 0},
      record::Graded{tid, GradeOutcome::kOk, w, 0.5, {}},
      record::EvalResult{{0}, {0, 0}, 3, 6},
      record::Lease{0, {1}, {tid}, w},
      record::StepBegin{{1}, {0, 0}, {{{0}, Role::kActor, Role::kActor, {1}}}},
  };
  const uint64_t digest = DigestOf(base);
  EXPECT_EQ(digest, DigestOf(base));
  const auto with = [&](size_t i, JournalRecord r) {
    std::vector<JournalRecord> other = base;
    other[i] = std::move(r);
    return DigestOf(other);
  };
  EXPECT_NE(digest, with(2, record::Loaded{w, {1, 1}, 7})) << "lineage of loaded weights";
  EXPECT_NE(digest, with(3, record::Admit{w, {1, 1}})) << "lineage of admitted weights";
  EXPECT_NE(digest, with(6, record::Enq{tid, 0, {1, 1}, {1, 1}, 5, 8, 3, 0, 0, 0})) << "lineage of tokens";
  EXPECT_NE(digest, with(7, record::Graded{tid, GradeOutcome::kOk, w, 0.25, {}})) << "reward";
  EXPECT_NE(digest, with(8, record::EvalResult{{0}, {0, 0}, 4, 6})) << "evaluation";
  EXPECT_NE(digest, with(10, record::StepBegin{{1}, {0, 0}, {{{1}, Role::kActor, Role::kActor, {1}}}}))
      << "open step";
  EXPECT_NE(digest, DigestOf({base.begin(), base.end() - 1})) << "open step";
}

TEST(RunStateTest, DigestDiffersWithWhatWasPublishedSavedAndMoved) {
  const std::vector<JournalRecord> base = {
      record::Config({.job = "rl", .groups_per_step = 1, .group_size = 1}),
      record::Join{{{0}, {0}}, "w", Role::kNone, {{0}}},
      record::Publish{{0, 0}, 7},
      record::CheckpointBegin{0, {0}},
      record::CheckpointCommit{0, {0}, {3}, 11, 7},
      record::TransitionBegin{{0}, {{{0}, Role::kNone, Role::kRollout, {1}}}, 1000, "", 0},
      record::TransitionCommit{{0}},
      record::EndRun{1, "", 0},
  };
  const uint64_t digest = DigestOf(base);
  const auto without = [&](size_t i) {
    std::vector<JournalRecord> other = base;
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(i));
    return DigestOf(other);
  };
  EXPECT_NE(digest, without(2)) << "PUBLISH";
  EXPECT_NE(digest, without(6)) << "T_COMMIT";
  EXPECT_NE(digest, without(7)) << "END_RUN";
  std::vector<JournalRecord> other = base;
  other[4] = record::CheckpointCommit{0, {0}, {4}, 11, 7};
  EXPECT_NE(digest, DigestOf(other)) << "cut of a checkpoint";
}

TEST(RunStateTest, ASnapshotThatDiffersIsRefusedAndOneOfAnotherFormulaIsNotCompared) {
  RunState s;
  ASSERT_TRUE(s.Apply(record::Config({.job = "rl", .groups_per_step = 1, .group_size = 1})).ok());
  EXPECT_TRUE(s.Apply(record::Snapshot{s.Digest()}).ok());
  EXPECT_TRUE(s.Apply(record::Snapshot{0x1234567812345678}).ok()) << "by an older program";
  EXPECT_EQ(s.Apply(record::Snapshot{s.Digest() ^ 1}).code(), StatusCode::kDataLoss);
}

TEST(LengthModelTest, SamplesThatStillRunCountAsCensored) {
  LengthModel m;
  for (int i = 0; i < 10; ++i) m.Finished(10);
  for (int i = 0; i < 2; ++i) m.Finished(200);
  const double without = m.ResidualLife(0, 1000);
  std::vector<int> bins(18, -1);
  for (int& bin : bins) {
    for (int64_t tokens = 1; tokens <= 50; ++tokens) bin = m.Running(bin, tokens);
  }
  const double with = m.ResidualLife(0, 1000);
  EXPECT_NEAR(without, (10 * 10 + 2 * 200) / 12.0, 0.1);
  EXPECT_NEAR(with, 10 / 3.0 + 200 * 2 / 3.0, 0.1) << "of 30 samples 20 have got beyond 10 tokens";
  for (const int bin : bins) m.Finished(50, bin);
  EXPECT_NEAR(m.ResidualLife(0, 1000), (10 * 10 + 18 * 50 + 2 * 200) / 30.0, 0.1) << "each counts once";
}

// One worker's life: its place, and the fleet that it is alone in.
struct OneLife {
  Fleet fleet;
  Health h{Quick(), fleet};
  OneLife() { fleet.Add({0}, WorkerKind::kDevice, {}); }
};

TEST(HealthTest, SilentWorkerIsSuspectThenDead) {
  OneLife one;
  Health& h = one.h;
  const WorkerRef ref{{0}, {7}};
  h.Starting({0}, T(0));
  h.Joined(ref, T(1));
  EXPECT_TRUE(h.Tick(T(2)).empty());
  auto v = h.Tick(T(2.6));
  ASSERT_EQ(v.size(), 1U);
  EXPECT_EQ(v[0].kind, Health::Verdict::kSuspect);
  EXPECT_FALSE(Health::MayServe(one.fleet.workers.at({0})));
  h.Heard({0}, {.worker = ref, .engines = {}, .op = "", .op_seq = 0}, T(3));
  v = h.Tick(T(3.1));
  ASSERT_EQ(v.size(), 1U);
  EXPECT_EQ(v[0].kind, Health::Verdict::kRecovered);
  EXPECT_EQ(h.Tick(T(5)).size(), 1U);
  v = h.Tick(T(13.1));
  ASSERT_EQ(v.size(), 1U);
  EXPECT_EQ(v[0].kind, Health::Verdict::kDead);
}

TEST(HealthTest, BeatingHeartWithoutTokensIsNotProofOfLife) {
  OneLife one;
  Health& h = one.h;
  const WorkerRef ref{{0}, {7}};
  h.Joined(ref, T(0));
  h.SetBusy({0}, true, T(0));
  bool dead = false;
  for (double t = 0; t < 40 && !dead; t += 0.5) {
    h.Heard({0}, {.worker = ref, .engines = {}, .op = "decode", .op_seq = 1}, T(t));
    for (const auto& v : h.Tick(T(t))) dead |= v.kind == Health::Verdict::kDead;
  }
  EXPECT_TRUE(dead);
  // Idle is not hung.
  OneLife other;
  Health& idle = other.h;
  idle.Joined(ref, T(0));
  for (double t = 0; t < 100; t += 0.5) {
    idle.Heard({0}, {.worker = ref, .engines = {}, .op = "", .op_seq = 0}, T(t));
    EXPECT_TRUE(idle.Tick(T(t)).empty());
  }
}

TEST(HealthTest, BackOffDoublesAndFiveRestartsInTenMinutesRetire) {
  OneLife one;
  Health& h = one.h;
  double now = 0, expected = 1;
  for (int k = 0; k < 5; ++k) {
    h.Joined({{0}, {k}}, T(now));
    const auto next = h.Died({0}, "killed", T(now));
    ASSERT_EQ(next.kind, Health::Next::kRestart);
    EXPECT_GE(Seconds(next.delay), expected);
    EXPECT_LE(Seconds(next.delay), expected * 1.25);
    expected *= 2;
    now += 10;
  }
  h.Joined({{0}, {9}}, T(now));
  EXPECT_EQ(h.Deaths({0}, T(now)), 5);
  EXPECT_EQ(h.Died({0}, "killed", T(now)).kind, Health::Next::kRetired);
  EXPECT_EQ(one.fleet.workers.at({0}).vitals().last_why,
            "it died 6 times within 600 s, which is the limit for a place; the last time: killed");
}

TEST(HealthTest, RestartsLongAgoAreForgiven) {
  OneLife one;
  Health& h = one.h;
  for (int k = 0; k < 12; ++k) {
    const double now = 200.0 * k;
    h.Joined({{0}, {k}}, T(now));
    EXPECT_EQ(h.Died({0}, "killed", T(now)).kind, Health::Next::kRestart) << k;
  }
}

TEST(HealthTest, ThreeFailedStartsInARowGiveUp) {
  OneLife one;
  Health& h = one.h;
  EXPECT_EQ(h.Died({0}, "exec", T(0)).kind, Health::Next::kRestart);
  EXPECT_EQ(h.Died({0}, "exec", T(1)).kind, Health::Next::kRestart);
  EXPECT_EQ(h.Died({0}, "exec", T(2)).kind, Health::Next::kGiveUp);
}

TEST(RepackTest, EmptiesTheWorkersWithTheLeastIntoTheFullestThatHaveRoom) {
  std::vector<RepackEngine> workers;
  for (int64_t w = 0; w < 4; ++w) {
    RepackEngine r{{w}, {}};
    for (int32_t k = 0; k <= w; ++k) r.samples.push_back({{w, 0, k}, 100, 50});
    workers.push_back(r);
  }
  // 1, 2, 3 and 4 samples of 150: ten of them, at most 8 a worker.
  const auto moves = PlanRepack(workers, {2000, 10, 0.8});
  std::map<SlotId, int64_t> left{{{0}, 1}, {{1}, 2}, {{2}, 3}, {{3}, 4}};
  for (const Move& m : moves) --left[m.from], ++left[m.to];
  EXPECT_EQ(left[{0}], 0);
  EXPECT_EQ(left[{1}], 0);
  for (const auto& [id, n] : left) EXPECT_LE(n, 8);
  EXPECT_TRUE(PlanRepack(workers, {2000, 2, 0.8}).empty()) << "no room for a whole worker's samples";
  EXPECT_TRUE(PlanRepack({workers[0]}, {2000, 10, 0.8}).empty());
}

TEST(LiveCostTest, FollowsWhatIsMeasured) {
  LiveCost cost;
  EXPECT_EQ(cost.StepSeconds(8), 0);
  for (int i = 0; i < 200; ++i) cost.EngineStep(1 + i % 32, 0.010 + 0.001 * (1 + i % 32));
  EXPECT_NEAR(cost.StepSeconds(16), 0.026, 1e-6);
  for (int i = 0; i < 200; ++i)
    cost.EngineStep(1 + i % 32, 0.020 + 0.002 * (1 + i % 32));  // other lengths, other load
  EXPECT_NEAR(cost.StepSeconds(16), 0.052, 1e-4);
}

// A cycle is from batch to batch; what a new group took is left out, and so are cycles that something else
// than the number of slots decided.
TEST(CyclesTest, AreFromBatchToBatchWithoutFormingGroupsAndWithoutThoseThatWereDisturbed) {
  Cycles cycles;
  const auto at = [](double s) { return TimePoint{} + FromSeconds(s); };
  cycles.BatchReady(at(10), 16);
  cycles.BatchReady(at(11), 16);  // asked again, or another batch in its place
  cycles.GroupFormed(4);
  cycles.Trained(14, 12, 1000);
  cycles.BatchReady(at(60), 16);
  ASSERT_EQ(cycles.all().size(), 1U);
  const Cycle& first = cycles.all().front();
  EXPECT_EQ(first.slots, 14);
  EXPECT_EQ(first.live, 16);
  EXPECT_DOUBLE_EQ(first.seconds, 46);
  EXPECT_DOUBLE_EQ(first.train_s, 12);
  EXPECT_DOUBLE_EQ(first.tokens, 1000);
  EXPECT_DOUBLE_EQ(cycles.group_s(), 4);
  cycles.Trained(14, 12, 1000);
  cycles.Disturbed();
  cycles.BatchReady(at(200), 16);
  cycles.Trained(14, 12, 1000);
  cycles.BatchReady(at(240), 15);  // a worker was lost meanwhile
  EXPECT_EQ(cycles.all().size(), 1U);
  for (int i = 1; i <= 500; ++i) {
    cycles.Trained(14, 12, 1000);
    cycles.BatchReady(at(240 + 40 * i), 15);
  }
  EXPECT_EQ(cycles.all().back().live, 15);
  EXPECT_LE(cycles.all().size(), 256U) << "what is long ago says nothing about today's load";
}

// 16 samples a step, a fifth of 20 steps: 65 of 320; or all of two steps.
TEST(InfraBudgetTest, EndsAtTheShareOrWhereNothingElseWasSeen) {
  const InfraBudget budget{.stop = 0.2, .step_samples = 16};
  EXPECT_EQ(budget.Window(), 320);
  EXPECT_FALSE(budget.Spent(64, 320));
  EXPECT_TRUE(budget.Spent(65, 320));
  EXPECT_TRUE(budget.Spent(65, 100)) << "no sample to come can lower it";
  EXPECT_FALSE(budget.Spent(31, 31)) << "too few were seen";
  EXPECT_TRUE(budget.Spent(32, 32));
  EXPECT_FALSE(budget.Spent(32, 33));
  EXPECT_FALSE(budget.Alarms(31, 31, 0.05)) << "too few were seen";
  EXPECT_FALSE(budget.Alarms(2, 40, 0.05));
  EXPECT_TRUE(budget.Alarms(3, 40, 0.05));
}

TEST(GradingTest, InfrastructureFailureIsTriedElsewhereThenFinal) {
  Grading g({.max_retries = 2, .in_flight_per_worker = 4, .timeout = FromSeconds(5)});
  const WorkerRef a{{3}, {1}}, b{{4}, {2}};
  g.AddWorker(a);
  g.AddWorker(b);
  const SampleId tid{0, 0, 0};
  g.Add(tid, 0);
  WorkerRef last;
  for (int k = 0; k < 3; ++k) {
    const auto grades = g.Assign(T(0));
    ASSERT_EQ(grades.size(), 1U);
    EXPECT_NE(grades[0].grader, last) << "another worker";
    EXPECT_EQ(grades[0].attempt, k);
    last = grades[0].grader;
    const event::Graded e{last, tid, 0, GradeOutcome::kInfra, 0, {}, "crashed"};
    EXPECT_EQ(g.Done(e), k < 2 ? Grading::Result::kRetry : Grading::Result::kFinal);
    EXPECT_EQ(g.Done(e), Grading::Result::kRefused) << "a repeat changes nothing";
  }
}

// A grader that reads payloads is sent nothing before there is one, and a disk may take its time.
TEST(GradingTest, WhatWaitsForItsPayloadHasNoDeadline) {
  Grading g({.max_retries = 2, .in_flight_per_worker = 4, .timeout = FromSeconds(5)});
  const WorkerRef a{{1}, {0}};
  g.AddWorker(a);
  g.Add({0, 0, 0}, 0, /*stored=*/false);
  const auto at = [](double s) { return TimePoint{} + FromSeconds(s); };
  ASSERT_EQ(g.Assign(at(0)).size(), 1U);
  EXPECT_TRUE(g.Stuck(at(1000)).empty());
  EXPECT_EQ(g.Horizon(at(1000)), at(1000)) << "nobody is held to a deadline";
  g.PayloadStored({0, 0, 0}, at(1000));
  EXPECT_TRUE(g.Stuck(at(1019)).empty()) << "it has had no time yet";
  EXPECT_EQ(g.Stuck(at(1021)).size(), 1U);
}

TEST(GradingTest, LostGraderGivesItsSamplesBack) {
  Grading g({.max_retries = 2, .in_flight_per_worker = 4, .timeout = FromSeconds(5)});
  const WorkerRef a{{3}, {1}};
  g.AddWorker(a);
  for (int64_t i = 0; i < 3; ++i) g.Add({i, 0, 0}, 0);
  EXPECT_EQ(g.Assign(T(0)).size(), 3U);
  EXPECT_TRUE(g.Stuck(T(1)).empty());
  EXPECT_EQ(g.Stuck(T(100)).size(), 1U);
  g.RemoveWorker({3});
  EXPECT_EQ(g.Done({a, {0, 0, 0}, 0, GradeOutcome::kOk, 1, {}, ""}), Grading::Result::kRefused);
  g.AddWorker({{3}, {2}});
  const auto grades = g.Assign(T(2));
  ASSERT_EQ(grades.size(), 3U);
  EXPECT_EQ(grades[0].tid.ordinal, 0);
  EXPECT_EQ(grades[0].attempt, 0) << "a lost grader is not the sample's fault";
}

// The slot of a worker that has one, of its own number.
SlotRef On(int64_t worker, int64_t inc) { return {{{worker}, {inc}}, {worker}}; }

// Workers 0 .. n - 1 have engines, `per_host` of them to a host.
struct Rolling {
  Fleet fleet;
  Health health{Quick(), fleet};
  std::function<bool(SlotId)> serving = [](SlotId) { return false; };
  std::set<int64_t> trained;
  int64_t newest = 1, max_lag = 0;
  WeightRoll roll{fleet,
                  {.serving = [this](SlotId slot) { return serving(slot); },
                   .hold = [](SlotId) { return false; },
                   .trained = [this](const SlotRef& ref) { return trained.contains(ref.slot.value); },
                   .may_serve = [this](const Version& v) { return newest - v.number <= max_lag; }}};
  explicit Rolling(int64_t n, const Version& verified = {0, 0}, int64_t per_host = 100) {
    for (int64_t i = 0; i < n; ++i) {
      fleet.Add({i}, WorkerKind::kDevice, {{i}});
      fleet.Place({i}, std::string(1, static_cast<char>('a' + i / per_host)));
      health.Joined({{i}, {i}}, {});
      roll.Holds({i}, verified);
      roll.Add({i});
    }
  }
  Rolling(const Rolling&) = delete;
  Rolling& operator=(const Rolling&) = delete;
  // Worker 0 is the trainer, too.
  void Publish(int64_t number, bool copied = true) {
    newest = number;
    roll.SetTarget({0, number}, Digest(number), On(0, 0), copied);
  }
  static uint64_t Digest(int64_t number) { return static_cast<uint64_t>(76 + number); }

  using Map = std::map<int64_t, int64_t>;
  // What begins: slots and whom they read from.
  struct Begun {
    Map loads, pulls;
    friend bool operator==(const Begun&, const Begun&) = default;
    friend std::ostream& operator<<(std::ostream& out, const Begun& b) {
      for (const auto& [name, map] : {std::pair("loads", b.loads), {"pulls", b.pulls}})
        for (const auto& [slot, from] : map) out << ' ' << name << ' ' << slot << " from " << from;
      return out;
    }
  };
  Begun Assign() {
    Begun begun;
    const WeightRoll::Orders orders = roll.Assign();
    for (const command::Load& l : orders.loads) {
      begun.loads[l.slot.value] = l.from.slot.value;
      EXPECT_EQ(l.alias, l.slot == SlotId{0} || trained.contains(l.slot.value))
          << "who has them in its memory";
    }
    for (const command::Pull& p : orders.pulls) {
      begun.pulls[p.slot.value] = p.from.slot.value;
      pulled = p.v;
    }
    return begun;
  }
  Version pulled;  // that the newest pull is of
  WeightRoll::Outcome Loaded(int64_t slot, int64_t number, const std::string& error = "") {
    return roll.Loaded(
        {On(slot, slot).worker, {slot}, {0, number}, error.empty() ? Digest(number) : 0U, error});
  }
  WeightRoll::Outcome Pulled(int64_t slot, int64_t number, const std::string& error = "") {
    return roll.Pulled({On(slot, slot).worker, {slot}, {0, number}, error.empty(), error});
  }
};

TEST(WeightRollTest, IdleWorkersLoadAtOnceBusyOnesAFewAtATime) {
  Rolling rolling(8);
  rolling.serving = [](SlotId slot) { return slot.value >= 4; };
  rolling.Publish(1);
  EXPECT_EQ(rolling.Assign().loads.size(), 4U + 2U) << "four idle ones, and a quarter of all";
  EXPECT_FALSE(rolling.fleet.devices.at({0}).weights().verified.valid())
      << "its memory is torn until it has loaded";
}

TEST(WeightRollTest, ServingWorkersAreTakenOutAQuarterAtATime) {
  Rolling rolling(8);
  rolling.serving = [](SlotId) { return true; };
  rolling.Publish(1);
  const Rolling::Begun begun = rolling.Assign();
  EXPECT_EQ(begun.loads.size(), 2U);
  EXPECT_TRUE(rolling.Assign().loads.empty());
  EXPECT_EQ(rolling.Loaded(begun.loads.begin()->first, 1), WeightRoll::Outcome::kDone);
  EXPECT_EQ(rolling.Assign().loads.size(), 1U);
  rolling.serving = [](SlotId) { return false; };
  EXPECT_EQ(rolling.Assign().loads.size(), 5U) << "who serves nothing loads at once";
}

TEST(WeightRollTest, WrongDigestIsTriedTwiceMoreThenTheWorkerIsReplaced) {
  Rolling rolling(1, {});
  rolling.Publish(1);
  for (int k = 0; k < 3; ++k) {
    ASSERT_EQ(rolling.Assign().loads.size(), 1U);
    EXPECT_EQ(rolling.roll.Loaded({On(0, 0).worker, {0}, {0, 1}, 78, ""}),
              k < 2 ? WeightRoll::Outcome::kRetry : WeightRoll::Outcome::kReplace);
  }
}

// Worker 2, and host b with 3, are new. Worker 4 has trained them, too.
TEST(WeightRollTest, WhatHasNoCopyIsLoadedByThoseWhoTrainedItUntilItHasOne) {
  Rolling rolling(5, {0, 0}, 3);
  rolling.trained = {0, 1, 4};
  rolling.Publish(1, /*copied=*/false);
  EXPECT_EQ(rolling.Assign(), (Rolling::Begun{{{0, 0}, {1, 1}, {4, 4}}, {}}));
  EXPECT_TRUE(rolling.roll.NeedsCopy());
  for (const int64_t slot : {0, 1, 4}) EXPECT_EQ(rolling.Loaded(slot, 1), WeightRoll::Outcome::kDone);
  EXPECT_EQ(rolling.Assign(), Rolling::Begun{});
  rolling.trained.insert(3);  // it has fetched the trainer's state meanwhile
  EXPECT_EQ(rolling.Assign(), (Rolling::Begun{{{3, 3}}, {}}));
  EXPECT_TRUE(rolling.roll.NeedsCopy());
  rolling.Publish(1, /*copied=*/true);
  EXPECT_EQ(rolling.Assign(), (Rolling::Begun{{{2, 0}}, {}}));
  EXPECT_EQ(rolling.Loaded(2, 1), WeightRoll::Outcome::kDone);
  EXPECT_FALSE(rolling.roll.NeedsCopy());
}

// The trainer is worker 0 on host a; two slots a host on b, c and d.
TEST(WeightRollTest, HostsFormAChainAndOneSlotOfEachPulls) {
  using Outcome = WeightRoll::Outcome;
  Rolling rolling(8, {0, 0}, 2);
  rolling.max_lag = 1;
  rolling.Publish(1);
  EXPECT_EQ(rolling.Assign(), (Rolling::Begun{{{0, 0}, {1, 0}}, {{2, 0}, {4, 2}, {6, 4}}}))
      << "its own host reads what the trainer published, the others are a chain";
  EXPECT_EQ(rolling.Assign(), Rolling::Begun{}) << "the weights are on their way to every host";
  EXPECT_EQ(rolling.Pulled(2, 1), Outcome::kDone);
  EXPECT_EQ(rolling.Assign(), (Rolling::Begun{{{2, 2}, {3, 2}}, {}})) << "they are on host b";
  EXPECT_EQ(rolling.Loaded(2, 1), Outcome::kDone);
  // A link of the chain breaks. Who was behind it asks whoever has them and sends to nobody else.
  EXPECT_EQ(rolling.Pulled(6, 1, "its source went away"), Outcome::kRetry);
  EXPECT_EQ(rolling.Assign(), (Rolling::Begun{{}, {{6, 0}}}))
      << "host c was tried, host b sends to it, and the trainer to nobody any more";
  EXPECT_EQ(rolling.Pulled(6, 1, "that one, too"), Outcome::kRetry);
  EXPECT_EQ(rolling.Assign(), (Rolling::Begun{{}, {{6, 2}}})) << "host b has been asked for nothing in vain";
  EXPECT_EQ(rolling.Pulled(6, 1, "and that one"), Outcome::kRetry);
  // Nobody is left but the trainer, which is asked thrice.
  EXPECT_EQ(rolling.Assign(), (Rolling::Begun{{}, {{6, 0}}}));
  EXPECT_EQ(rolling.Pulled(6, 1, "a fault of its own"), Outcome::kRetry);
  EXPECT_EQ(rolling.Assign(), (Rolling::Begun{{}, {{6, 0}}}));
  EXPECT_EQ(rolling.Pulled(6, 1, "a fault of its own"), Outcome::kReplace);
}

// A source that is itself behind the one that asks is no source.
TEST(WeightRollTest, ABrokenChainIsNotTiedIntoARing) {
  Rolling rolling(8, {0, 0}, 2);
  rolling.Publish(1);
  EXPECT_EQ(rolling.Assign().pulls, (Rolling::Map{{2, 0}, {4, 2}, {6, 4}}));
  EXPECT_EQ(rolling.Pulled(4, 1, "its source went away"), WeightRoll::Outcome::kRetry);
  EXPECT_EQ(rolling.Assign().pulls, (Rolling::Map{{4, 0}})) << "host d has its weights from here";
}

// A link that is slower than the steps: what comes is finished and served, and the newest is fetched next.
TEST(WeightRollTest, APullIsFinishedWhateverIsPublishedMeanwhileUnlessItIsTooOld) {
  using Outcome = WeightRoll::Outcome;
  Rolling rolling(4, {0, 0}, 2);
  rolling.serving = [](SlotId) { return true; };
  rolling.max_lag = 4;
  rolling.Publish(1);
  EXPECT_EQ(rolling.Assign().pulls, (Rolling::Map{{2, 0}}));
  for (int64_t v = 2; v <= 4; ++v) {
    rolling.Publish(v);
    EXPECT_EQ(rolling.roll.InSight({2}), Version{}) << "work does not wait for it";
    EXPECT_TRUE(rolling.Assign().pulls.empty()) << "version 1 is on its way";
    EXPECT_EQ(rolling.fleet.devices.at({2}).weights().verified, (Version{0, 0})) << "and the engine serves";
  }
  EXPECT_EQ(rolling.Pulled(2, 1), Outcome::kDone);
  rolling.serving = [](SlotId) { return false; };
  const Rolling::Begun begun = rolling.Assign();
  EXPECT_EQ(begun.loads.at(2), 2) << "it is three versions old, and may be served";
  EXPECT_EQ(begun.pulls, (Rolling::Map{{2, 0}}));
  EXPECT_EQ(rolling.pulled, (Version{0, 4}));
  EXPECT_EQ(rolling.roll.InSight({2}), (Version{0, 4})) << "the newest is on its way";
  EXPECT_EQ(rolling.roll.InSight({1}), (Version{0, 4}));
  EXPECT_EQ(rolling.Loaded(2, 1), Outcome::kDone);
  EXPECT_EQ(rolling.fleet.devices.at({2}).weights().verified, (Version{0, 1}));
  // Version 4 gets too old on its way: called off, by the command for the newest.
  for (int64_t v = 5; v <= 8; ++v) {
    rolling.Publish(v);
    EXPECT_EQ(rolling.roll.InSight({2}), (Version{0, 1}))
        << "its host has no newer one, and gets one too late";
    EXPECT_EQ(rolling.roll.InSight({1}), (Version{0, v}));
    EXPECT_TRUE(rolling.Assign().pulls.empty()) << v;
  }
  rolling.Publish(9);
  EXPECT_EQ(rolling.Assign().pulls, (Rolling::Map{{2, 0}}));
  EXPECT_EQ(rolling.pulled, (Version{0, 9}));
  EXPECT_EQ(rolling.Pulled(2, 4), Outcome::kRefused);
  EXPECT_EQ(rolling.Pulled(2, 9), Outcome::kDone);
}

// What one host begins with, the trainer has to keep and send for it alone.
TEST(WeightRollTest, AHostThatIsLateTakesPartInWhatTheOthersAreGetting) {
  Rolling rolling(4, {0, 0}, 2);
  rolling.max_lag = 4;
  rolling.Publish(1);
  EXPECT_EQ(rolling.Assign().pulls, (Rolling::Map{{2, 0}}));
  rolling.Publish(2);
  for (const int64_t i : {4, 5}) {
    rolling.fleet.Add({i}, WorkerKind::kDevice, {{i}});
    rolling.fleet.Place({i}, "c");
    rolling.health.Joined({{i}, {i}}, {});
    rolling.roll.Add({i});
  }
  EXPECT_EQ(rolling.Assign().pulls, (Rolling::Map{{4, 2}}));
  EXPECT_EQ(rolling.pulled, (Version{0, 1}));
  // The first one goes on to the newest, the second one follows it there.
  EXPECT_EQ(rolling.Pulled(2, 1), WeightRoll::Outcome::kDone);
  EXPECT_EQ(rolling.Assign().pulls, (Rolling::Map{{2, 0}}));
  EXPECT_EQ(rolling.pulled, (Version{0, 2}));
  EXPECT_EQ(rolling.Pulled(4, 1), WeightRoll::Outcome::kDone);
  EXPECT_EQ(rolling.Assign().pulls, (Rolling::Map{{4, 2}}));
  EXPECT_EQ(rolling.pulled, (Version{0, 2}));
}

// In a fast run, loading takes longer than a step now and then.
TEST(WeightRollTest, OvertakenByTheNextPublicationIsNoFaultButAWrongDigestIs) {
  Rolling rolling(1, {});
  for (int64_t v = 1; v <= 8; ++v) {
    rolling.Publish(v);
    ASSERT_EQ(rolling.Assign().loads.size(), 1U);
    rolling.Publish(v + 1);
    EXPECT_EQ(rolling.Loaded(0, v, v % 2 == 0 ? "no complete copy" : ""), WeightRoll::Outcome::kOvertaken);
  }
  for (const auto outcome :
       {WeightRoll::Outcome::kRetry, WeightRoll::Outcome::kRetry, WeightRoll::Outcome::kReplace}) {
    ASSERT_EQ(rolling.Assign().loads.size(), 1U);
    rolling.Publish(10);
    EXPECT_EQ(
        rolling.roll.Loaded({On(0, 0).worker, {0}, rolling.fleet.devices.at({0}).weights().loading, 5, ""}),
        outcome);
  }
  ASSERT_EQ(rolling.Assign().loads.size(), 1U);
  EXPECT_EQ(rolling.Loaded(0, 10), WeightRoll::Outcome::kDone);
}

TEST(CheckpointScheduleTest, WritesAtStartEveryNAndAtTheEnd) {
  CheckpointSchedule p({.every_steps = 3, .keep = 2});
  CommittedCheckpoints none, at0;
  at0[0].ckpt = 0;
  at0[0].step = {0};
  EXPECT_TRUE(p.Due({0}, false, none, T(0)));
  EXPECT_FALSE(p.Due({0}, false, at0, T(0)));
  EXPECT_FALSE(p.Due({2}, false, at0, T(0)));
  EXPECT_TRUE(p.Due({3}, false, at0, T(0)));
  EXPECT_TRUE(p.Due({2}, true, at0, T(0)));
}

TEST(CheckpointScheduleTest, FailureIsRetriedAtTheNextStepAndThreeInARowStop) {
  CheckpointSchedule p({.every_steps = 3, .keep = 2});
  CommittedCheckpoints at0;
  at0[0].step = {0};
  EXPECT_FALSE(p.Failed({3}, T(0)));
  EXPECT_FALSE(p.Due({3}, false, at0, T(5)));
  EXPECT_TRUE(p.Due({4}, false, at0, T(5)));
  EXPECT_FALSE(p.Failed({4}, T(5)));
  EXPECT_TRUE(p.Failed({5}, T(6)));
}

TEST(CheckpointScheduleTest, KeepsTheNewestTwo) {
  CheckpointSchedule p({.every_steps = 3, .keep = 1});
  CommittedCheckpoints c;
  for (int64_t i = 0; i < 4; ++i) c[i].step = {i * 3};
  EXPECT_EQ(p.ToDelete(c), (std::vector<int64_t>{0, 1}));
}

TEST(CheckpointScheduleTest, KeepsThoseWhoseEvaluationIsAwaited) {
  CheckpointSchedule p({.every_steps = 3, .keep = 2});
  CommittedCheckpoints c;
  for (int64_t i = 0; i < 5; ++i) c[i].step = {i * 3};
  EXPECT_EQ(p.ToDelete(c, {{3}, {12}}), (std::vector<int64_t>{0, 2}));
}

TEST(BestCheckpointTest, ReadsTheMetricsOfAnEvaluation) {
  record::EvalResult r;
  EXPECT_FALSE(EvalValue(r, "eval/reward/mean")) << "no answer was graded";
  r.total = 8, r.correct = 2, r.mean = 0.75;
  r.rewards = {{"format", 0.5, 0}, {"return", -3, 0}};
  EXPECT_EQ(EvalValue(r, "eval/reward/mean"), 0.75);
  EXPECT_EQ(EvalValue(r, "eval/accuracy"), 0.25);
  EXPECT_EQ(EvalValue(r, "eval/reward/format/mean"), 0.5);
  EXPECT_EQ(EvalValue(r, "eval/return/mean"), -3);
  for (const char* other :
       {"eval/reward/other/mean", "eval/reward//mean", "eval/reward/mean/mean", "critic/score/mean", ""})
    EXPECT_FALSE(EvalValue(r, other)) << other;
  r.graded = 1;
  EXPECT_FALSE(EvalValue(r, "eval/accuracy")) << "of a graded reward there is none";
  r.lost = 9;
  EXPECT_FALSE(EvalValue(r, "eval/reward/mean")) << "most answers are lost";
}

TEST(BestCheckpointTest, IsTheEarliestOfEqualOnesThatHadACheckpoint) {
  std::map<StepNumber, record::EvalResult> evals;
  for (const auto& [step, mean] :
       std::vector<std::pair<int64_t, double>>{{0, 0.1}, {2, 0.9}, {4, 0.5}, {6, 0.5}}) {
    evals[{step}].total = 4;
    evals[{step}].mean = mean;
  }
  EXPECT_FALSE(FindBest(evals, {}, {}, "eval/reward/mean"));
  const auto best = FindBest(evals, {}, {{0}, {4}, {6}}, "eval/reward/mean");
  ASSERT_TRUE(best);
  EXPECT_EQ(best->step, StepNumber{4});
  EXPECT_EQ(best->value, 0.5);
}

TEST(BestCheckpointTest, OfRowsThatTheTrainerJudgesALossIsBestWhereItIsLeast) {
  const HeldOutFigures figures = {{{0}, {{"eval/loss", 0.7}, {"eval/dpo/accuracy", 0.5}}},
                                  {{2}, {{"eval/loss", 0.4}, {"eval/dpo/accuracy", 0.5}}},
                                  {{4}, {{"eval/loss", 0.2}, {"eval/dpo/accuracy", 0.9}}},
                                  {{6}, {{"eval/loss", std::nan("")}}}};
  EXPECT_EQ(FindBest({}, figures, {{0}, {2}, {6}}, "eval/loss"), (BestCheckpoint{{2}, 0.4}));
  EXPECT_EQ(FindBest({}, figures, {{0}, {2}, {4}}, "eval/dpo/accuracy"), (BestCheckpoint{{4}, 0.9}));
  EXPECT_EQ(FindBest({}, figures, {{0}, {2}}, "eval/dpo/accuracy"), (BestCheckpoint{{0}, 0.5}));
  EXPECT_FALSE(FindBest({}, figures, {{0}}, "eval/dpo/margin"));
}

TEST(WaitsTest, WhatHasNotBegunHasAllOfItsTime) {
  Waits waits;
  const WorkerRef queued{{0}, {1}}, other{{1}, {1}};
  waits.Begin({WaitKind::kTransition, 0}, {queued, T(0), T(10), "release slot=0"});
  waits.Begin({WaitKind::kTransition, 1}, {other, T(0), T(10), "release slot=1"});
  waits.BeginAnew(queued, T(9));
  waits.BeginAnew({{0}, {2}}, T(9));  // another life of it
  EXPECT_EQ(waits.Find({WaitKind::kTransition, 0})->deadline, T(19));
  ASSERT_EQ(waits.Expired(T(11)).size(), 1U);
  EXPECT_EQ(waits.Expired(T(11)).front().id, 1);
}

TEST(WaitsTest, WatchdogNamesTheOldestWaitAndRespectsLongerDeadlines) {
  Waits waits;
  Watchdog dog(FromSeconds(30));
  dog.Progress(T(0));
  waits.Begin({WaitKind::kTrain, 0}, {{{0}, {7}}, T(1), T(600), "step=57"});
  EXPECT_FALSE(dog.Stalled(waits, T(100)));
  EXPECT_TRUE(dog.Stalled(waits, T(601)));
  const ControllerOptions two{.fleet = {.slots = 2}};
  const auto name_of = [&](const WorkerRef& who) { return two.NameOf(who); };
  EXPECT_EQ(waits.Describe(T(601), name_of), "op=train waiting_for=device-0/inc7 for_s=600.0 what=step=57");
  EXPECT_EQ(two.NameOf(WorkerId{2}), "reward-0");
  EXPECT_EQ(waits.Expired(T(601)).size(), 1U);
}

TEST(ShutdownTest, OneBudgetCountsEverything) {
  const Shutdown s("SIGTERM", T(100));
  EXPECT_EQ(s.why(), "SIGTERM");
  EXPECT_TRUE(s.MayFinishStep(T(105)));
  EXPECT_FALSE(s.MayFinishStep(T(112)));
  EXPECT_TRUE(s.MayCheckpoint(T(112)));
  EXPECT_FALSE(s.MayCheckpoint(T(118)));
}

TEST(JournalRecordsTest, EveryKindHasItsNameAndOnlyStartAndEndAreLazy) {
  EXPECT_STREQ(RecordName(record::Config{}), "CONFIG");
  EXPECT_STREQ(RecordName(record::StepCommit{}), "STEP_COMMIT");
  EXPECT_STREQ(RecordName(record::TransitionBegin{}), "T_BEGIN");
  EXPECT_STREQ(RecordName(record::SlotLost{}), "LOST");
  EXPECT_STREQ(RecordName(record::Restore{}), "RESTORE");
  EXPECT_STREQ(RecordName(record::EvalResult{}), "EVAL_RESULT");
  EXPECT_TRUE(IsLazy(record::Start{}));
  EXPECT_TRUE(IsLazy(record::End{}));
  EXPECT_FALSE(IsLazy(record::Enq{}));
  EXPECT_STREQ(Name(DropReason::kLostOnRestore), "lost_on_restore");
}

// A worker that outlived the controller may still be at an answer of the last life's evaluation.
TEST(EvaluationTest, AnEvaluationOfALaterLifeHasAnotherAttempt) {
  Evaluation first(3), second(3);
  for (Evaluation* e : {&first, &second}) e->Plan({{0}, {0, 0}});
  ASSERT_TRUE(first.Begin(Lsn{10}));
  ASSERT_TRUE(second.Begin(Lsn{11}));
  EXPECT_GT(second.attempt(), first.attempt());
  const int32_t before = second.attempt();
  second.Cancel();
  second.Plan({{0}, {0, 0}});
  ASSERT_TRUE(second.Begin(Lsn{11}));
  EXPECT_GT(second.attempt(), before);
}

// A graded reward: the share above one half says little, so what is measured is kept.
TEST(EvaluationTest, MeasuresTheWholeRewardAndEachOfIt) {
  Evaluation e(4);
  e.Plan({{3}, {0, 3}});
  ASSERT_TRUE(e.Begin(Lsn{10}));
  e.Graded(e.Tid(2), 1.1, {{"close", 1}, {"format", 1}});
  e.Graded(e.Tid(0), 0.4, {{"close", 0.4}, {"format", 0}});
  e.Lost(e.Tid(1), "judge: connection refused");
  e.Lost(e.Tid(2), "it has its verdict");
  EXPECT_FALSE(e.Finished());
  e.Graded(e.Tid(3), 0.7, {{"close", 0.6}, {"format", 1}});
  ASSERT_TRUE(e.Finished());
  const record::EvalResult r = e.Take();
  EXPECT_EQ(r.lost, 1);
  EXPECT_EQ(r.why_lost, "judge: connection refused");
  EXPECT_EQ(r.step.value, 3);
  EXPECT_EQ(r.total, 3);
  EXPECT_EQ(r.correct, 2);
  EXPECT_EQ(r.graded, 1);
  EXPECT_NEAR(r.mean, 2.2 / 3, 1e-12);
  EXPECT_NEAR(r.deviation, 0.35118845842842466, 1e-12);
  ASSERT_EQ(r.rewards.size(), 2U);
  EXPECT_EQ(r.rewards[0].name, "close");
  EXPECT_NEAR(r.rewards[0].mean, 2.0 / 3, 1e-12);
  EXPECT_NEAR(r.rewards[1].mean, 2.0 / 3, 1e-12);
}

}  // namespace
}  // namespace tidepool::scheduler
