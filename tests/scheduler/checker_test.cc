// The checker accepts real journals and names the predicate that a planted mistake violates.

#include "scheduler/checker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "core/base/replay_digest.h"
#include "scheduler/length_fairness.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

using Journal = std::vector<JournalEntry>;

// A run with lag, a killed actor (steps undone, a RESTORE) and deleted checkpoints.
const Journal& GoodJournal() {
  static const Journal journal = [] {
    ControllerOptions job = SmallJob(PlacementKind::kSplit, 3);
    job.batch.max_lag_versions = 1;
    job.checkpoint.every_steps = 2;
    job.steps = 8;
    SimCluster cluster({.controller = job, .seed = 7, .faults = {}, .deterministic_training = false});
    int64_t steps = 0;
    cluster.on_command = [&](const Command& c) {
      if (std::holds_alternative<command::Train>(c) && ++steps == 4) cluster.KillWorker({0});
    };
    EXPECT_EQ(cluster.Run().code, 0);
    return cluster.journal();
  }();
  return journal;
}

template <typename R>
size_t Find(const Journal& j, int64_t nth = 0, const std::function<bool(const R&)>& which = nullptr) {
  for (size_t i = 0; i < j.size(); ++i) {
    const auto* r = std::get_if<R>(&j[i].record);
    if (r != nullptr && (!which || which(*r)) && nth-- == 0) return i;
  }
  ADD_FAILURE() << "no such record";
  return 0;
}

// Records that were taken out or put in move those behind them, and the cuts that name their places.
void Renumber(Journal& j) {
  for (JournalEntry& e : j) {
    auto* c = std::get_if<record::CheckpointCommit>(&e.record);
    if (c == nullptr) continue;
    const auto at = std::find_if(j.begin(), j.end(), [&](const JournalEntry& x) { return x.lsn >= c->cut; });
    c->cut = {at - j.begin()};
  }
  for (size_t i = 0; i < j.size(); ++i) j[i].lsn = {static_cast<int64_t>(i)};
}
void Insert(Journal& j, size_t at, JournalRecord r) {
  JournalEntry e = j[at];
  e.record = std::move(r);
  j.insert(j.begin() + static_cast<std::ptrdiff_t>(at), e);
}
void Erase(Journal& j, size_t at) { j.erase(j.begin() + static_cast<std::ptrdiff_t>(at)); }

std::string Predicate(const std::function<void(Journal&)>& plant) {
  Journal j = GoodJournal();
  plant(j);
  Renumber(j);
  const CheckResult r = Check(j);
  return r.ok ? "ok" : r.predicate;
}

TEST(CheckerTest, AcceptsARunWithUndoneSteps) {
  const CheckResult r = Check(GoodJournal());
  EXPECT_TRUE(r.ok) << r.predicate << " " << r.why;
  EXPECT_EQ(r.open, 0);
  EXPECT_EQ(r.issued, r.trained + r.dropped);
  Find<record::Restore>(GoodJournal());
}

TEST(CheckerTest, SamplesAreNeitherLostNorTrainedTwice) {
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::Enq>(j, 5);
              Insert(j, i, j[i].record);
            }),
            "Q2");
  EXPECT_EQ(Predicate([](Journal& j) { Erase(j, Find<record::Enq>(j, 5)); }), "Q1");
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::StepCommit>(j, 1);
              Insert(j, i + 1,
                     record::Drop{std::get<record::StepCommit>(j[i].record).rows[0].tid, DropReason::kStale});
            }),
            "Q2");
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::StepCommit>(j, 1);
              const auto& old = std::get<record::StepCommit>(j[Find<record::StepCommit>(j, 0)].record);
              std::get<record::StepCommit>(j[i].record).rows[0] = old.rows[0];
            }),
            "Q2");
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::Lease>(j, 2);
              std::get<record::Lease>(j[i].record).tids.push_back({999, 0, 0});
            }),
            "Q1");
  // The record that ends the run comes before the last step's commit.
  EXPECT_EQ(Predicate([](Journal& j) {
              Insert(j, Find<record::StepCommit>(j, 1), record::Unlease{1, ""});
            }),
            "Q1");
}

TEST(CheckerTest, AgeIsCountedFromTheTokensAndBounded) {
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::StepCommit>(j, 6);
              auto& c = std::get<record::StepCommit>(j[i].record);
              const SampleId tid = c.rows[0].tid;
              c.rows[0].oldest = {0, 0};
              for (auto& e : j) {
                if (auto* q = std::get_if<record::Enq>(&e.record); q != nullptr && q->tid == tid)
                  q->wv_min = {0, 0};
              }
            }),
            "Q4");
  EXPECT_EQ(Predicate([](Journal& j) {
              std::get<record::StepCommit>(j[Find<record::StepCommit>(j, 4)].record).rows[0].oldest = {0, 1};
            }),
            "Q4");
  EXPECT_EQ(Predicate([](Journal& j) { std::get<record::Config>(j[0].record)->max_lag_versions = 0; }), "Q5");
}

// The journal of a trainer with a replay store, which has taken in what every step trained.
void TakeIn(Journal& j) {
  std::map<int64_t, uint64_t> by_step = {{0, kEmptyReplay}};
  for (JournalEntry& e : j) {
    auto* commit = std::get_if<record::StepCommit>(&e.record);
    if (commit == nullptr) continue;
    std::set<SampleId> rows;
    for (const record::TrainedRow& row : commit->rows) rows.insert(row.tid);
    uint64_t taken = by_step.at(commit->step.value - 1);
    for (const SampleId& tid : rows) taken = ReplayDigest(taken, tid);
    by_step[commit->step.value] = commit->replay = taken;
  }
}

TEST(CheckerTest, AReplayStoreTakesInWhatIsTrainedOnce) {
  EXPECT_EQ(Predicate(TakeIn), "ok");  // with undone steps
  const auto commit = [](Journal& j, int64_t nth) -> record::StepCommit& {
    return std::get<record::StepCommit>(j[Find<record::StepCommit>(j, nth)].record);
  };
  EXPECT_EQ(Predicate([&](Journal& j) {
              TakeIn(j);
              record::StepCommit& c = commit(j, 2);
              c.replay = ReplayDigest(c.replay, c.rows[0].tid);  // a row twice
            }),
            "Q14");
  EXPECT_EQ(Predicate([&](Journal& j) {
              TakeIn(j);
              commit(j, 2).replay = commit(j, 1).replay;  // nothing entered
            }),
            "Q14");
  EXPECT_EQ(Predicate([&](Journal& j) {
              TakeIn(j);
              commit(j, 2).replay = 0;  // it was lost
            }),
            "Q14");
}

// The journal with one row of the nth step changed to be of several versions; `change` gets what its ENQ and
// its STEP_COMMIT say, and the version that the step trained.
void ChangeRow(Journal& j, int64_t nth,
               const std::function<void(record::Enq&, record::TrainedRow&, const Version&)>& change) {
  const size_t at = Find<record::StepCommit>(j, nth);
  auto& commit = std::get<record::StepCommit>(j[at].record);
  Version trained;
  for (size_t i = 0; i < at; ++i) {
    if (const auto* b = std::get_if<record::StepBegin>(&j[i].record); b != nullptr && b->step == commit.step)
      trained = b->v;
  }
  record::TrainedRow& row = commit.rows[0];
  const size_t enq = Find<record::Enq>(j, 0, [&](const record::Enq& e) { return e.tid == row.tid; });
  change(std::get<record::Enq>(j[enq].record), row, trained);
}

TEST(CheckerTest, MaskedTokensAreThoseThatAreTooOld) {
  int64_t last = -1;
  for (const JournalEntry& e : GoodJournal())
    last += std::holds_alternative<record::StepCommit>(e.record) ? 1 : 0;
  // A row of the last step, of two versions: one that is two behind, and the one that its ENQ had as the
  // newest.
  const auto with = [&](bool newest, int64_t masked) {
    return Predicate([&](Journal& j) {
      std::get<record::Config>(j[0].record)->on_stale = "mask";
      ChangeRow(j, last, [&](record::Enq& e, record::TrainedRow& row, const Version& v) {
        e.wv_min = {v.lineage, v.number - 2};
        e.versions = {{e.wv_min, 3}, {e.wv_max, 2}};
        row.oldest = newest ? e.wv_max : e.wv_min;
        if (masked == 5) row.oldest = Version{};
        row.masked = masked;
      });
    });
  };
  EXPECT_EQ(with(true, 3), "ok");
  EXPECT_EQ(with(false, 0), "Q4") << "trained with tokens that are two versions old";
  EXPECT_EQ(with(true, 0), "Q4") << "called younger, with nothing masked";
  EXPECT_EQ(with(true, 5), "Q4") << "tokens that may be trained are masked";
  EXPECT_EQ(Predicate([&](Journal& j) {
              ChangeRow(j, last,
                        [](record::Enq&, record::TrainedRow& row, const Version&) { row.masked = 1; });
            }),
            "Q4")
      << "masked where on_stale does not say so";
}

// After a restore a version of the undone branch is further away than its number says.
TEST(CheckerTest, MaskedTokensAreCountedThroughTheCommonAncestor) {
  const auto with = [](bool by_number) {
    return Predicate([&](Journal& j) {
      std::get<record::Config>(j[0].record)->on_stale = "mask";
      const auto& restore = std::get<record::Restore>(j[Find<record::Restore>(j)].record);
      const Version undone{restore.old_lineage, restore.step.value + 1};
      size_t published = Find<record::Publish>(j, 0, [&](const record::Publish& p) { return p.v == undone; });
      // A row of the second step of the new branch that was enqueued when the undone version was there.
      const size_t at = Find<record::StepCommit>(j, 0, [&](const record::StepCommit& c) {
        return c.v == Version{restore.new_lineage, restore.step.value + 2};
      });
      for (record::TrainedRow& row : std::get<record::StepCommit>(j[at].record).rows) {
        const size_t enq = Find<record::Enq>(j, 0, [&](const record::Enq& e) { return e.tid == row.tid; });
        auto& e = std::get<record::Enq>(j[enq].record);
        if (enq < published || e.wv_max.lineage != restore.new_lineage) continue;
        e.wv_min = undone;
        e.versions = {{undone, 4}, {e.wv_max, 1}};
        row.oldest = by_number ? undone : e.wv_max;
        row.masked = by_number ? 0 : 4;
        return;
      }
      ADD_FAILURE() << "no such row";
    });
  };
  EXPECT_EQ(with(false), "ok");
  EXPECT_EQ(with(true), "Q4") << "by its number it is as new as what is trained";
}

TEST(CheckerTest, WhatIsTrainedIsWhatItsEnqNames) {
  using Change = std::function<void(record::Enq&, record::TrainedRow&, const Version&)>;
  const auto with = [](const Change& change) {
    return Predicate([&](Journal& j) { ChangeRow(j, 1, change); });
  };
  EXPECT_EQ(with([](record::Enq&, record::TrainedRow& row, const Version&) { row.digest ^= 1; }), "Q12");
  EXPECT_EQ(with([](record::Enq&, record::TrainedRow& row, const Version&) { row.digest = 0; }), "Q12")
      << "the trainer did not say";
  EXPECT_EQ(with([](record::Enq& e, record::TrainedRow&, const Version&) { e.digest += 7; }), "Q12")
      << "another record lies in its place";
  // Runs of programs that did not know it are judged by all else.
  EXPECT_EQ(Predicate([](Journal& j) {
              std::get<record::Config>(j[0].record)->row_digests = 0;
              for (JournalEntry& e : j) {
                if (auto* c = std::get_if<record::StepCommit>(&e.record); c != nullptr) {
                  for (record::TrainedRow& row : c->rows) row.digest = 0;
                }
              }
            }),
            "ok");
}

TEST(CheckerTest, OnlyGradedSamplesThatEndedAreTrained) {
  EXPECT_EQ(Predicate([](Journal& j) {
              std::get<record::End>(j[Find<record::End>(j, 3)].record).status = EndStatus::kError;
            }),
            "Q6");
  EXPECT_EQ(Predicate([](Journal& j) {
              std::get<record::Graded>(j[Find<record::Graded>(j, 3)].record).outcome = GradeOutcome::kInfra;
            }),
            "Q1");
}

TEST(CheckerTest, GroupsStayWholeAndRowsAreNotSkipped) {
  EXPECT_EQ(Predicate([](Journal& j) {
              auto& lease = std::get<record::Lease>(j[Find<record::Lease>(j, 0)].record);
              auto& commit = std::get<record::StepCommit>(j[Find<record::StepCommit>(j, 0)].record);
              lease.tids.pop_back();
              commit.rows.pop_back();
            }),
            "Q7");
  EXPECT_EQ(Predicate([](Journal& j) {
              for (auto& e : j) {  // everything after the first group moves up
                if (auto* i = std::get_if<record::Issue>(&e.record); i != nullptr && i->tid.ordinal > 0)
                  i->tid.ordinal += 50;
              }
            }),
            "Q9");
  EXPECT_EQ(Predicate([](Journal& j) {
              for (auto& e : j) {
                if (auto* i = std::get_if<record::Issue>(&e.record); i != nullptr && i->tid.ordinal == 3)
                  i->tid.issue = 1;
              }
            }),
            "Q9");
}

TEST(CheckerTest, FencedWorkersAreNotHeard) {
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::Fence>(j);
              const WorkerRef ref = std::get<record::Fence>(j[i].record).worker;
              Insert(j, i + 1, record::Loaded{ref, {0, 0}, 0});
            }),
            "Q8");
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::Graded>(j, 2);
              const WorkerRef ref = std::get<record::Graded>(j[i].record).grader;
              Insert(j, i, record::Fence{ref});
            }),
            "Q8");
}

TEST(CheckerTest, SlotsChangeHandsByWholeTransactions) {
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::Grant>(j, 0);
              Insert(j, i + 1, j[i].record);
            }),
            "G1");
  EXPECT_EQ(
      Predicate([](Journal& j) { std::get<record::Grant>(j[Find<record::Grant>(j, 1)].record).epoch = {0}; }),
      "G2");
  EXPECT_EQ(Predicate([](Journal& j) {
              std::get<record::TransitionBegin>(j[Find<record::TransitionBegin>(j, 0)].record).slots[0].from =
                  Role::kActor;
            }),
            "G3");
  EXPECT_EQ(Predicate([](Journal& j) { Erase(j, Find<record::TransitionCommit>(j, 0)); }), "G4");
  EXPECT_EQ(Predicate([](Journal& j) { Erase(j, Find<record::TransitionDone>(j, 0)); }), "G4");
  EXPECT_EQ(Predicate([](Journal& j) {
              const auto rollout = [](const record::Grant& g) { return g.role == Role::kRollout; };
              std::get<record::Grant>(j[Find<record::Grant>(j, 0, rollout)].record).role = Role::kActor;
            }),
            "G4")
      << "it was to be rollout";
  EXPECT_EQ(Predicate([](Journal& j) {
              const auto rollout = [](const record::Grant& g) { return g.role == Role::kRollout; };
              auto& grant = std::get<record::Grant>(j[Find<record::Grant>(j, 0, rollout)].record);
              grant.role = Role::kActor;
              for (JournalEntry& e : j) {
                auto* begin = std::get_if<record::TransitionBegin>(&e.record);
                if (begin == nullptr) continue;
                for (record::SlotPlan& p : begin->slots) {
                  if (p.slot == grant.slot && p.epoch == grant.epoch) p.to = Role::kActor;
                }
              }
            }),
            "G8");
}

TEST(CheckerTest, ColocatedGrantNeedsAProvenRelease) {
  SimCluster cluster({.controller = SmallJob(PlacementKind::kColocated), .seed = 7, .faults = {}});
  ASSERT_EQ(cluster.Run().code, 0);
  Journal j = cluster.journal();
  ASSERT_TRUE(Check(j).ok);
  Erase(j, Find<record::Release>(j, 2));
  Renumber(j);
  EXPECT_EQ(Check(j).predicate, "G5");
}

TEST(CheckerTest, OnlyVerifiedWeightsServe) {
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::Publish>(j, 1);
              Insert(j, i, j[i].record);
            }),
            "W1");
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::Loaded>(j, 1);
              Insert(j, i, j[i].record);
            }),
            "W2");
  EXPECT_EQ(Predicate([](Journal& j) { Erase(j, Find<record::Loaded>(j, 0)); }), "W3");
  EXPECT_EQ(Predicate([](Journal& j) {
              std::get<record::Loaded>(j[Find<record::Loaded>(j, 1)].record).digest ^= 1;
            }),
            "W3");
  EXPECT_EQ(Predicate([](Journal& j) { Erase(j, Find<record::Admit>(j, 0)); }), "W3");
  EXPECT_EQ(Predicate([](Journal& j) {
              std::get<record::Publish>(j[Find<record::Publish>(j, 2)].record).digest ^= 1;
            }),
            "W5");
}

TEST(CheckerTest, AllShardsOfAnEngineReportTheVersionThatItIsAdmittedAt) {
  EXPECT_EQ(Predicate([](Journal& j) {
              const auto second = [](const record::Admit& a) { return a.v == Version{0, 1}; };
              std::get<record::Admit>(j[Find<record::Admit>(j, 0, second)].record).v = {0, 0};
            }),
            "W4");
}

// Time of a made-up journal.
void Put(Journal& j, double seconds, JournalRecord r) {
  j.push_back({.lsn = {static_cast<int64_t>(j.size())},
               .ctl_epoch = 1,
               .mono_ns = static_cast<uint64_t>(seconds * 1e9),
               .record = std::move(r)});
}

TEST(CheckerTest, EveryEngineFollowsTheNewestVersion) {
  const auto stall = [](Journal& j, int64_t ms) {
    for (JournalEntry& e : j) {
      if (auto* c = std::get_if<record::Config>(&e.record)) (*c)->stall_ms = ms;
    }
  };
  EXPECT_EQ(Predicate([&](Journal& j) { stall(j, 1500); }), "ok");
  EXPECT_EQ(Predicate([&](Journal& j) {  // one that stays at its first version, and gets no work
              stall(j, 1500);
              const WorkerRef idle = std::get<record::Admit>(j[Find<record::Admit>(j, 0)].record).worker;
              int64_t admitted = 0;
              std::erase_if(j, [&](const JournalEntry& e) {
                const auto* a = std::get_if<record::Admit>(&e.record);
                const auto* l = std::get_if<record::Loaded>(&e.record);
                const auto* s = std::get_if<record::Start>(&e.record);
                return (a != nullptr && a->worker == idle && admitted++ > 0) ||
                       (l != nullptr && l->worker == idle && admitted > 0) ||
                       (s != nullptr && s->worker == idle);
              });
            }),
            "W7");
}

TEST(CheckerTest, RolloutIsNotBelowItsFloorWhileHealthySlotsAreFree) {
  const auto check = [](bool granted, uint32_t lives) {
    Journal j;
    Put(j, 0,
        record::Config{{.job = "rl",
                        .groups_per_step = 1,
                        .group_size = 1,
                        .slots = 2,
                        .rollout_floor = 1,
                        .stall_ms = 1000}});
    Put(j, 0, record::Join{{{0}, {0}}, "w0", Role::kNone});
    Put(j, 0.1, record::Join{{{1}, {1}}, "w1", Role::kNone});
    if (granted)
      Put(j, 0.5, record::TransitionBegin{{0}, {{{1}, Role::kNone, Role::kRollout, {1}}}, 5000, "join", 0});
    Put(j, 2, record::Fault{"test", "", {}, "time passes"});
    j.back().ctl_epoch = lives;
    return Check(j).predicate;
  };
  EXPECT_EQ(check(false, 1), "G6");
  EXPECT_EQ(check(true, 1), "");
  EXPECT_EQ(check(false, 2), "") << "another life has another clock";
}

TEST(CheckerTest, NothingIsGivenOutBeforeTheLeastSlotsAreThere) {
  const auto check = [](int64_t min_slots, double seconds) {
    Journal j;
    Put(j, 0,
        record::Config{{.job = "rl",
                        .groups_per_step = 1,
                        .group_size = 1,
                        .slots = 3,
                        .rollout_floor = 1,
                        .stall_ms = 1000,
                        .min_slots = min_slots}});
    Put(j, 0, record::Join{{{0}, {0}}, "w0", Role::kNone});
    Put(j, 0.1, record::Join{{{1}, {1}}, "w1", Role::kNone});
    Put(j, seconds, record::TransitionBegin{{0}, {{{1}, Role::kNone, Role::kRollout, {1}}}, 5000, "join", 0});
    return Check(j).predicate;
  };
  EXPECT_EQ(check(3, 0.2), "G9");
  EXPECT_EQ(check(2, 0.2), "");
  EXPECT_EQ(check(2, 20), "") << "while it waits nobody has to generate";
  EXPECT_EQ(check(0, 20), "G6");
}

TEST(CheckerTest, SlotsThatAreNotThereHoldNothing) {
  EXPECT_EQ(
      Predicate([](Journal& j) { std::get<record::Grant>(j[Find<record::Grant>(j, 0)].record).slot = {3}; }),
      "G3");
  EXPECT_EQ(
      Predicate([](Journal& j) {
        std::get<record::TransitionBegin>(j[Find<record::TransitionBegin>(j, 0)].record).slots[0].slot = {-1};
      }),
      "G3");
}

// A run that goes on with fewer slots loses those that it had more of.
TEST(CheckerTest, SlotsOfAnEarlierConfigAreLostAndNoOthers) {
  const auto check = [](SlotId lost) {
    Journal j;
    const auto config = [](int64_t slots) {
      return record::Config{{.job = "rl",
                             .groups_per_step = 1,
                             .group_size = 1,
                             .slots = slots,
                             .rollout_floor = 1,
                             .stall_ms = 1000}};
    };
    Put(j, 0, config(3));
    Put(j, 0, record::Join{{{0}, {0}}, "w0", Role::kNone, {{0}, {1}, {2}}});
    Put(j, 0.1, record::TransitionBegin{{0}, {{{2}, Role::kNone, Role::kRollout, {1}}}, 5000, "join", 0});
    Put(j, 0.2, config(2));
    Put(j, 0.2, record::SlotLost{lost, "controller restarted"});
    return Check(j).predicate;
  };
  EXPECT_EQ(check({2}), "");
  EXPECT_EQ(check({3}), "G3");
}

TEST(CheckerTest, ATransitionIsDoneWhenAllOfItsSlotsHaveTheirNewRole) {
  EXPECT_EQ(Predicate([](Journal& j) { Erase(j, Find<record::Grant>(j, 0)); }), "G4");
}

TEST(CheckerTest, ASlotIsNotTakenFromRolloutTwiceWithinThePromisedTime) {
  SimCluster cluster({.controller = SmallJob(PlacementKind::kColocated), .seed = 7, .faults = {}});
  ASSERT_EQ(cluster.Run().code, 0);
  Journal j = cluster.journal();
  const auto taken = [](const record::TransitionBegin& t) { return t.slots[0].from == Role::kRollout; };
  std::get<record::TransitionBegin>(j[Find<record::TransitionBegin>(j, 1, taken)].record).dwell_ms = 3600000;
  EXPECT_EQ(Check(j).predicate, "G7");
}

TEST(CheckerTest, StepsAndReleasesOfFencedWorkersDoNotCount) {
  EXPECT_EQ(Predicate([](Journal& j) {
              const size_t i = Find<record::StepCommit>(j, 1);
              const WorkerRef holder = std::get<record::Lease>(j[Find<record::Lease>(j, 1)].record).holder;
              Insert(j, i, record::Fence{holder});
            }),
            "Q8");
  SimCluster cluster({.controller = SmallJob(PlacementKind::kColocated), .seed = 7, .faults = {}});
  ASSERT_EQ(cluster.Run().code, 0);
  Journal j = cluster.journal();
  Insert(j, Find<record::Release>(j, 0),
         record::Fence{std::get<record::Grant>(j[Find<record::Grant>(j, 0)].record).worker});
  Renumber(j);
  EXPECT_EQ(Check(j).predicate, "Q8");
}

TEST(CheckerTest, NothingIsLostOnARestoreThatWasNot) {
  EXPECT_EQ(
      Predicate([](Journal& j) {
        const size_t i = Find<record::Start>(j, 3);
        Insert(j, i + 1, record::Drop{std::get<record::Start>(j[i].record).tid, DropReason::kLostOnRestore});
      }),
      "Q3");
}

TEST(CheckerTest, TokensHaveAVersion) {
  EXPECT_EQ(
      Predicate([](Journal& j) { std::get<record::Enq>(j[Find<record::Enq>(j, 2)].record).wv_min = {}; }),
      "W6");
}

TEST(CheckerTest, RetiredIsWhoFailedOftenEnough) {
  const auto retired = [](int losses) {
    return Predicate([losses](Journal& j) {
      const size_t i = Find<record::Lease>(j, 1);
      for (int k = 0; k < losses; ++k) Insert(j, i, record::Fault{"worker_lost", "w9", {}, "killed"});
      Insert(j, i + static_cast<size_t>(losses), record::Fault{"retired", "w9", {}, ""});
    });
  };
  EXPECT_EQ(retired(4), "L5");
  EXPECT_EQ(retired(5), "ok");
}

TEST(CheckerTest, NoMoreStepsAreLostThanLieBetweenTwoCheckpoints) {
  EXPECT_EQ(
      Predicate(
          [](Journal& j) {  // the checkpoint that was restored was never made: the one before it is taken
            auto& restore = std::get<record::Restore>(j[Find<record::Restore>(j)].record);
            const int64_t gone = restore.ckpt;
            restore.ckpt = 0;
            restore.step = {0};
            std::erase_if(j, [&](const JournalEntry& e) {
              const auto* b = std::get_if<record::CheckpointBegin>(&e.record);
              const auto* c = std::get_if<record::CheckpointCommit>(&e.record);
              return (b != nullptr && b->ckpt == gone) || (c != nullptr && c->ckpt == gone);
            });
          }),
      "C6");
  EXPECT_EQ(
      Predicate([](Journal& j) { std::get<record::Restore>(j[Find<record::Restore>(j)].record).ckpt = -1; }),
      "ok")
      << "one step behind";
}

TEST(CheckerTest, WeightsThatAreNotFiniteAreNoCheckpoint) {
  EXPECT_EQ(
      Predicate([](Journal& j) {
        std::get<record::CheckpointCommit>(j[Find<record::CheckpointCommit>(j, 1)].record).weights_digest = 0;
      }),
      "C7");
}

TEST(CheckerTest, CheckpointsAreCommittedBeforeTheyAreRestored) {
  const auto committed = [](const Journal& j) {
    return std::get<record::Restore>(j[Find<record::Restore>(j)].record).ckpt;
  };
  EXPECT_EQ(
      Predicate([](Journal& j) { std::get<record::Restore>(j[Find<record::Restore>(j)].record).ckpt = 40; }),
      "C1");
  EXPECT_EQ(
      Predicate([](Journal& j) { std::get<record::Restore>(j[Find<record::Restore>(j)].record).step = {1}; }),
      "C1");
  EXPECT_EQ(Predicate([](Journal& j) {
              auto& r = std::get<record::Restore>(j[Find<record::Restore>(j)].record);
              r.ckpt = 0;
              r.step = {0};
            }),
            "C5");
  EXPECT_EQ(Predicate([&](Journal& j) {
              Insert(j, Find<record::Restore>(j), record::CheckpointDelete{committed(j)});
            }),
            "C2");
  // Of a run that is done the last one may go as well: `tidepool prune --final-only`.
  const auto last = [](const Journal& j) {
    int64_t ckpt = -1;
    for (const JournalEntry& e : j) {
      if (const auto* c = std::get_if<record::CheckpointCommit>(&e.record)) ckpt = c->ckpt;
    }
    return ckpt;
  };
  EXPECT_EQ(Predicate([&](Journal& j) { Insert(j, j.size() - 1, record::CheckpointDelete{last(j)}); }), "C2")
      << "before END_RUN";
  EXPECT_EQ(Predicate([&](Journal& j) {
              JournalEntry e = j.back();
              e.record = record::CheckpointDelete{last(j)};
              j.push_back(e);
            }),
            "ok");
  EXPECT_EQ(Predicate([](Journal& j) { Erase(j, Find<record::CheckpointBegin>(j, 1)); }), "C8");
  EXPECT_EQ(Predicate([](Journal& j) { Erase(j, Find<record::CheckpointCommit>(j, 0)); }), "C8");
  EXPECT_EQ(
      Predicate([](Journal& j) {
        std::get<record::CheckpointCommit>(j[Find<record::CheckpointCommit>(j, 1)].record).weights_digest ^=
            1;
      }),
      "C3");
}

TEST(CheckerTest, PinnedSamplesHaveOneVersion) {
  EXPECT_EQ(Predicate([](Journal& j) {
              for (JournalEntry& e : j) {
                if (auto* c = std::get_if<record::Config>(&e.record)) (*c)->pin_version = 1;
              }
            }),
            "W6")
      << "this run let samples cross versions";
}

TEST(CheckerTest, DropsThatPreferALengthAreSeen) {
  LengthFairness even, favoured, few;
  for (int64_t i = 0; i < 20000; ++i) {
    const int64_t length = 1 + i * 37 % 1000;
    (i % 10 == 0 ? even.Dropped(length) : even.Trained(length));
    (length > 900 ? favoured.Dropped(length) : favoured.Trained(length));
    if (i < 400)
      few.Dropped(999);
    else
      few.Trained(length % 500);
  }
  for (LengthFairness* f : {&even, &favoured, &few}) f->Step();
  EXPECT_FALSE(even.Unfair());
  EXPECT_TRUE(favoured.Unfair());
  EXPECT_FALSE(few.Unfair()) << "too few drops prove nothing";
  LengthFairness left_over;
  for (int64_t i = 0; i < 5000; ++i) left_over.Trained(1 + i % 100);
  left_over.Step();
  for (int64_t i = 0; i < 5000; ++i) left_over.Dropped(900);
  EXPECT_FALSE(left_over.Unfair()) << "dropped behind the last step";
}

TEST(CheckerTest, AbnormalEndNamesItsFault) {
  EXPECT_EQ(Predicate([](Journal& j) {
              std::erase_if(
                  j, [](const JournalEntry& e) { return std::holds_alternative<record::Fault>(e.record); });
              std::get<record::EndRun>(j.back().record).code = 3;
            }),
            "L3");
}

TEST(CheckerTest, ARowThatTheTrainerCouldNotUseWasDroppedWithItsGroup) {
  const auto fault = [](const SampleId& tid) { return record::Fault{"row", "", {}, "", {}, tid}; };
  EXPECT_EQ(Predicate([&](Journal& j) {
              const size_t i = Find<record::StepCommit>(j, 1);
              Insert(j, i, fault(std::get<record::StepCommit>(j[i].record).rows[0].tid));
            }),
            "Q12");
  EXPECT_EQ(Predicate([&](Journal& j) {
              Insert(j, Find<record::StepCommit>(j, 1), fault({999, 0, 0}));
            }),
            "Q1");
}

TEST(CheckerTest, NamesTheFirstRecordThatIsWrong) {
  Journal j = GoodJournal();
  const size_t at = Find<record::Enq>(j, 5);
  Insert(j, at + 1, j[at].record);
  Renumber(j);
  EXPECT_EQ(Check(j).lsn.value, static_cast<int64_t>(at) + 1);
  j = GoodJournal();
  Erase(j, 0);
  EXPECT_EQ(Check(j).predicate, "journal");
}

}  // namespace
}  // namespace tidepool::scheduler
