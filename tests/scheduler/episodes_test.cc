// Multi-turn samples: which worker plays which turn, and whole runs of episodes in the modelled cluster.

#include "scheduler/episodes.h"

#include <gtest/gtest.h>

#include <set>

#include "scheduler/checker.h"
#include "scheduler/dispatcher.h"
#include "scheduler/fleet/health.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

TimePoint T(double s) { return {FromSeconds(s)}; }
SampleId Tid(int64_t ordinal, int32_t sample = 0) { return {ordinal, 0, sample}; }
event::EnvStepped Reply(const command::EnvStep& c, GradeOutcome outcome = GradeOutcome::kOk) {
  return {.worker = c.worker, .tid = c.tid, .att = c.att, .turn = c.turn, .outcome = outcome};
}

class EpisodesTest : public testing::Test {
 protected:
  EpisodesTest() {
    episodes_.AddWorker(a_);
    episodes_.AddWorker(b_);
  }
  // Its reset is played, so that a turn that follows is no replay.
  WorkerRef Begin(const SampleId& tid, int32_t att = 0) {
    episodes_.Add(tid, att, 0, T(0));
    const auto steps = episodes_.Assign(T(0));
    EXPECT_EQ(steps.size(), 1U);
    EXPECT_EQ(episodes_.Done(Reply(steps.at(0)), T(0)), Episodes::Result::kFinal);
    return steps.at(0).worker;
  }
  Episodes episodes_{EpisodeOptions{.max_retries = 2,
                                    .reset_timeout = FromSeconds(50),
                                    .step_timeout = FromSeconds(5),
                                    .episode_timeout = FromSeconds(100),
                                    .slow_replays = true}};
  WorkerRef a_{{4}, {1}}, b_{{5}, {2}};
};

TEST_F(EpisodesTest, AnEpisodeStaysWithItsWorkerAndEpisodesAreShared) {
  std::map<SampleId, WorkerId> home;
  for (int64_t i = 0; i < 6; ++i) episodes_.Add(Tid(i), 0, 1, T(0));
  std::map<WorkerId, int64_t> share;
  for (const command::EnvStep& c : episodes_.Assign(T(0))) {
    home[c.tid] = c.worker.worker;
    ++share[c.worker.worker];
    EXPECT_EQ(episodes_.Done(Reply(c), T(0)), Episodes::Result::kFinal);
  }
  EXPECT_EQ(share[a_.worker], 3);
  EXPECT_EQ(share[b_.worker], 3);
  for (int64_t i = 0; i < 6; ++i) episodes_.Add(Tid(i), 0, 2, T(1));
  for (const command::EnvStep& c : episodes_.Assign(T(1))) {
    EXPECT_EQ(c.worker.worker, home[c.tid]);
    EXPECT_EQ(c.turn, 2);
  }
}

TEST_F(EpisodesTest, AFailureIsTriedAgainOnAnotherWorkerAndThenStands) {
  episodes_.Add(Tid(1), 0, 1, T(0));
  std::vector<WorkerId> tried;
  for (int i = 0; i < 3; ++i) {
    const auto steps = episodes_.Assign(T(i));
    ASSERT_EQ(steps.size(), 1U);
    tried.push_back(steps[0].worker.worker);
    EXPECT_EQ(episodes_.Done(Reply(steps[0], GradeOutcome::kInfra), T(i)),
              i < 2 ? Episodes::Result::kRetry : Episodes::Result::kFinal);
    EXPECT_EQ(episodes_.Done(Reply(steps[0], GradeOutcome::kInfra), T(i)), Episodes::Result::kRefused)
        << "a repeat";
  }
  EXPECT_NE(tried[0], tried[1]);
  EXPECT_NE(tried[1], tried[2]);
  EXPECT_EQ(episodes_.waiting(), 0);
}

TEST_F(EpisodesTest, ALostWorkersTurnsGoElsewhereAtNoChargeAndItsLateWordIsRefused) {
  episodes_.Add(Tid(1), 0, 3, T(0));
  const auto first = episodes_.Assign(T(0));
  for (int i = 0; i < 10; ++i) {  // more often than an infrastructure failure is forgiven
    episodes_.RemoveWorker(first[0].worker.worker);
    episodes_.AddWorker({first[0].worker.worker, {10 + i}});
    EXPECT_EQ(episodes_.Done(Reply(first[0]), T(1)), Episodes::Result::kRefused);
    ASSERT_EQ(episodes_.Assign(T(1)).size(), 1U);
    episodes_.RemoveWorker(a_.worker);
    episodes_.RemoveWorker(b_.worker);
    episodes_.AddWorker({a_.worker, {100 + i}});
    ASSERT_EQ(episodes_.Assign(T(1)).size(), 1U);
  }
  EXPECT_TRUE(episodes_.GivenUp(T(2)).empty());
  EXPECT_EQ(episodes_.waiting(), 1);
}

TEST_F(EpisodesTest, ATurnBeyondItsDeadlineCostsItsWorkerAndCountsAsAFailure) {
  (void)Begin(Tid(2));
  episodes_.Add(Tid(1), 0, 0, T(0));
  episodes_.Add(Tid(2), 0, 1, T(0));
  const auto steps = episodes_.Assign(T(0));
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].timeout, FromSeconds(50)) << "a reset has a deadline of its own";
  EXPECT_EQ(steps[1].timeout, FromSeconds(5));
  EXPECT_EQ(episodes_.Done(Reply(steps[0]), T(0)), Episodes::Result::kFinal);
  EXPECT_TRUE(episodes_.TakeStuck(T(14)).empty());
  double now = 16;
  for (int i = 0; i < 3; ++i, now += 66) {  // what is tried again is a replay: 50 s and 5 for its turn
    const auto stuck = episodes_.TakeStuck(T(now));
    ASSERT_EQ(stuck.size(), 1U) << i;
    EXPECT_EQ(stuck[0].tid, Tid(2));
    EXPECT_EQ(stuck[0].turn, 1);
    EXPECT_EQ(episodes_.GivenUp(T(now)).size(), i < 2 ? 0U : 1U);
    episodes_.RemoveWorker(stuck[0].worker.worker);
    episodes_.AddWorker({stuck[0].worker.worker, {20 + i}});
    (void)episodes_.Assign(T(now));
  }
}

TEST_F(EpisodesTest, AReplayHasTheTimeOfAllItsTurns) {
  const auto limit = [&] {
    const auto steps = episodes_.Assign(T(0));
    EXPECT_EQ(steps.size(), 1U);
    EXPECT_EQ(episodes_.Done(Reply(steps.at(0), GradeOutcome::kInfra), T(0)), Episodes::Result::kRetry);
    return steps.at(0).timeout;
  };
  const WorkerRef home = Begin(Tid(1));
  episodes_.Add(Tid(1), 0, 1, T(0));
  EXPECT_EQ(limit(), FromSeconds(5));
  EXPECT_EQ(limit(), FromSeconds(55)) << "it has failed where it was";
  episodes_.Remove(Tid(1));
  const WorkerRef other = Begin(Tid(2));
  episodes_.RemoveWorker(other.worker);
  episodes_.Add(Tid(2), 0, 3, T(0));
  EXPECT_EQ(limit(), FromSeconds(65));
  EXPECT_EQ(limit(), FromSeconds(65));
  episodes_.Add(Tid(3), 0, 40, T(0));  // of an earlier life
  episodes_.Remove(Tid(2));
  EXPECT_EQ(limit(), FromSeconds(100)) << "no longer than an episode may take";
  episodes_.Add(Tid(4), 0, command::kWholeEpisode, T(0));
  episodes_.Remove(Tid(3));
  EXPECT_EQ(limit(), FromSeconds(100));
  EXPECT_TRUE(home.inc.valid());
}

TEST_F(EpisodesTest, AReplayThatIsComputedAtOnceHasTheTimeOfATurn) {
  Episodes episodes({.reset_timeout = FromSeconds(50), .step_timeout = FromSeconds(5)});
  episodes.AddWorker(a_);
  for (const int64_t turn : {int64_t{3}, command::kWholeEpisode}) {
    episodes.Add(Tid(1), 0, turn, T(0));
    EXPECT_EQ(episodes.Assign(T(0)).at(0).timeout, FromSeconds(5));
    episodes.Remove(Tid(1));
  }
}

TEST_F(EpisodesTest, AWorkerIsToldOfWhatItHoldsThatNobodyPlaysAnyMore) {
  const auto told = [&](const WorkerRef& worker, const SampleId& tid, int32_t att) {
    const auto ended = episodes_.TakeEnded();
    return ended.size() == 1 && ended[0].worker == worker && ended[0].tid == tid && ended[0].att == att;
  };
  const WorkerRef home = Begin(Tid(1));
  EXPECT_TRUE(episodes_.TakeEnded().empty());
  episodes_.Remove(Tid(1));
  EXPECT_TRUE(told(home, Tid(1), 0)) << "dropped";
  const WorkerRef before = Begin(Tid(2));
  const WorkerRef again = Begin(Tid(2), 1);
  EXPECT_TRUE(told(before, Tid(2), 0)) << "another attempt";
  episodes_.Add(Tid(2), 1, 1, T(0));
  auto steps = episodes_.Assign(T(0));
  EXPECT_EQ(episodes_.Done(Reply(steps.at(0), GradeOutcome::kInfra), T(0)), Episodes::Result::kRetry);
  steps = episodes_.Assign(T(0));
  EXPECT_NE(steps.at(0).worker, again);
  EXPECT_TRUE(told(again, Tid(2), 1)) << "it is played elsewhere";
  event::EnvStepped over = Reply(steps.at(0));
  over.done = true;
  EXPECT_EQ(episodes_.Done(over, T(0)), Episodes::Result::kFinal);
  episodes_.Remove(Tid(2));
  EXPECT_TRUE(episodes_.TakeEnded().empty()) << "the environment has ended it";
  (void)Begin(Tid(3, SampleId::kRowSample));
  episodes_.Remove(Tid(3, SampleId::kRowSample));
  EXPECT_TRUE(episodes_.TakeEnded().empty()) << "a sample of its group goes on with it";
  const WorkerRef lost = Begin(Tid(4));
  episodes_.RemoveWorker(lost.worker);
  episodes_.AddWorker({lost.worker, {99}});
  episodes_.Remove(Tid(4));
  EXPECT_TRUE(episodes_.TakeEnded().empty()) << "who held it is gone";
}

TEST(EpisodesOfRows, AllWorkersAreToldOfADroppedSampleThatNonePlayedATurnOf) {
  Episodes episodes({.holds_rows = true});
  const SampleId tid{3, 0, 1};
  episodes.Drop(tid, 2);
  EXPECT_TRUE(episodes.TakeEnded().empty()) << "nobody is there";
  const WorkerRef one{{1}, {5}}, two{{2}, {6}};
  episodes.AddWorker(one);
  episodes.AddWorker(two);
  episodes.Drop(tid, 2);
  const auto told = episodes.TakeEnded();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].worker, one);
  EXPECT_EQ(told[1].worker, two);
  EXPECT_EQ(told[0].tid, tid);
  EXPECT_EQ(told[0].att, 2);
  Episodes others({});
  others.AddWorker(one);
  others.Drop(tid, 2);
  EXPECT_TRUE(others.TakeEnded().empty()) << "they hold what they play alone";
}

TEST_F(EpisodesTest, ATurnWithoutRoomWaitsUntilTheEpisodesOwnDeadline) {
  episodes_.Add(Tid(1), 0, 0, T(0));
  for (int i = 0; i < 10; ++i) {  // more often than a failure is forgiven
    const auto steps = episodes_.Assign(T(10 * i));
    ASSERT_EQ(steps.size(), 1U);
    event::EnvStepped full = Reply(steps[0], GradeOutcome::kInfra);
    full.no_room = true;
    EXPECT_EQ(episodes_.Done(full, T(10 * i)), Episodes::Result::kRetry);
    EXPECT_TRUE(episodes_.GivenUp(T(10 * i)).empty());
  }
  EXPECT_EQ(episodes_.retries(), 0);
  EXPECT_EQ(episodes_.GivenUp(T(101)), std::vector<SampleId>{Tid(1)});
}

// One worker plays one turn after the other, and each may take its whole time.
TEST_F(EpisodesTest, ATurnThatWaitsBehindSlowOnesIsNotLateAndTheOneThatRunsIsCharged) {
  episodes_.RemoveWorker(b_.worker);
  for (int64_t i = 0; i < 6; ++i) (void)Begin(Tid(i));
  for (int64_t i = 0; i < 6; ++i) episodes_.Add(Tid(i), 0, 1, T(0));
  const auto steps = episodes_.Assign(T(0));
  ASSERT_EQ(steps.size(), 6U);
  for (int64_t i = 0; i < 5; ++i) {
    const double now = 4.9 * static_cast<double>(i + 1);
    EXPECT_TRUE(episodes_.TakeStuck(T(now)).empty()) << now;
    EXPECT_EQ(episodes_.Done(Reply(steps[static_cast<size_t>(i)]), T(now)), Episodes::Result::kFinal);
  }
  episodes_.Add(Tid(9), 0, 1, T(25));
  ASSERT_EQ(episodes_.Assign(T(25)).size(), 1U);
  EXPECT_TRUE(episodes_.TakeStuck(T(39)).empty());
  const auto stuck = episodes_.TakeStuck(T(41));
  ASSERT_EQ(stuck.size(), 1U);
  EXPECT_EQ(stuck[0].tid, Tid(5)) << "the one behind it only waits";
  EXPECT_EQ(stuck[0].silent, T(41) - T(24.5));
  EXPECT_EQ(episodes_.retries(), 1);
}

TEST_F(EpisodesTest, TheLimitIsThatOfTheTurnThatRunsAndNotOfOnesBehindIt) {
  episodes_.RemoveWorker(b_.worker);
  (void)Begin(Tid(1));
  episodes_.Add(Tid(1), 0, 1, T(0));
  episodes_.Add(Tid(2), 0, 0, T(0));  // a reset may take 50 s
  const auto steps = episodes_.Assign(T(0));
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_TRUE(episodes_.TakeStuck(T(15)).empty());
  const auto stuck = episodes_.TakeStuck(T(16));
  ASSERT_EQ(stuck.size(), 1U);
  EXPECT_EQ(stuck[0].tid, Tid(1));
}

TEST_F(EpisodesTest, ATurnThatIsNotWantedAnyMoreIsPlayedBeforeThoseBehindIt) {
  episodes_.RemoveWorker(b_.worker);
  (void)Begin(Tid(2));
  episodes_.Add(Tid(1), 0, 0, T(0));
  episodes_.Add(Tid(2), 0, 1, T(0));
  const auto steps = episodes_.Assign(T(0));
  ASSERT_EQ(steps.size(), 2U);
  episodes_.Remove(Tid(1));
  EXPECT_TRUE(episodes_.TakeStuck(T(59)).empty()) << "its reset may still run";
  EXPECT_EQ(episodes_.Done(Reply(steps[0]), T(59)), Episodes::Result::kRefused);
  EXPECT_TRUE(episodes_.TakeStuck(T(74)).empty());
  ASSERT_EQ(episodes_.TakeStuck(T(75)).size(), 1U);
}

TEST_F(EpisodesTest, ATurnWhoseAnswerIsLostIsTriedAgainThoughItsWorkerAnswersOthers) {
  episodes_.RemoveWorker(b_.worker);
  for (int64_t i = 0; i < 3; ++i) (void)Begin(Tid(i));
  for (int64_t i = 0; i < 3; ++i) episodes_.Add(Tid(i), 0, 1, T(0));
  auto steps = episodes_.Assign(T(0));
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(episodes_.Done(Reply(steps[0]), T(2)), Episodes::Result::kFinal);
  EXPECT_EQ(episodes_.Done(Reply(steps[2]), T(4)), Episodes::Result::kFinal);  // the second is lost
  std::vector<Episodes::Stuck> stuck;
  double now = 5;
  for (int64_t i = 10; stuck.empty() && now < 40; ++i, ++now) {  // an answer each second
    episodes_.Add(Tid(i), 0, 1, T(now));
    steps = episodes_.Assign(T(now));
    ASSERT_EQ(steps.size(), 1U);
    EXPECT_EQ(episodes_.Done(Reply(steps[0]), T(now + 0.5)), Episodes::Result::kFinal);
    stuck = episodes_.TakeStuck(T(now + 0.5));
  }
  ASSERT_EQ(stuck.size(), 1U);
  EXPECT_EQ(stuck[0].tid, Tid(1));
  EXPECT_LE(stuck[0].silent, FromSeconds(16)) << "from when it was overtaken";
}

TEST_F(EpisodesTest, AnEpisodeHasADeadlineAsAWhole) {
  for (int64_t turn = 1; turn <= 11; ++turn) {
    episodes_.Add(Tid(1), 0, turn, T(10.0 * static_cast<double>(turn)));
    const auto steps = episodes_.Assign(T(10.0 * static_cast<double>(turn)));
    ASSERT_EQ(steps.size(), 1U);
    if (turn < 11) {
      EXPECT_EQ(episodes_.Done(Reply(steps[0]), T(10.0 * static_cast<double>(turn))),
                Episodes::Result::kFinal);
    }
  }
  EXPECT_TRUE(episodes_.GivenUp(T(110)).empty());
  EXPECT_EQ(episodes_.GivenUp(T(111)), std::vector<SampleId>{Tid(1)});
  episodes_.Add(Tid(1), 1, 1, T(111));  // another attempt begins anew
  EXPECT_TRUE(episodes_.GivenUp(T(112)).empty());
}

TEST(WaitingEnvTest, ARequestLeavesTheBufferAndComesBackWithItsObservation) {
  Fleet fleet;
  Health health({}, fleet);
  Dispatcher d({.chunk_tokens = 8, .max_concurrent = 16}, fleet);
  const auto all = [](const Version&) { return true; };
  for (int64_t w = 0; w < 2; ++w) {
    fleet.Add({w}, WorkerKind::kDevice, {{w}});
    health.Joined({{w}, {w}}, {});
    d.AddEngine({w}, {0});
    d.Admit({w}, {0, 1});
  }
  d.Add({.tid = Tid(1), .gid = {1}, .prompt_len = 5, .max_new = 40, .turn_end = 6});
  auto chunks = d.Assign(all);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].tokens, 6) << "not beyond the turn";
  const SlotRef home = chunks[0].on;
  ASSERT_TRUE(d.Progress(home, Tid(1), 0, 4, {0, 1}));
  ASSERT_EQ(d.ChunkEnded(home, Tid(1), 0), Dispatcher::Ended::kLive);
  d.WaitEnv(Tid(1));
  EXPECT_EQ(d.waiting_env(), 1);
  EXPECT_TRUE(d.Assign(all).empty());
  d.SetUrgent({{1}});  // what sorts the buffer leaves it alone
  EXPECT_TRUE(d.Assign(all).empty());
  EXPECT_EQ(d.RemoveEngine({9}), 0);
  d.Resume(Tid(1), 3, 6);
  EXPECT_EQ(d.waiting_env(), 0);
  EXPECT_EQ(d.Find(Tid(1))->generated, 7);
  EXPECT_EQ(d.Find(Tid(1))->limit(), 13);
  chunks = d.Assign(all);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].on, home) << "its KV is there";
  EXPECT_EQ(chunks[0].tokens, 6);
  ASSERT_EQ(d.ChunkEnded(home, Tid(1), 0), Dispatcher::Ended::kLive);
  d.WaitEnv(Tid(1));
  EXPECT_FALSE(d.Remove(Tid(1)).has_value()) << "nobody has to be told";
  EXPECT_EQ(d.waiting_env(), 0);
}

// --- whole runs

struct Outcome {
  SimResult result;
  int64_t drops = 0, faulty = 0, graded = 0, committed = 0, turns = 0;
};

Outcome Play(const SimOptions& options, const std::function<void(SimCluster&)>& prepare = {}) {
  SimCluster cluster(options);
  if (prepare) prepare(cluster);
  Outcome run;
  const auto hook = cluster.on_command;
  cluster.on_command = [&](const Command& c) {
    if (hook) hook(c);
    run.turns += std::holds_alternative<command::EnvStep>(c) ? 1 : 0;
  };
  run.result = cluster.Run();
  const CheckResult check = Check(cluster.journal());
  EXPECT_TRUE(check.ok) << check.predicate << " at record " << check.lsn.value << ": " << check.why;
  for (const JournalEntry& e : cluster.journal()) {
    if (const auto* drop = std::get_if<record::Drop>(&e.record)) {
      ++run.drops;
      if (drop->reason != DropReason::kStale) ++run.faulty;
    }
    run.graded += std::holds_alternative<record::Graded>(e.record) ? 1 : 0;
    run.committed += std::holds_alternative<record::StepCommit>(e.record) ? 1 : 0;
  }
  return run;
}

TEST(EpisodeRunTest, EveryPlacementTrainsOnEpisodes) {
  for (const PlacementKind placement : AllOf<PlacementKind>()) {
    for (const int64_t eta : {0, 1}) {
      SCOPED_TRACE(testing::Message() << Name(placement) << " lag " << eta);
      ControllerOptions job = SmallEpisodes(placement, 3);
      job.batch.max_lag_versions = eta;
      const Outcome run = Play({.controller = job, .seed = 2, .faults = {}});
      EXPECT_EQ(run.result.code, 0) << run.result.why;
      EXPECT_EQ(run.committed, job.steps);
      EXPECT_EQ(run.faulty, 0) << "dropped for another reason than age";
      if (eta == 0) {
        EXPECT_EQ(run.drops, 0);
      }
      EXPECT_GT(run.turns, 2 * run.graded) << "several turns an episode";
    }
  }
}

SimOptions Exact() {
  SimOptions o{.controller = SmallEpisodes(PlacementKind::kColocated, 1), .seed = 5, .faults = {}};
  o.controller.deterministic = true;
  return o;
}

TEST(EpisodeRunTest, KilledEnvironmentWorkersLoseNoSampleAndChangeNoWeight) {
  const Outcome calm = Play(Exact());
  ASSERT_EQ(calm.result.code, 0) << calm.result.why;
  int64_t kills = 0;
  const Outcome killed = Play(Exact(), [&](SimCluster& cluster) {
    auto seen = std::make_shared<int64_t>(0);
    cluster.on_command = [&cluster, &kills, seen](const Command& c) {
      const auto* step = std::get_if<command::EnvStep>(&c);
      if (step == nullptr || step->turn < 1 || ++*seen % 37 != 0 || kills >= 4) return;
      ++kills;
      cluster.KillWorker(step->worker.worker);
    };
  });
  EXPECT_EQ(kills, 4);
  EXPECT_EQ(killed.result.code, 0) << killed.result.why;
  EXPECT_EQ(killed.drops, 0);
  EXPECT_EQ(killed.result.weights, calm.result.weights);
}

TEST(EpisodeRunTest, ACrashedControllerPlaysOpenEpisodesAgainAndFinishedOnesForTheirReward) {
  const Outcome calm = Play(Exact());
  for (const int at : {20, 60, 110, 180}) {
    SCOPED_TRACE(at);
    bool whole = false;
    const Outcome crashed = Play(Exact(), [&](SimCluster& cluster) {
      auto seen = std::make_shared<int>(0);
      cluster.on_command = [&cluster, &whole, seen, at](const Command& c) {
        if (std::holds_alternative<command::EnvStep>(c) &&
            std::get<command::EnvStep>(c).turn == command::kWholeEpisode)
          whole = true;
        if (std::holds_alternative<command::StorePayload>(c) && ++*seen == at / 5) cluster.CrashController();
      };
    });
    EXPECT_EQ(crashed.result.code, 0) << crashed.result.why;
    EXPECT_EQ(crashed.result.lives, 2);
    EXPECT_EQ(crashed.result.weights, calm.result.weights);
  }
}

TEST(EpisodeRunTest, ABrokenEnvironmentEndsTheRunInsteadOfTrainingOnZeros) {
  SimOptions o{.controller = SmallEpisodes(PlacementKind::kColocated), .seed = 2, .faults = {}};
  o.controller.eval.before_train = false;
  o.faults.infra = 1;
  const Outcome run = Play(o);
  EXPECT_EQ(run.result.code, 3);
  EXPECT_TRUE(run.result.why.starts_with("fault=env_infra")) << run.result.why;
  EXPECT_EQ(run.committed, 0);
  EXPECT_EQ(run.graded, 0);
}

TEST(EpisodeRunTest, AHungEnvironmentWorkerIsReplacedAndItsEpisodesGoOn) {
  SimOptions o{.controller = SmallEpisodes(PlacementKind::kMultiplexed, 3), .seed = 4, .faults = {}};
  o.faults.hang_mean_s = 3;
  o.faults.heal_after_s = 20;
  const Outcome run = Play(o);
  EXPECT_EQ(run.result.code, 0) << run.result.why;
  EXPECT_GT(run.result.faults, 0);
}

}  // namespace
}  // namespace tidepool::scheduler
