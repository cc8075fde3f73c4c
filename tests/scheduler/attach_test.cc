// A new controller and the workers that outlived the old one; samples that take their workers along.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "scheduler/checker.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

ControllerOptions LongLived(int64_t slots = 3) {
  ControllerOptions job = SmallJob(PlacementKind::kSplit, slots);
  job.fleet.reattach_grace_s = 10;
  return job;
}

void ExpectProven(const SimCluster& cluster) {
  const CheckResult check = Check(cluster.journal());
  EXPECT_TRUE(check.ok) << check.predicate << " at record " << check.lsn.value << ": " << check.why;
}

template <typename R>
int64_t Count(const SimCluster& cluster) {
  int64_t n = 0;
  for (const JournalEntry& e : cluster.journal()) n += std::holds_alternative<R>(e.record) ? 1 : 0;
  return n;
}

bool Warned(const SimCluster& cluster, const std::string& what) {
  for (const std::string& line : cluster.warnings()) {
    if (line.find(what) != std::string::npos) return true;
  }
  return false;
}

TEST(AttachTest, WeightsServeOnlyWithTheDigestOfTheirPublication) {
  for (const bool offered : {true, false}) {
    SimCluster cluster({.controller = LongLived(), .seed = 4, .faults = {}});
    int64_t chunks = 0;
    bool injected = false;
    std::set<WorkerId> waits;  // came back without a digest, and have loaded nothing since
    cluster.on_event = [&](const Event& e) {
      if (std::holds_alternative<event::ChunkFinished>(e) && ++chunks == 20) cluster.CrashController();
      const auto* join = std::get_if<event::WorkerJoined>(&e);
      if (offered || injected || join == nullptr || !join->restored_inc.valid() || join->slots.empty() ||
          !join->slots.front().holds.valid())
        return true;
      event::WorkerJoined without = *join;
      without.slots.front().holds_digest ^= 1;
      waits.insert(join->worker);
      injected = true;
      cluster.Inject(without);
      injected = false;
      return false;
    };
    int64_t loads = 0, admitted = 0;
    cluster.on_command = [&](const Command& c) {
      if (const auto* load = std::get_if<command::Load>(&c)) waits.erase(load->worker.worker), ++loads;
      if (const auto* admit = std::get_if<command::Admit>(&c)) {
        ++admitted;
        EXPECT_FALSE(waits.contains(admit->worker.worker)) << "was admitted with weights that nobody knows";
      }
    };
    EXPECT_EQ(cluster.Run().code, 0);
    EXPECT_GT(admitted, 0);
    ExpectProven(cluster);
  }
}

// The controller dies when the trainers have made step 2 and it has not written that down.
TEST(AttachTest, AStepThatWasMadeWhileNoControllerLivedCounts) {
  for (const int64_t trainers : {1, 2}) {
    for (const bool tells : {true, false}) {
      SCOPED_TRACE(std::to_string(trainers) + (tells ? " tell" : " do not tell"));
      ControllerOptions job = LongLived(4);
      job.fleet.actor_slots = trainers;
      SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
      bool died = false, injected = false;
      cluster.on_event = [&](const Event& e) {
        const auto* done = std::get_if<event::TrainDone>(&e);
        if (done != nullptr && done->step == StepNumber{2} && !std::exchange(died, true)) {
          cluster.CrashController();
          return false;
        }
        const auto* join = std::get_if<event::WorkerJoined>(&e);
        if (tells || injected || join == nullptr || join->slots.empty() || join->slots.front().done.empty())
          return true;
        event::WorkerJoined silent = *join;
        silent.slots.front().done.clear();
        injected = true;
        cluster.Inject(silent);
        injected = false;
        return false;
      };
      const SimResult r = cluster.Run();
      EXPECT_EQ(r.code, 0) << r.why;
      EXPECT_EQ(r.lives, 2);
      EXPECT_EQ(Count<record::Restore>(cluster), tells ? 0 : 1);
      std::map<int64_t, int64_t> commits;
      for (const JournalEntry& e : cluster.journal())
        if (const auto* c = std::get_if<record::StepCommit>(&e.record)) ++commits[c->step.value];
      for (const auto& [step, times] : commits) EXPECT_TRUE(!tells || times == 1) << step;
      ExpectProven(cluster);
    }
  }
}

// One member of a step that two controllers have died over comes back to the third, which knows nothing of
// it.
TEST(AttachTest, AMemberOfAStepThatTwoControllersDiedOverTrainsAgain) {
  ControllerOptions job = LongLived(4);
  job.fleet.actor_slots = 2;
  SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
  WorkerId inside;
  cluster.on_executed = [&](const Command& c) {  // one is inside of it, the other one was not asked yet
    const auto* train = std::get_if<command::Train>(&c);
    if (train == nullptr || train->step != StepNumber{2} || cluster.lives() > 1) return;
    inside = train->worker.worker;
    cluster.CrashControllerNow();
  };
  bool was_aborted = false;
  cluster.on_event = [&](const Event& e) {
    const auto* join = std::get_if<event::WorkerJoined>(&e);
    if (join != nullptr && join->worker == inside && cluster.lives() == 2) return false;  // it is late
    if (std::holds_alternative<event::StepAborted>(e) && cluster.lives() == 2) {
      was_aborted = true;
      cluster.CrashController();
    }
    return true;
  };
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 0) << r.why;
  EXPECT_TRUE(was_aborted);
  EXPECT_EQ(r.lives, 3);
  EXPECT_EQ(Count<record::Restore>(cluster), 0);
  ExpectProven(cluster);
}

TEST(AttachTest, ALoadThatTheControllersDeathInterruptsIsDoneAgain) {
  for (int64_t at = 1; at <= 8; ++at) {
    SimCluster cluster({.controller = LongLived(), .seed = 4, .faults = {}});
    int64_t loads = 0;
    bool injected = false;
    std::optional<WorkerId> torn;
    cluster.on_event = [&](const Event& e) {  // it comes back before the load is over
      const auto* join = std::get_if<event::WorkerJoined>(&e);
      if (injected || join == nullptr || torn != join->worker || !join->restored_inc.valid()) return true;
      event::WorkerJoined inside = *join;
      inside.slots.front().holds = {};
      inside.slots.front().holds_digest = 0;
      injected = true;
      cluster.Inject(inside);
      injected = false;
      return false;
    };
    cluster.on_executed = [&](const Command& c) {
      const auto* load = std::get_if<command::Load>(&c);
      if (load != nullptr && torn == load->worker.worker) torn.reset();
      if (load == nullptr || ++loads != at) return;
      torn = load->worker.worker;
      cluster.CrashControllerNow();
    };
    cluster.on_command = [&](const Command& c) {
      const auto* admit = std::get_if<command::Admit>(&c);
      EXPECT_FALSE(admit != nullptr && torn == admit->worker.worker) << "half of its weights are other ones";
    };
    EXPECT_EQ(cluster.Run().code, 0);
    EXPECT_EQ(cluster.started_workers(), 4);
    ExpectProven(cluster);
  }
}

TEST(AttachTest, AnAdoptedChunkHasOnlyTheTokensThatWereSentAgain) {
  SimCluster cluster({.controller = LongLived(), .seed = 4, .faults = {}});
  std::set<SampleId> lost;
  bool killed = false;
  int64_t chunks = 0;
  cluster.on_event = [&](const Event& e) {
    if (std::holds_alternative<event::ChunkFinished>(e) && ++chunks == 20) cluster.CrashController();
    return true;
  };
  std::map<WorkerId, std::vector<event::OfferedChunk>> held;
  cluster.on_executed = [&](const Command& c) {  // welcomed again, it dies before it has sent any token
    const auto* welcome = std::get_if<command::Welcome>(&c);
    if (welcome == nullptr || cluster.lives() != 2 || killed || welcome->worker.value == 0) return;
    killed = true;
    cluster.KillWorkerUnsent(welcome->worker);
  };
  EXPECT_EQ(cluster.Run().code, 0);  // StartChunk with tokens that nobody has would fail a check of the model
  EXPECT_TRUE(killed);
  ExpectProven(cluster);
}

// What is left of a gang whose other part is gone holds a part of nothing, also where it has not come back
// yet.
TEST(AttachTest, AGangWhoseOtherPartDoesNotComeBackBeginsAnew) {
  for (const bool before : {false, true}) {  // the loss is known before the rest comes back
    ControllerOptions job = LongLived(5);
    job.fleet.gangs = {{{1}, {2}}, {{3}, {4}}};
    job.steps = 12;
    SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
    std::map<SlotId, WorkerRef> first, last;  // that was granted the slot
    cluster.on_command = [&](const Command& c) {
      const auto* grant = std::get_if<command::Grant>(&c);
      if (grant != nullptr) first.insert({grant->slot, grant->worker}), last[grant->slot] = grant->worker;
    };
    int64_t chunks = 0;
    cluster.on_event = [&](const Event& e) {
      if (std::holds_alternative<event::ChunkFinished>(e) && ++chunks == 20) {
        cluster.KillWorkerUnsent({2});
        cluster.CrashController();
      }
      const auto* join = std::get_if<event::WorkerJoined>(&e);
      if (before && join != nullptr && join->restored_inc.valid() && join->worker == WorkerId{1})
        cluster.Inject(event::WorkerLost{first[{2}], "it is gone", true});
      return true;
    };
    EXPECT_EQ(cluster.Run().code, 0);
    ExpectProven(cluster);
    for (const int64_t part : {1, 2}) EXPECT_GT(last[{part}].inc, first[{part}].inc) << "slot " << part;
    for (const int64_t part : {3, 4}) EXPECT_EQ(last[{part}].inc, first[{part}].inc) << "slot " << part;
  }
}

// The first worker of a gang that holds nothing outlives the controller and has the newest weights; another
// one of it comes anew and has none. The gang has to be free when the controller dies and to generate before
// the next version: one record in some hundred is such a moment.
TEST(AttachTest, AGangThatComesTogetherAnewLoadsBeforeItServes) {
  for (int64_t cut = 40; cut < 300; ++cut) {
    SCOPED_TRACE("cut at " + std::to_string(cut));
    ControllerOptions job = SmallJob(PlacementKind::kElastic, 6);
    job.fleet.reattach_grace_s = 10;
    job.fleet.gangs = {{{0}, {1}}, {{2}, {3}}, {{4}, {5}}};
    job.batch.groups_per_step = 12;
    SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
    cluster.cut_at_record = cut;
    const WorkerId dies{1};
    bool waits = false;  // it came anew, and its gang has loaded nothing since
    cluster.on_event = [&](const Event& e) {
      const auto* join = std::get_if<event::WorkerJoined>(&e);
      const bool gone =
          join != nullptr && cluster.lives() == 2 && join->worker == dies && join->restored_inc.valid();
      if (gone) cluster.KillWorkerUnsent(dies);
      return !gone;
    };
    cluster.on_command = [&](const Command& c) {
      const auto* welcome = std::get_if<command::Welcome>(&c);
      waits |= welcome != nullptr && cluster.lives() == 2 && welcome->worker == dies;
      const auto* load = std::get_if<command::Load>(&c);
      waits &= load == nullptr || load->slot != SlotId{0};
      const auto* admit = std::get_if<command::Admit>(&c);
      EXPECT_FALSE(waits && admit != nullptr && admit->slot == SlotId{0}) << "a part of it has no weights";
    };
    EXPECT_EQ(cluster.Run().code, 0);
    ExpectProven(cluster);
  }
}

TEST(AttachTest, AGangOfWhichOnePartWasFencedAsTheControllerDiedBeginsAnew) {
  ControllerOptions job = LongLived(5);
  job.fleet.gangs = {{{1}, {2}}, {{3}, {4}}};
  job.steps = 12;
  int64_t first = -1, last = -1;  // records between the FENCE of that part and that of the other one
  for (int64_t cut = -1; cut <= last; cut = std::max(cut + 1, first)) {
    SCOPED_TRACE("cut at " + std::to_string(cut));
    SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
    cluster.cut_at_record = cut;
    int64_t chunks = 0;
    cluster.on_event = [&](const Event& e) {
      if (std::holds_alternative<event::ChunkFinished>(e) && ++chunks == 20) cluster.KillWorker({2});
      return true;
    };
    EXPECT_EQ(cluster.Run().code, 0);
    EXPECT_EQ(cluster.lives(), cut < 0 ? 1 : 2);
    ExpectProven(cluster);
    std::vector<Incarnation> of_first;  // that were granted the slot of the other part
    for (const JournalEntry& e : cluster.journal()) {
      const auto* fence = std::get_if<record::Fence>(&e.record);
      if (cut < 0 && fence != nullptr && fence->worker.worker == WorkerId{2}) first = e.lsn.value + 1;
      if (cut < 0 && fence != nullptr && fence->worker.worker == WorkerId{1}) last = e.lsn.value;
      const auto* grant = std::get_if<record::Grant>(&e.record);
      if (grant != nullptr && grant->slot == SlotId{1}) of_first.push_back(grant->worker.inc);
    }
    ASSERT_FALSE(of_first.empty());
    EXPECT_GT(of_first.back(), of_first.front());
  }
  EXPECT_GT(last, first);
}

// Nobody would ever welcome it again, and a process of it would have nothing to do.
TEST(AttachTest, AWorkerWhosePlaceIsNoMoreIsFencedAtOnceAndNotStarted) {
  ControllerOptions job = LongLived();
  job.reward.workers = 2;
  SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
  ASSERT_EQ(cluster.Run().code, 0);
  std::vector<JournalEntry> begun;  // to the first step
  for (const JournalEntry& e : cluster.journal()) {
    if (std::holds_alternative<record::StepBegin>(e.record)) break;
    begun.push_back(e);
  }
  const WorkerId gone = job.side_worker(1);
  job.reward.workers = 1;
  auto next = Controller::Create(job, begun);
  ASSERT_TRUE(next.ok()) << next.status().message();
  bool fenced = false;
  const auto look = [&](const Event& event, double now) {
    for (const Command& c : (*next)->Handle(event, {FromSeconds(now)})) {
      const auto* append = std::get_if<command::Append>(&c);
      const auto* fence = append == nullptr ? nullptr : std::get_if<record::Fence>(&append->record);
      fenced = fenced || (fence != nullptr && fence->worker.worker == gone);
      const auto* start = std::get_if<command::StartWorker>(&c);
      EXPECT_FALSE(start != nullptr && start->worker == gone) << "after " << now << " s";
    }
  };
  look(event::Started{}, 1000);
  EXPECT_TRUE(fenced);
  look(event::Tick{}, 1100);  // the time for others to come back is over
}

// The worker is still about to carry out the newest request, which writes over whatever an earlier one left.
TEST(AttachTest, AnAnswerToAnEarlierRequestForAStateIsRefused) {
  ControllerOptions job = SmallJob(PlacementKind::kSplit, 4);
  job.fleet.actor_slots = 2;
  SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
  int64_t fetches = 0;
  bool injected = false;
  cluster.on_executed = [&](const Command& c) {
    const auto* fetch = std::get_if<command::FetchState>(&c);
    if (fetch == nullptr) return;
    ++fetches;
    if (std::exchange(injected, true)) return;
    cluster.Inject(
        event::StateReady{fetch->worker, fetch->slot, fetch->step, 0, "of before", fetch->request - 1});
  };
  EXPECT_EQ(cluster.Run().code, 0);
  EXPECT_EQ(fetches, 1);
  EXPECT_FALSE(Warned(cluster, "state_failed"));
  ExpectProven(cluster);
}

// A store that does not answer says nothing about the checkpoint in it.
TEST(AttachTest, ACheckpointThatIsOutOfReachIsNotRejectedAndEndsTheRun) {
  for (const bool at_the_worker : {false, true}) {
    ControllerOptions job = SmallJob(PlacementKind::kSplit, 4);
    SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
    bool crashed = false;
    cluster.on_event = [&](const Event& e) {
      const bool now = std::holds_alternative<event::ChunkFinished>(e) && !crashed &&
                       cluster.controller()->View().step.value == 2;
      if (now) cluster.CrashController();
      crashed |= now;
      return true;
    };
    cluster.on_executed = [&](const Command& c) {
      const auto* verify = std::get_if<command::VerifyCheckpoint>(&c);
      if (verify != nullptr && crashed && !at_the_worker)
        cluster.Inject(event::CheckpointVerified{verify->ckpt, "it does not answer", true});
      const auto* restore = std::get_if<command::RestoreState>(&c);
      if (restore != nullptr && at_the_worker)
        cluster.Inject(event::StateReady{
            restore->worker, restore->slot, {}, 0, "it does not answer", restore->request, true});
    };
    const auto outcome = cluster.Run();
    EXPECT_TRUE(crashed);
    EXPECT_EQ(outcome.code, 3);
    EXPECT_NE(outcome.why.find("it does not answer"), std::string::npos) << outcome.why;
    for (const JournalEntry& e : cluster.journal())
      EXPECT_FALSE(std::holds_alternative<record::CheckpointReject>(e.record));
  }
}

TEST(AttachTest, ALiveTrainerWithTheCommittedStateIsAdopted) {
  for (const int64_t slots : {3, 4}) {
    ControllerOptions job = LongLived(slots);
    job.fleet.actor_slots = slots - 2;
    SimCluster whole({.controller = job, .seed = 4, .faults = {}});
    const uint64_t weights = whole.Run().weights;
    SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
    bool crashed = false;
    cluster.on_event = [&](const Event& e) {
      const bool now = std::holds_alternative<event::ChunkFinished>(e) && !crashed &&
                       cluster.controller()->View().step.value == 2 &&
                       cluster.controller()->View().leased == 0;
      if (now) cluster.CrashController();
      crashed |= now;
      return true;
    };
    const SimResult r = cluster.Run();
    EXPECT_EQ(r.code, 0) << r.why;
    EXPECT_EQ(r.lives, 2);
    EXPECT_EQ(r.weights, weights);
    EXPECT_EQ(Count<record::Restore>(cluster), 0) << "no rollback, no new lineage";
    EXPECT_EQ(Count<record::StepBegin>(cluster), job.steps) << "no step was computed again";
    EXPECT_EQ(Count<record::Publish>(cluster), job.steps + 1);
    EXPECT_TRUE(Warned(cluster, "trainer's state of step 2, so nothing is restored"));
    ExpectProven(cluster);
  }
}

TEST(AttachTest, AnAdoptedTrainerPublishesWhatTheLastLifeCouldNot) {
  SimCluster cluster({.controller = LongLived(), .seed = 4, .faults = {}});
  int64_t publications = 0;
  cluster.on_command = [&](const Command& c) {
    if (std::holds_alternative<command::Publish>(c) && ++publications == 3) cluster.CrashControllerNow();
  };
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 0) << r.why;
  EXPECT_EQ(r.lives, 2);
  EXPECT_EQ(Count<record::Restore>(cluster), 0);
  EXPECT_EQ(Count<record::Publish>(cluster), 7);
  ExpectProven(cluster);
}

// Whichever of the workers comes back last: until the trainer has confirmed its role it is no member of the
// step.
TEST(AttachTest, AStepThatATrainerMadeWhileNobodyListenedIsCommitted) {
  for (const uint64_t seed : {4, 5, 6, 7, 8}) {
    SimCluster whole({.controller = LongLived(), .seed = seed, .faults = {}});
    const uint64_t weights = whole.Run().weights;
    SimCluster cluster({.controller = LongLived(), .seed = seed, .faults = {}});
    int64_t steps = 0;
    cluster.on_executed = [&](const Command& c) {
      if (std::holds_alternative<command::Train>(c) && ++steps == 3) cluster.CrashControllerNow();
    };
    const SimResult r = cluster.Run();
    EXPECT_EQ(r.code, 0) << r.why;
    EXPECT_EQ(r.weights, weights);
    EXPECT_EQ(Count<record::Restore>(cluster), 0);
    EXPECT_TRUE(Warned(cluster, "event=step_adopted"));
    ExpectProven(cluster);
  }
}

TEST(AttachTest, ARecoveryCopyThatFailsCostsNobodyHisLife) {
  ControllerOptions job = SmallJob(PlacementKind::kSplit, 3);
  job.checkpoint.recovery_every_steps = 1;
  SimCluster cluster({.controller = job, .seed = 4, .faults = {.recovery_error = 1}});
  EXPECT_EQ(cluster.Run().code, 0);
  EXPECT_EQ(cluster.started_workers(), 4);
  EXPECT_TRUE(Warned(cluster, "event=recovery_copy_failed"));
  ExpectProven(cluster);
}

TEST(AttachTest, WhereTheTrainersStateCameFromIsTold) {
  ControllerOptions job = SmallJob(PlacementKind::kSplit, 2);
  job.checkpoint.every_steps = 1000;
  for (const auto& [every, from] : {std::pair(1, "from the recovery copy"), {0, "from checkpoint 0"}}) {
    job.checkpoint.recovery_every_steps = every;
    SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
    bool killed = false;
    cluster.on_command = [&](const Command& c) {
      const auto* train = std::get_if<command::Train>(&c);
      if (train != nullptr && train->step.value == 2 && !std::exchange(killed, true))
        cluster.KillWorker(train->worker.worker);
    };
    EXPECT_EQ(cluster.Run().code, 0);
    EXPECT_TRUE(killed);
    EXPECT_TRUE(Warned(cluster, "event=restored"));
    EXPECT_TRUE(Warned(cluster, from));
    ExpectProven(cluster);
  }
}

// Who works on the poison dies of it, at once. Of a gang that works on it: the worker that is `further`
// places after the first.
template <typename C>
void Poisoned(const ControllerOptions& job, const SampleId& poison, int64_t further = 0) {
  SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
  int64_t deaths = 0;
  cluster.on_executed = [&](const Command& command) {
    const auto* c = std::get_if<C>(&command);
    if (c == nullptr || c->tid != poison) return;
    ++deaths;
    if constexpr (requires { c->grader; })
      cluster.KillWorkerUnsent(c->grader.worker);
    else
      cluster.KillWorkerUnsent({c->worker.worker.value + further});
  };
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 0) << r.why;
  EXPECT_EQ(deaths, 2);
  int64_t dropped = 0;
  for (const JournalEntry& e : cluster.journal()) {
    const auto* d = std::get_if<record::Drop>(&e.record);
    if (d == nullptr || d->reason != DropReason::kPoison) continue;
    ++dropped;
    EXPECT_EQ(d->tid, poison) << "others that were there are not blamed";
  }
  EXPECT_EQ(dropped, 1);
  ExpectProven(cluster);
}

TEST(PoisonTest, ASampleThatKillsTwoWorkersIsDropped) {
  Poisoned<command::StartChunk>(SmallJob(PlacementKind::kSplit, 3), {1, 0, 1});
  Poisoned<command::Grade>(SmallJob(PlacementKind::kSplit, 3), {1, 0, 1});
  Poisoned<command::EnvStep>(SmallEpisodes(PlacementKind::kSplit, 3), {1, 0, 1});
}

TEST(PoisonTest, ASampleThatKillsAnyWorkerOfItsEngineIsDropped) {
  ControllerOptions job = SmallJob(PlacementKind::kSplit, 7);
  job.fleet.gangs = {{{1}, {2}, {3}}, {{4}, {5}, {6}}};
  for (const int64_t further : {0, 1, 2}) {
    SCOPED_TRACE(further);
    Poisoned<command::StartChunk>(job, {1, 0, 1}, further);
  }
}

// Its slots tell of it, and a process of it may have died as well.
TEST(PoisonTest, ASampleThatBreaksItsEngineIsBlamedOnceEachTime) {
  for (const bool dies : {false, true}) {
    SCOPED_TRACE(dies ? "a process dies" : "none dies");
    ControllerOptions job = SmallJob(PlacementKind::kSplit, 7);
    job.fleet.gangs = {{{1}, {2}, {3}}, {{4}, {5}, {6}}};
    const SampleId poison{1, 0, 1};
    SimCluster cluster({.controller = job, .seed = 4, .faults = {}});
    int64_t broken = 0;
    TimePoint since;
    std::map<WorkerId, Incarnation> of;
    std::set<std::pair<WorkerId, Incarnation>> ended;
    cluster.on_executed = [&](const Command& command) {
      if (const auto* grant = std::get_if<command::Grant>(&command))
        of[grant->worker.worker] = grant->worker.inc;
      const auto* c = std::get_if<command::StartChunk>(&command);
      if (c == nullptr || c->tid != poison) return;
      ++broken;
      const WorkerId first = c->worker.worker;
      cluster.BreakEngine(c->slot);
      for (int64_t i = 0; i < 3; ++i) ended.insert({{first.value + i}, of[{first.value + i}]});
      if (dies) cluster.KillWorkerUnsent({first.value + 1});
    };
    const SimResult r = cluster.Run();
    EXPECT_EQ(r.code, 0) << r.why;
    EXPECT_EQ(broken, 2);
    int64_t dropped = 0, as_dead = 0;
    for (const JournalEntry& e : cluster.journal()) {
      const auto* fence = std::get_if<record::Fence>(&e.record);
      EXPECT_TRUE(fence == nullptr || ended.erase({fence->worker.worker, fence->worker.inc}) == 1)
          << "a worker of no broken engine";
      if (const auto* fault = std::get_if<record::Fault>(&e.record);
          fault != nullptr && fault->what == "killed")
        ++as_dead;
      const auto* d = std::get_if<record::Drop>(&e.record);
      if (d == nullptr || d->reason != DropReason::kPoison) continue;
      ++dropped;
      EXPECT_EQ(d->tid, poison);
    }
    EXPECT_TRUE(ended.empty()) << "all workers of a broken engine are replaced";
    EXPECT_EQ(dropped, 1);
    EXPECT_EQ(as_dead, dies ? 2 : 0) << "who died by itself is the one that is named";
    ExpectProven(cluster);
  }
}

// The controller was stopped again and again, and each time its workers gave it up.
TEST(PoisonTest, DeathsOfTheControllersOwnAbsenceAreNobodysFault) {
  SimCluster cluster({.controller = SmallJob(PlacementKind::kSplit, 3), .seed = 4, .faults = {}});
  const SampleId held{1, 0, 1};
  int64_t deaths = 0;
  cluster.on_executed = [&](const Command& command) {
    const auto* c = std::get_if<command::StartChunk>(&command);
    if (c == nullptr || c->tid != held || deaths == 8) return;
    ++deaths;
    cluster.KillWorkerUnsent(c->worker.worker);
  };
  cluster.on_event = [&](const Event& e) {
    if (std::holds_alternative<event::WorkerLost>(e)) cluster.Inject(event::StoodStill{FromSeconds(14)});
    return true;
  };
  const SimResult r = cluster.Run();
  EXPECT_EQ(r.code, 0) << r.why;
  EXPECT_EQ(deaths, 8);
  EXPECT_TRUE(Warned(cluster, "event=stood_still"));
  for (const JournalEntry& e : cluster.journal()) {
    const auto* d = std::get_if<record::Drop>(&e.record);
    EXPECT_TRUE(d == nullptr || d->reason != DropReason::kPoison);
    const auto* f = std::get_if<record::Fault>(&e.record);
    EXPECT_TRUE(f == nullptr || f->kind != "retired");
  }
  ExpectProven(cluster);
}

TEST(PoisonTest, AWorkerThatDiesOnceIsNoSamplesFault) {
  SimCluster cluster(
      {.controller = SmallJob(PlacementKind::kSplit, 3), .seed = 4, .faults = {.kill_mean_s = 3}});
  cluster.Run();
  for (const JournalEntry& e : cluster.journal()) {
    const auto* d = std::get_if<record::Drop>(&e.record);
    EXPECT_TRUE(d == nullptr || d->reason != DropReason::kPoison);
  }
}

}  // namespace
}  // namespace tidepool::scheduler
