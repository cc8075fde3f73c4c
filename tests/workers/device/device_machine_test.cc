#include "workers/device/device_machine.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/workers/net/model_device.h"

namespace tidepool::workers {
namespace {

using scheduler::event::ChunkEnd;

void StepAndSay(DeviceMachine& machine) {
  machine.Step([] { return TimePoint{}; });
  machine.SayTokens();
}

struct DeviceMachineTest : testing::Test {
  ModelWorld world;
  ModelDevice device{&world, 7};
  DeviceMachine machine{&device};
  std::vector<FromWorkerBody> said;
  int64_t begun = 0;
  static constexpr SlotId kSlot{1};
  static constexpr Version kVersion{0, 4};

  DeviceMachineTest() {
    device.on_begin = [this](int64_t epoch) { begun = epoch; };
    device.on_say = [this](FromWorkerBody body) { said.push_back(std::move(body)); };
    world.published[kVersion] = 99;
  }
  void Tell(ToWorkerBody body, int64_t ctl_epoch = 3, int64_t newest = 3) {
    Command command{ctl_epoch, std::move(body)};
    machine.Put(std::move(command));
    machine.Work([newest] { return newest; });
  }
  // The only thing that it said since the last call.
  template <typename T>
  T Said() {
    EXPECT_EQ(said.size(), 1u);
    const T* body = said.empty() ? nullptr : std::get_if<T>(&said.front());
    EXPECT_NE(body, nullptr);
    T out = body == nullptr ? T() : *body;
    said.clear();
    return out;
  }
  void Serve(uint64_t digest = 99) {
    Tell(down::Attached{3, 0});
    EXPECT_TRUE(Said<up::Offer>().last);
    Tell(down::Welcome{.inc = {5}, .slots = {kSlot}});
    Tell(down::Grant{.slot = kSlot, .epoch = {2}, .role = Role::kRollout});
    Said<up::Granted>();
    Tell(down::Load{kSlot, kVersion, digest, "", false});
    EXPECT_EQ(Said<up::Loaded>().digest, 99u);
    Tell(down::Admit{.slot = kSlot, .v = kVersion});
  }
  // It sees the run's folder.
  void ServeFromLogs() {
    world.logs_share = 1;
    Tell(down::Attached{3, 0});
    Tell(down::Welcome{.inc = {5}, .slots = {kSlot}});
    Tell(down::Grant{.slot = kSlot, .epoch = {2}, .role = Role::kRollout});
    Tell(down::Load{kSlot, kVersion, 99, "", false});
    Tell(down::Admit{.slot = kSlot, .v = kVersion});
    said.clear();
  }
  static down::StartChunk Chunk(const SampleId& tid, int64_t tokens = 4, int64_t limit = 40) {
    down::StartChunk c;
    c.slot = kSlot;
    c.epoch = {2};
    c.tid = tid;
    c.gid = {tid.ordinal};
    c.version = kVersion;
    c.chunk_tokens = tokens;
    c.max_new_tokens = limit;
    return c;
  }
  void Start(int64_t ordinal, int64_t epoch = 2) {
    down::StartChunk c = Chunk({ordinal, 0, 0});
    c.epoch = {epoch};
    Tell(std::move(c));
  }
};

// Of an engine of several slots: the controller is told once, and each new controller, which may have got
// nothing of what was said to the one before.
TEST_F(DeviceMachineTest, ALostEngineIsToldToEachController) {
  Serve();
  machine.Work([] { return 3; });
  EXPECT_TRUE(said.empty());
  device.engine_lost = "rank 1 is gone";
  machine.Work([] { return 3; });
  const auto lost = Said<up::EngineLost>();
  EXPECT_EQ(lost.slot, kSlot);
  EXPECT_EQ(lost.why, "rank 1 is gone");
  machine.Work([] { return 3; });
  EXPECT_TRUE(said.empty());
  Tell(down::Attached{4, 0}, 4, 4);
  EXPECT_TRUE(Said<up::Offer>().last) << "before it is welcomed it says no more";
  Tell(down::Welcome{.inc = {5}, .slots = {kSlot}}, 4, 4);
  EXPECT_EQ(Said<up::EngineLost>().why, "rank 1 is gone");
}

// Of an engine of several slots one may have released the role before its drain was called off, and another
// not: all of them prepare it.
TEST_F(DeviceMachineTest, AGrantOfWhatItHoldsIsPreparedAgainWhereOthersAreParts) {
  Serve();
  EXPECT_EQ(device.prepared, 1);
  Tell(down::Grant{.slot = kSlot, .epoch = {3}, .role = Role::kRollout});
  Said<up::Granted>();
  EXPECT_EQ(device.prepared, 1);
  Tell(down::Grant{.slot = kSlot, .epoch = {4}, .role = Role::kRollout, .rank = 1, .ranks = 2});
  Said<up::Granted>();
  EXPECT_EQ(device.prepared, 2);
}

TEST_F(DeviceMachineTest, DropsWhatIsNotOfNow) {
  Tell(down::InitState{.slot = kSlot});
  EXPECT_EQ(machine.refused(), 1) << "before Welcome";
  Serve();
  Tell(down::InitState{.slot = kSlot}, 2);
  EXPECT_EQ(machine.refused(), 2) << "of an earlier controller";
  Start(1, /*epoch=*/1);
  Tell(down::Drain{.slot = kSlot, .epoch = {1}});
  Tell(down::Grant{.slot = kSlot, .epoch = {1}, .role = Role::kActor});
  Tell(down::Release{.slot = {0}, .epoch = {9}});
  Tell(down::Train{.slot = kSlot, .epoch = {1}});
  EXPECT_EQ(machine.refused(), 7) << "of an earlier epoch of the slot, or of another slot";
  EXPECT_TRUE(said.empty());
  EXPECT_EQ(machine.role(), Role::kRollout);
}

TEST_F(DeviceMachineTest, WeightsThatAreNotThoseThatWereNamedServeNothing) {
  Serve(/*digest=*/98);
  Start(1);
  EXPECT_FALSE(machine.CanStep());
  Tell(down::Attached{4, 0}, 4, 4);
  const auto offer = Said<up::Offer>();
  EXPECT_FALSE(offer.slots[0].holds.valid()) << "torn";
  Tell(down::Load{kSlot, kVersion, 99, "", false}, 4, 4);
  Said<up::Loaded>();
  EXPECT_TRUE(machine.CanStep());
}

TEST_F(DeviceMachineTest, TheSameIncarnationGoesOnAndAnotherBeginsAnew) {
  Serve();
  Start(1);
  StepAndSay(machine);
  const auto first = Said<up::StepTokens>();
  Tell(down::Attached{4, 0}, 4, 4);
  EXPECT_EQ(begun, 4);
  const auto offer = Said<up::Offer>();
  EXPECT_EQ(offer.slots[0].holds, kVersion);
  ASSERT_EQ(offer.slots.size(), 1u);
  EXPECT_EQ(offer.slots[0].holds_digest, 99u);
  ASSERT_EQ(offer.chunks.size(), 1u);
  EXPECT_EQ(offer.chunks[0].tokens, first.chunks[0].tokens.size());
  Tell(down::Welcome{.inc = {5}, .slots = {kSlot}}, 4, 4);
  EXPECT_EQ(machine.role(), Role::kRollout);
  Tell(down::Resend{kSlot, {1, 0, 0}, 0, 0}, 4, 4);
  EXPECT_EQ(Said<up::StepTokens>().chunks[0].tokens.ids, first.chunks[0].tokens.ids);

  Tell(down::Welcome{.inc = {6}, .slots = {kSlot}}, 4, 4);
  EXPECT_EQ(machine.role(), Role::kNone);
  EXPECT_FALSE(machine.CanStep());
  Tell(down::Resend{kSlot, {1, 0, 0}, 0, 0}, 4, 4);
  EXPECT_TRUE(said.empty());
}

// Tokens that others have logged are read here, beside all else.
TEST_F(DeviceMachineTest, AChunkGoesOnBehindWhatIsReadInTokenLogs) {
  const SampleId tid{1, 0, 0};
  auto& log = world.logs[8];
  log.push_back({{tid, 0}, 0, {}, {.ids = {4, 5}, .logprobs = {-1, -1}, .versions = {{kVersion, 2}}}});
  log.push_back({{tid, 0}, 2, {8, 0}, {.kind = sample::SegmentKind::kObservation, .ids = {6}}});
  ServeFromLogs();
  down::StartChunk c = Chunk(tid);
  c.logs = true;
  c.prompt = {1, 2};
  c.newest = {8, 1};
  c.unread = 3;
  // Put and not told: what was read comes back at the next turn of the loop.
  machine.Put(Command{3, c});
  machine.Work([] { return int64_t{3}; });
  ASSERT_TRUE(machine.CanStep()) << "it was read within the same turn";
  StepAndSay(machine);
  const auto made = Said<up::StepTokens>().chunks[0];
  EXPECT_EQ(made.from, 3);
  EXPECT_TRUE(made.logged.valid());
  const auto chain = world.Chain(tid, 0, made.logged);
  ASSERT_TRUE(chain.ok()) << chain.status().ToString();
  EXPECT_EQ(chain->segments.size(), 3u);

  // Ends while it is being read: the attempt is as long as the controller thinks.
  device.answers_reads = false;
  for (const bool drained : {false, true}) {
    down::StartChunk other = c;
    other.tid = {2, 0, 0};
    Tell(other);
    EXPECT_TRUE(machine.Reads());
    EXPECT_TRUE(said.empty());
    if (drained) {
      Tell(down::Drain{.slot = kSlot, .epoch = {3}});
      ASSERT_EQ(said.size(), 2u);
    } else {
      Tell(down::CancelChunk{.slot = kSlot, .tid = {2, 0, 0}});
      ASSERT_EQ(said.size(), 1u);
    }
    const auto& ends = std::get<up::StepTokens>(said[0]).chunks;
    const auto end = std::ranges::find(ends, SampleId{2, 0, 0}, &up::ChunkDelta::tid);
    ASSERT_NE(end, ends.end());
    EXPECT_EQ(end->end, drained ? ChunkEnd::kDrained : ChunkEnd::kCancelled);
    EXPECT_EQ(end->from, 3);
    said.clear();
    EXPECT_FALSE(machine.Reads());
  }
}

TEST_F(DeviceMachineTest, TokensThatCannotBeReadAreAskedOfTheController) {
  ServeFromLogs();
  down::StartChunk c = Chunk({1, 0, 0});
  c.logs = true;
  c.newest = {8, 1};
  c.unread = 3;
  Tell(c);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(std::get<up::CannotRead>(said[0]).tid, c.tid);
  const auto& end = std::get<up::StepTokens>(said[1]).chunks[0];
  EXPECT_EQ(end.end, ChunkEnd::kCancelled);
  EXPECT_EQ(end.from, 3);
}

// Weights and caches stay where a disk fails: what was not said is lost, and it goes on with what it is sent.
TEST_F(DeviceMachineTest, ALogThatFailsGivesTheChunkBack) {
  device.mean_tokens = 1'000'000;
  ServeFromLogs();
  down::StartChunk c = Chunk({1, 0, 0}, 100, 1000);
  c.prompt = {7};
  c.logs = c.stores = true;
  Tell(c);
  StepAndSay(machine);
  const auto first = Said<up::StepTokens>().chunks.at(0);
  ASSERT_TRUE(first.logged.valid());
  world.bad_log = 1;
  StepAndSay(machine);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(std::get<up::LogsNoMore>(said[0]).why, "the disk is full");
  const auto over = std::get<up::StepTokens>(said[1]).chunks.at(0);
  EXPECT_EQ(over.end, ChunkEnd::kCancelled);
  EXPECT_EQ(over.tokens.size(), 0);
  EXPECT_EQ(over.from, first.tokens.size());
  EXPECT_FALSE(machine.exit_code());
  EXPECT_FALSE(machine.CanStep());
  said.clear();
  // The controller has read what was said, and asks for no log any more.
  c.logs = c.stores = false;
  c.generated = world.logs.begin()->second.at(0).tokens.ids;
  Tell(c);
  StepAndSay(machine);
  const auto next = Said<up::StepTokens>().chunks.at(0);
  EXPECT_EQ(next.from, first.tokens.size());
  EXPECT_FALSE(next.logged.valid());
  EXPECT_FALSE(next.tokens.outlined);
}

// Its turns are in the logs of several workers; it has written the last one.
TEST_F(DeviceMachineTest, WritesThePayloadOfWhatOthersHaveLogged) {
  ServeFromLogs();
  const SampleId tid{1, 0, 0};
  const int64_t file = storage::FirstFileOf(Incarnation{9});
  sample::Segment turn{.ids = {1, 2}, .logprobs = {-1, -1}, .versions = {{{0, 4}, 2}}};
  const sample::Segment answer{.kind = sample::SegmentKind::kObservation, .ids = {3}};
  world.logs[file].push_back({{tid, 0}, 0, {}, turn});
  world.logs[file].push_back({{tid, 0}, 2, {file, 0}, answer});
  turn.turn = sample::TurnStart{5, 0.5};
  sample::Trajectory what{.tid = tid, .att = 0, .finish = sample::Finish::kEos};
  what.prompt = sample::PromptSegment({7});
  what.segments = {turn, answer};
  Tell(down::Store{{file, 1}, what.Outline()});
  const auto declined = Said<up::Stored>();
  EXPECT_EQ(declined.error, "its prompt is not here") << "it has not had the sample";
  EXPECT_TRUE(declined.declined);
  // Where there is no prompt, as of a fragment of a control task, none is needed.
  sample::Trajectory bare = what;
  bare.prompt = sample::PromptSegment({});
  Tell(down::Store{{file, 1}, bare.Outline()});
  EXPECT_EQ(Said<up::Stored>().error, "");
  down::StartChunk c = Chunk(tid);
  c.prompt = {7};
  c.logs = true;
  Tell(c);
  Tell(down::Store{{file, 1}, what.Outline()});
  const auto stored = Said<up::Stored>();
  EXPECT_EQ(stored.error, "");
  EXPECT_EQ(stored.newest, (storage::TokenPlace{file, 1}));
  EXPECT_EQ(world.payload.at({stored.ref.file, stored.ref.offset}), what);
}

TEST_F(DeviceMachineTest, EveryChunkHasOneEnd) {
  Serve();
  Start(1);
  Start(2);
  Tell(down::CancelChunk{.slot = kSlot, .tid = {1, 0, 0}});
  EXPECT_EQ(Said<up::StepTokens>().chunks[0].end, ChunkEnd::kCancelled);
  Tell(down::Drain{.slot = kSlot, .epoch = {3}});
  ASSERT_EQ(said.size(), 2u);
  const auto& drained = std::get<up::StepTokens>(said[0]);
  ASSERT_EQ(drained.chunks.size(), 1u) << "the other one has had its end";
  EXPECT_EQ(drained.chunks[0].end, ChunkEnd::kDrained);
  EXPECT_EQ(std::get<up::Drained>(said[1]).epoch, SlotEpoch{3});
  said.clear();
  Tell(down::Grant{.slot = kSlot, .epoch = {4}, .role = Role::kRollout});  // the drain was called off
  Said<up::Granted>();
  Start(3, 4);
  EXPECT_TRUE(said.empty()) << "weights and admission stayed";
  Tell(down::Grant{.slot = kSlot, .epoch = {5}, .role = Role::kActor});
  Said<up::Granted>();
  Start(4, 5);
  EXPECT_EQ(Said<up::StepTokens>().chunks[0].end, ChunkEnd::kCancelled);
}

TEST_F(DeviceMachineTest, ACancelOfWhatIsOverIsNotAnswered) {
  Serve();
  Start(1);
  while (machine.CanStep()) StepAndSay(machine);
  EXPECT_TRUE(std::get<up::StepTokens>(said.back()).chunks[0].ended);
  said.clear();
  Tell(down::CancelChunk{.slot = kSlot, .tid = {1, 0, 0}});
  EXPECT_TRUE(said.empty()) << "it would end the next chunk of the sample";
}

TEST_F(DeviceMachineTest, AStartOfWhatRunsLeavesItsOffsets) {
  device.mean_tokens = 1'000'000;
  Serve();
  Start(1);
  StepAndSay(machine);
  const int64_t had = Said<up::StepTokens>().chunks[0].tokens.size();
  ASSERT_GT(had, 0);
  Start(1);
  EXPECT_TRUE(said.empty());
  StepAndSay(machine);
  EXPECT_EQ(Said<up::StepTokens>().chunks[0].from, had);
}

// A message a step would be most of what goes over the wire.
TEST_F(DeviceMachineTest, TokensOfAFewStepsAreSaidTogether) {
  device.mean_tokens = 1'000'000;
  Serve();
  for (int32_t i = 0; i < 2; ++i) Tell(Chunk({1, 0, i}, 1000, 10'000));
  TimePoint now;
  const auto step = [&](int ms) {
    machine.Step([&] { return now; });
    now = now + std::chrono::milliseconds(ms);
  };
  for (int i = 0; i < 10; ++i) step(10);
  EXPECT_TRUE(said.empty());
  step(10);
  const auto together = Said<up::StepTokens>();
  ASSERT_EQ(together.chunks.size(), 2u);
  for (const up::ChunkDelta& d : together.chunks) {
    EXPECT_GE(d.tokens.size(), 11);
    EXPECT_EQ(d.from, 0);
    EXPECT_EQ(d.tokens.versions.size(), 1u);
  }
  EXPECT_NEAR(together.step_s, 11 * 0.03, 1e-9);
  step(1);
  // A command is answered behind the tokens of before.
  Tell(down::CancelChunk{.slot = kSlot, .tid = {1, 0, 0}});
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(std::get<up::StepTokens>(said[0]).chunks.size(), 2u);
  EXPECT_EQ(std::get<up::StepTokens>(said[1]).chunks[0].end, ChunkEnd::kCancelled);
  said.clear();
  // The end of a chunk is said at once.
  while (said.empty() && machine.CanStep()) step(0);
  EXPECT_TRUE(Said<up::StepTokens>().chunks[0].ended);
}

TEST_F(DeviceMachineTest, AChunkWhoseTokensAreNotHereIsGivenBack) {
  Serve();
  down::StartChunk c = Chunk({1, 0, 0});
  c.have = 3;
  Tell(std::move(c));
  const auto answer = Said<up::StepTokens>();
  EXPECT_EQ(answer.chunks[0].end, ChunkEnd::kCancelled);
  EXPECT_EQ(answer.chunks[0].from, 3);
  EXPECT_FALSE(machine.CanStep());
}

TEST_F(DeviceMachineTest, WhatIsSentAgainComesInBoundedMessages) {
  device.mean_tokens = 1'000'000;
  Serve();
  Start(1);
  int64_t made = 0;
  while (made < 10'000) {
    if (!machine.CanStep()) {  // the next chunk
      down::StartChunk c = Chunk({1, 0, 0}, 4000, 20'000);
      for (const FromWorkerBody& body : said) {
        for (const auto& d : std::get<up::StepTokens>(body).chunks)
          c.generated.insert(c.generated.end(), d.tokens.ids.begin(), d.tokens.ids.end());
      }
      made = static_cast<int64_t>(c.generated.size());
      Tell(std::move(c));
    }
    StepAndSay(machine);
  }
  said.clear();
  Tell(down::Resend{kSlot, {1, 0, 0}, 0, 0});
  EXPECT_GE(said.size(), 5u);
  int64_t at = 0;
  for (const FromWorkerBody& body : said) {
    int64_t size = 0;
    for (const auto& d : std::get<up::StepTokens>(body).chunks) {
      EXPECT_EQ(d.from, at);
      at += d.tokens.size();
      size += d.tokens.size();
    }
    EXPECT_LE(size, 2048);
  }
  EXPECT_GE(at, made);
}

TEST_F(DeviceMachineTest, ATrainedStepLeavesNoVersionUntilOneIsLoaded) {
  world.rows = [](int64_t, StepNumber, Incarnation, int64_t) -> StatusOr<std::vector<BatchRow>> {
    return std::vector<BatchRow>(2);
  };
  Serve();
  Tell(down::Grant{.slot = kSlot, .epoch = {3}, .role = Role::kActor});
  Said<up::Granted>();
  Tell(down::Train{.slot = kSlot, .epoch = {3}, .lease = 7, .step = {1}, .rows = 2});
  EXPECT_NE(Said<up::TrainFailed>().why.find("state"), std::string::npos) << "there is none yet";
  Tell(down::InitState{.slot = kSlot, .request = 6});
  EXPECT_EQ(Said<up::StateReady>().request, 6);
  Tell(down::Train{.slot = kSlot, .epoch = {3}, .lease = 7, .step = {2}, .rows = 2});
  EXPECT_EQ(Said<up::TrainFailed>().lease, 7) << "the state is not that of the step before";
  Tell(down::Train{.slot = kSlot, .epoch = {3}, .lease = 8, .step = {1}, .rows = 3});
  const auto failed = Said<up::TrainFailed>();
  EXPECT_EQ(failed.lease, 8);
  EXPECT_FALSE(failed.torn);
  Tell(down::Train{.slot = kSlot, .epoch = {3}, .lease = 9, .step = {1}, .rows = 2});
  const auto done = Said<up::TrainDone>();
  EXPECT_EQ(done.lease, 9);
  EXPECT_EQ(done.step, StepNumber{1});
  Tell(down::Attached{4, 0}, 4, 4);
  const auto offer = Said<up::Offer>();
  EXPECT_FALSE(offer.slots[0].holds.valid());
  EXPECT_EQ(offer.slots[0].state_step, StepNumber{1});
  EXPECT_EQ(offer.slots[0].state_digest, done.weights_digest);
}

TEST_F(DeviceMachineTest, RowsThatCannotBeTrainedOnAreNamed) {
  world.rows = [](int64_t, StepNumber, Incarnation, int64_t) -> StatusOr<std::vector<BatchRow>> {
    std::vector<BatchRow> rows(2);
    rows[1].trajectory.tid = {12, 0, 3};
    return rows;
  };
  world.bad_row = 1;
  Serve();
  Tell(down::Grant{.slot = kSlot, .epoch = {3}, .role = Role::kActor});
  Said<up::Granted>();
  Tell(down::InitState{.slot = kSlot, .request = 6});
  Said<up::StateReady>();
  Tell(down::Train{.slot = kSlot, .epoch = {3}, .lease = 8, .step = {1}, .rows = 2});
  const auto failed = Said<up::TrainFailed>();
  EXPECT_TRUE(failed.data);
  EXPECT_FALSE(failed.torn);
  ASSERT_EQ(failed.bad.size(), 2u);
  EXPECT_EQ(failed.bad[1].tid, (SampleId{12, 0, 3}));
  EXPECT_EQ(failed.bad[1].why, "no rank can use it");
}

// Also one that came together with the step's own.
TEST_F(DeviceMachineTest, AStepIsCalledOffByACommandThatWaitsBehindIt) {
  device.called_off = [this](int64_t lease) { return machine.CalledOff(lease); };
  world.rows = [](int64_t, StepNumber, Incarnation, int64_t) -> StatusOr<std::vector<BatchRow>> {
    return std::vector<BatchRow>();
  };
  Serve();
  Tell(down::Grant{.slot = kSlot, .epoch = {3}, .role = Role::kActor});
  Said<up::Granted>();
  Tell(down::InitState{.slot = kSlot});
  Said<up::StateReady>();
  const auto abort = [](int64_t lease) {
    return down::AbortStep{.slot = kSlot, .epoch = {3}, .lease = lease};
  };
  machine.Put({3, down::Train{.slot = kSlot, .epoch = {3}, .lease = 9, .step = {1}}});
  Tell(abort(9));
  EXPECT_EQ(Said<up::StepAborted>().lease, 9) << "and nothing of the step";
  machine.Put({3, down::Train{.slot = kSlot, .epoch = {3}, .lease = 10, .step = {1}}});
  Tell(abort(9));
  EXPECT_EQ(said.size(), 2U) << "of another lease: the step is done, and the command answered";
  machine.Put({3, down::Train{.slot = kSlot, .epoch = {3}, .lease = 11, .step = {2}}});
  said.clear();
  Tell(down::Attached{4, 0}, 4, 4);
  EXPECT_TRUE(Said<up::Offer>().last);
}

TEST_F(DeviceMachineTest, ATrainerThatWaitsComputesColumnsAPieceAtATime) {
  Serve();
  const down::Preview hint{
      .slot = kSlot, .epoch = {3}, .v = kVersion, .rows = {{.tid = {1, 0, 0}}, {.tid = {1, 0, 1}}}};
  down::Preview early = hint;
  early.epoch = {2};
  Tell(early);
  EXPECT_FALSE(machine.CanPreview()) << "the slot generates";
  Tell(down::Grant{.slot = kSlot, .epoch = {3}, .role = Role::kActor});
  Said<up::Granted>();
  Tell(early);
  EXPECT_FALSE(machine.CanPreview()) << "of an earlier epoch of the slot";
  Tell(hint);
  ASSERT_TRUE(machine.CanPreview());
  machine.PreviewPiece();
  EXPECT_EQ(world.previewed, 1);
  EXPECT_TRUE(said.empty()) << "nobody waits for an answer";
  Tell(down::Release{.slot = kSlot, .epoch = {4}});
  EXPECT_FALSE(machine.CanPreview()) << "forgotten with the role";
}

// Before the step, too: its rows may be read longer than the controller needs to learn of a signal.
TEST_F(DeviceMachineTest, AnEvaluationIsEndedByACommandBeforeItsStepOrWithin) {
  Serve();
  Tell(down::Grant{.slot = kSlot, .epoch = {3}, .role = Role::kActor});
  EXPECT_FALSE(machine.EvaluationEnded(9));
  Tell(down::EndEvaluation{.slot = kSlot, .epoch = {3}, .lease = 9});
  EXPECT_TRUE(machine.EvaluationEnded(9));
  EXPECT_FALSE(machine.EvaluationEnded(10));
  machine.Put({3, down::EndEvaluation{.slot = kSlot, .epoch = {3}, .lease = 10}});
  EXPECT_TRUE(machine.EvaluationEnded(10));
  EXPECT_FALSE(machine.CalledOff(10)) << "the step itself goes on";
}

}  // namespace
}  // namespace tidepool::workers
