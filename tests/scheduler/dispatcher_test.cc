// Which engine is given which chunk.

#include "scheduler/dispatcher.h"

#include <gtest/gtest.h>

#include <set>

#include "scheduler/fleet/health.h"

namespace tidepool::scheduler {
namespace {

Request MakeRequest(int64_t ordinal, int32_t sample, int64_t max_new = 64) {
  return {.tid = {ordinal, 0, sample},
          .gid = {ordinal},
          .att = 0,
          .prompt_len = 10,
          .max_new = max_new,
          .generated = 0,
          .only = {},
          .v_min = {},
          .v_max = {},
          .on = {},
          .home = {},
          .probe = false,
          .errors = 0};
}

// The slot of a worker that has one, of its own number.
SlotRef On(int64_t worker, int64_t inc) { return {{{worker}, {inc}}, {worker}}; }

// A dispatcher whose workers are known to it alone.
struct FleetOfEngines {
  Fleet fleet;
};
class LoneDispatcher : private FleetOfEngines, public Dispatcher {
 public:
  explicit LoneDispatcher(const DispatchOptions& options) : Dispatcher(options, fleet) {}
  void AddEngine(const SlotRef& ref) { AddEngines(ref.worker, {ref.slot}); }
  void AddEngines(const WorkerRef& worker, const std::vector<SlotId>& slots) {
    fleet.Add(worker.worker, WorkerKind::kDevice, slots);
    Health({.heartbeat_s = 0.5, .start_timeout_s = 60, .seed = 1, .launch = true}, fleet).Joined(worker, {});
    for (const SlotId slot : slots) Dispatcher::AddEngine(slot, {1});
  }
};
const auto kAnyVersion = [](const Version&) { return true; };

TEST(DispatcherTest, ProbesGoFirstThenTheLongestGroups) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 2, .kv_cache_tokens = 0});
  const SlotRef w = On(1, 5);
  d.AddEngine(w);
  for (int64_t g = 0; g < 2; ++g) {
    for (int32_t k = 0; k < 3; ++k) d.Add(MakeRequest(g, k));
  }
  EXPECT_TRUE(d.Assign(kAnyVersion).empty()) << "nothing is admitted yet";
  d.Admit({1}, {0, 0});
  auto chunks = d.Assign(kAnyVersion);
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[0].tid, (SampleId{0, 0, 0}));
  EXPECT_EQ(chunks[1].tid, (SampleId{1, 0, 0}));
  for (const auto& c : chunks) {
    EXPECT_TRUE(d.Progress(w, c.tid, 0, c.tid.ordinal == 0 ? 5 : 9, {0, 0}));
    EXPECT_EQ(d.ChunkEnded(w, c.tid, 0), Dispatcher::Ended::kLive);
    d.LearnLength(c.tid);
    d.Remove(c.tid);
  }
  chunks = d.Assign(kAnyVersion);
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[0].tid.ordinal, 1) << "its finished sibling was longer";
  EXPECT_EQ(chunks[1].tid.ordinal, 1);
}

TEST(DispatcherTest, ChunksAreBoundedAndContinueWhereTheKvIs) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 8, .kv_cache_tokens = 0});
  for (int64_t i = 1; i <= 2; ++i) {
    d.AddEngine(On(i, i));
    d.Admit({i}, {0, 0});
  }
  d.Add(MakeRequest(0, 0, 40));
  d.Add(MakeRequest(1, 0, 40));
  auto chunks = d.Assign(kAnyVersion);
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_NE(chunks[0].on, chunks[1].on);
  const SlotRef home = chunks[0].on;
  for (const int64_t expected : {16, 16, 8}) {
    EXPECT_EQ(chunks[0].tokens, expected);
    EXPECT_EQ(chunks[0].on, home);
    EXPECT_TRUE(d.Progress(home, {0, 0, 0}, 0, expected, {0, 0}));
    EXPECT_EQ(d.ChunkEnded(home, {0, 0, 0}, 0), Dispatcher::Ended::kLive);
    d.Requeue({0, 0, 0});
    if (expected == 16) chunks = d.Assign(kAnyVersion);
  }
  EXPECT_EQ(d.Find({0, 0, 0})->generated, 40);
}

// The chunk of a sample ends, and it is to go on.
void EndChunk(Dispatcher& d, const SlotRef& w, const SampleId& tid, int64_t tokens) {
  ASSERT_TRUE(d.Progress(w, tid, 0, tokens, {0, 0}));
  ASSERT_EQ(d.ChunkEnded(w, tid, 0), Dispatcher::Ended::kLive);
  d.Requeue(tid);
}

// Each of the two would compute its cache again at every chunk.
TEST(DispatcherTest, WhatHasJustEndedAChunkIsNotDisplacedByALongerOneThatWaits) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 100, .kv_cache_tokens = 60});
  const SlotRef w = On(1, 1);
  d.AddEngine(w);
  d.Admit({1}, {0, 0});
  d.Add(MakeRequest(0, 0, 40));
  d.Add(MakeRequest(0, 1, 40));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 2U);  // 26 tokens and, with the prompt that is there, 16
  d.Add(MakeRequest(0, 2, 4000));
  d.Add(MakeRequest(0, 3, 4000));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 1U) << "a fourth does not fit";
  EndChunk(d, w, {0, 0, 1}, 16);
  auto chunks = d.Assign(kAnyVersion);
  EXPECT_TRUE(chunks.empty())
      << "of 60 tokens 42 are taken, it wants 32, and the longer one does not get what it waits for";
  EndChunk(d, w, {0, 0, 2}, 16);
  chunks = d.Assign(kAnyVersion);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].tid, (SampleId{0, 0, 2}));
}

// Under pressure there is nearly always a little more room elsewhere.
TEST(DispatcherTest, AChunkThatEndsWhereItsRoomIsTooSmallDoesNotLeaveAtOnce) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 100, .kv_cache_tokens = 80});
  const SlotRef home = On(1, 1);
  for (int64_t i = 1; i <= 2; ++i) d.AddEngine(On(i, i));
  d.Admit({1}, {0, 0});
  for (int64_t g = 0; g < 3; ++g) d.Add(MakeRequest(g, 0, 64));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 3U);
  d.Admit({2}, {0, 0});
  for (int64_t g = 3; g < 5; ++g) {
    Request small = MakeRequest(g, 0, 64);
    small.prompt_len = 1;
    d.Add(small);
  }
  for (const auto& c : d.Assign(kAnyVersion)) ASSERT_EQ(c.on.slot.value, 2);
  EndChunk(d, home, {0, 0, 0}, 16);
  EXPECT_TRUE(d.Assign(kAnyVersion).empty()) << "52 of 80 are taken, it wants 32";
  const auto chunks = d.Assign(kAnyVersion);
  ASSERT_EQ(chunks.size(), 1U) << "the next to end would have gone on in its room; nothing did";
  EXPECT_EQ(chunks[0].on.slot.value, 2);
}

// A load that ends does not make a worker trustworthy that is suspect for another reason.
TEST(DispatcherTest, AnEngineTakesChunksOnlyWhileNothingBarsIt) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 1000, .kv_cache_tokens = 0});
  d.AddEngine(On(1, 1));
  d.Add(MakeRequest(0, 0, 64));
  EXPECT_TRUE(d.Assign(kAnyVersion).empty()) << "it serves no weights yet";
  d.SetBar({1}, Engine::Bar::kSuspect, true);
  d.SetBar({1}, Engine::Bar::kLoading, true);
  d.Admit({1}, {0, 0});
  EXPECT_TRUE(d.Assign(kAnyVersion).empty()) << "it has loaded, and is suspect still";
  d.SetBar({1}, Engine::Bar::kSuspect, false);
  EXPECT_EQ(d.Assign(kAnyVersion).size(), 1U);
}

// Elsewhere one worker has far too much: no reason to leave a third.
TEST(DispatcherTest, ASampleLeavesOnlyAWorkerThatItselfHasTooMuch) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 1000, .kv_cache_tokens = 0});
  for (int64_t i = 1; i <= 3; ++i) d.AddEngine(On(i, i));
  int64_t g = 0;
  const auto fill = [&](int64_t worker, int64_t n) {
    d.Admit({worker}, {0, 0});
    for (; n > 0; --n) d.Add(MakeRequest(g++, 0, 64));
    for (const auto& c : d.Assign(kAnyVersion)) EXPECT_EQ(c.on.slot.value, worker);
    d.SetBar({worker}, Engine::Bar::kSlot, true);
  };
  fill(1, 100);
  fill(2, 20);
  fill(3, 10);
  for (int64_t i = 1; i <= 3; ++i) d.SetBar({i}, Engine::Bar::kSlot, false);
  EndChunk(d, On(2, 2), {100, 0, 0}, 16);
  auto chunks = d.Assign(kAnyVersion);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].on.slot.value, 2);
  EndChunk(d, On(1, 1), {0, 0, 0}, 16);
  chunks = d.Assign(kAnyVersion);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].on.slot.value, 3);
}

TEST(DispatcherTest, LostWorkerGivesItsChunksBackWithTheirTokens) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 8, .kv_cache_tokens = 0});
  const SlotRef a = On(1, 1), b = On(2, 2);
  d.AddEngine(a);
  d.Admit({1}, {0, 3});
  d.Add(MakeRequest(0, 0));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 1U);
  d.Progress(a, {0, 0, 0}, 0, 7, {0, 3});
  EXPECT_EQ(d.RemoveEngine({1}), 1);
  EXPECT_EQ(d.in_flight(), 0);
  EXPECT_FALSE(d.Progress(a, {0, 0, 0}, 0, 7, {0, 3})) << "late tokens of a fenced worker";
  d.AddEngine(b);
  d.Admit({2}, {0, 4});
  const auto chunks = d.Assign(kAnyVersion);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(d.Find({0, 0, 0})->generated, 7);
  d.Progress(b, {0, 0, 0}, 0, 1, {0, 4});
  EXPECT_EQ(d.Find({0, 0, 0})->v_min, (Version{0, 3}));
  EXPECT_EQ(d.Find({0, 0, 0})->v_max, (Version{0, 4}));
}

TEST(DispatcherTest, WithdrawnChunkKeepsItsRoomUntilItIsAcknowledged) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 1, .kv_cache_tokens = 0});
  const SlotRef a = On(1, 1);
  d.AddEngine(a);
  d.Admit({1}, {0, 0});
  d.Add(MakeRequest(0, 0));
  d.Add(MakeRequest(1, 0));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 1U);
  EXPECT_EQ(d.Remove({0, 0, 0}), a);
  EXPECT_TRUE(d.HasGhosts({1}));
  EXPECT_TRUE(d.Assign(kAnyVersion).empty());
  EXPECT_EQ(d.ChunkEnded(a, {0, 0, 0}, 0), Dispatcher::Ended::kGone);
  EXPECT_FALSE(d.HasGhosts({1}));
  EXPECT_EQ(d.Assign(kAnyVersion).size(), 1U);
}

TEST(DispatcherTest, FreshGroupsBeginOnTheNewestWeightsWhatHasBegunGoesOnWhereItMay) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 100, .kv_cache_tokens = 0});
  for (int64_t i = 1; i <= 2; ++i) {
    d.AddEngine(On(i, i));
    d.Admit({i}, {0, 3});
  }
  d.Add(MakeRequest(0, 0));
  ASSERT_EQ(d.Assign(kAnyVersion, {0, 3}).size(), 1U);
  const SlotRef on = d.Find({0, 0, 0})->on;
  d.Progress(on, {0, 0, 0}, 0, 16, {0, 3});
  d.ChunkEnded(on, {0, 0, 0}, 0);
  d.Requeue({0, 0, 0});
  for (int64_t g = 1; g < 5; ++g) d.Add(MakeRequest(g, 0));
  auto chunks = d.Assign(kAnyVersion, {0, 4});  // committed, nobody has it yet
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].tid, (SampleId{0, 0, 0})) << "what has begun does not wait";
  d.Admit({2}, {0, 4});
  chunks = d.Assign(kAnyVersion, {0, 4});
  EXPECT_EQ(chunks.size(), on.slot == SlotId{2} ? 2U : 3U)
      << "its share of all five; the other worker follows within a load";
  for (const auto& c : chunks) EXPECT_EQ(c.on.slot, SlotId{2});
  d.Admit({1}, {0, 4});
  for (const auto& c : d.Assign(kAnyVersion, {0, 4})) EXPECT_EQ(c.v, (Version{0, 4}));
  EXPECT_EQ(d.in_flight(), 5);
}

// After a step that all slots trained, the first one back was given every sample that waited, and the others
// nothing.
TEST(DispatcherTest, WhoIsBackFirstGetsItsShareWhileOthersAreComing) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 100, .kv_cache_tokens = 0});
  for (int64_t g = 0; g < 8; ++g) d.Add(MakeRequest(g, 0));
  for (int64_t i = 1; i <= 4; ++i) {
    d.AddEngine(On(i, i));
    d.Admit({i}, {0, 3});
    for (const auto& c : d.Assign(kAnyVersion, {0, 3}, 4 - i)) EXPECT_EQ(c.on.slot, SlotId{i});
    EXPECT_EQ(d.FindEngine({i})->in_flight.size(), 2U) << i;
  }
  for (int64_t g = 8; g < 12; ++g) d.Add(MakeRequest(g, 0));
  EXPECT_EQ(d.Assign(kAnyVersion, {0, 3}).size(), 4U) << "nobody else is coming: all is given out";
}

TEST(DispatcherTest, WhatIsTakenBackGoesElsewhereAndLateWordsAreRefused) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 100, .kv_cache_tokens = 0});
  const SlotRef a = On(1, 1), b = On(2, 2);
  d.AddEngine(a);
  d.Admit({1}, {0, 0});
  d.Add(MakeRequest(0, 0));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 1U);
  d.Progress(a, {0, 0, 0}, 0, 5, {0, 0});
  ASSERT_EQ(d.TakeBack({1}).size(), 1U);
  EXPECT_TRUE(d.HasGhosts({1}));
  EXPECT_TRUE(d.Assign(kAnyVersion).empty()) << "not back to where its chunk still is";
  d.AddEngine(b);
  d.Admit({2}, {0, 0});
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 1U);
  EXPECT_EQ(d.Find({0, 0, 0})->on, b);
  EXPECT_FALSE(d.Progress(a, {0, 0, 0}, 0, 5, {0, 0}));
  EXPECT_EQ(d.ChunkEnded(a, {0, 0, 0}, 0), Dispatcher::Ended::kGone);
  EXPECT_EQ(d.in_flight(), 1);
  EXPECT_EQ(d.Find({0, 0, 0})->generated, 5);
}

TEST(DispatcherTest, PinnedSamplesEndOnTheirVersion) {
  LoneDispatcher d({.chunk_tokens = 16,
                    .max_concurrent = 100,
                    .kv_cache_tokens = 0,
                    .order = {},
                    .oracle = {},
                    .reserve = true,
                    .pin = true});
  const SlotRef a = On(1, 1);
  d.AddEngine(a);
  d.Admit({1}, {0, 3});
  d.Add(MakeRequest(0, 0));
  ASSERT_EQ(d.Assign(kAnyVersion, {0, 3}).size(), 1U);
  EXPECT_TRUE(d.NeededFor({1}));
  d.Progress(a, {0, 0, 0}, 0, 16, {0, 3});
  d.ChunkEnded(a, {0, 0, 0}, 0);
  d.Requeue({0, 0, 0});
  EXPECT_TRUE(d.NeededFor({1})) << "nobody else has its version";
  EXPECT_TRUE(d.Orphans().empty());
  d.Admit({1}, {0, 4});
  EXPECT_TRUE(d.Assign(kAnyVersion, {0, 4}).empty());
  EXPECT_EQ(d.Orphans(), std::set<GroupId>{GroupId{0}});
}

TEST(DispatcherTest, ASlowWorkerIsGivenLess) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 100, .kv_cache_tokens = 0});
  for (int64_t i = 1; i <= 3; ++i) {
    d.AddEngine(On(i, i));
    d.Admit({i}, {0, 0});
  }
  d.SetSlowness({2}, 4);
  for (int64_t g = 0; g < 18; ++g) d.Add(MakeRequest(g, 0));
  std::map<SlotId, int> given;
  for (const auto& c : d.Assign(kAnyVersion)) ++given[c.on.slot];
  EXPECT_EQ(given[{2}], 2);
  EXPECT_EQ(given[{1}] + given[{3}], 16);
}

TEST(DispatcherTest, WhatRunsIsInTheEstimateOfWhatIsLeft) {
  LoneDispatcher d({.chunk_tokens = 64, .max_concurrent = 8, .kv_cache_tokens = 0});
  const SlotRef w = On(1, 5);
  d.AddEngine(w);
  d.Admit({1}, {0, 0});
  for (int64_t g = 0; g < 4; ++g) d.Add(MakeRequest(g, 0, 1000));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 4U);
  for (int64_t g = 0; g < 4; ++g)
    EXPECT_TRUE(d.Progress(w, {g, 0, 0}, 0, g == 1 ? 40 : g == 0 ? 10 : 20, {0, 0}));
  for (int64_t g = 0; g < 2; ++g) {
    d.ChunkEnded(w, {g, 0, 0}, 0);
    d.LearnLength({g, 0, 0});
    d.Remove({g, 0, 0});
  }
  // One of four ended at 10; of the three that got further only one has ended, at 40.
  EXPECT_NEAR(d.lengths().ResidualLife(0, 1000), 0.25 * 10 + 0.75 * 40, 0.1);
}

TEST(DispatcherTest, AnEngineIsGivenOneSuspectAtATime) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 8, .kv_cache_tokens = 0});
  for (int64_t i = 1; i <= 2; ++i) {
    d.AddEngine(On(i, i));
    d.Admit({i}, {0, 0});
  }
  for (int64_t g = 0; g < 4; ++g) d.Add(MakeRequest(g, 0, 40));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 4U);
  EXPECT_TRUE(d.Blame({1}).empty());
  d.RemoveEngine({1});
  const auto next = d.Assign(kAnyVersion);
  ASSERT_EQ(next.size(), 1U) << "the other suspect waits";
  const SampleId first = next[0].tid;
  EXPECT_TRUE(d.Progress(On(2, 2), first, 0, 16, {0, 0}));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 1U) << "the first has come further than it had: it is no suspect";
  EXPECT_EQ(d.Blame({2}).size(), 1U) << "one was a suspect already";
}

// A worker dies with all its engines: each of them would take a suspect, and the second death would have two.
TEST(DispatcherTest, AWorkerIsGivenOneSuspectAtATimeWhateverItsEngines) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 8, .kv_cache_tokens = 0});
  d.AddEngines({{0}, {0}}, {{0}, {1}});
  for (const int64_t slot : {0, 1}) d.Admit({slot}, {0, 0});
  for (int64_t g = 0; g < 2; ++g) d.Add(MakeRequest(g, 0, 40));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 2U);
  EXPECT_TRUE(d.Blame({0}).empty());
  for (const int64_t slot : {0, 1}) d.RemoveEngine({slot});
  d.AddEngines({{1}, {1}}, {{2}, {3}});
  for (const int64_t slot : {2, 3}) d.Admit({slot}, {0, 0});
  EXPECT_EQ(d.Assign(kAnyVersion).size(), 1U) << "the other one waits";
}

// Taken back from one engine and started on the other of the same worker: one death counts once.
TEST(DispatcherTest, OneDeathIsCountedOnceForASampleThatIsOnTwoEnginesOfTheWorker) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 8, .kv_cache_tokens = 0});
  d.AddEngines({{0}, {0}}, {{0}, {1}});
  d.Admit({0}, {0, 0});
  d.Add(MakeRequest(0, 0, 40));
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 1U);
  ASSERT_EQ(d.TakeBack({0}).size(), 1U);
  d.Admit({1}, {0, 0});
  ASSERT_EQ(d.Assign(kAnyVersion).size(), 1U);
  EXPECT_TRUE(d.Blame({0}).empty());
  EXPECT_EQ(d.Find({0, 0, 0})->crashes, 1);
}

TEST(DispatcherTest, KvRoomBoundsWhatIsInFlight) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 100, .kv_cache_tokens = 100});
  d.AddEngine(On(1, 1));
  d.Admit({1}, {0, 0});
  for (int64_t g = 0; g < 10; ++g) d.Add(MakeRequest(g, 0));
  EXPECT_EQ(d.Assign(kAnyVersion).size(), 3U);  // 26 tokens each
}

TEST(DispatcherTest, EvaluationIsServedByItsVersionOnly) {
  LoneDispatcher d({.chunk_tokens = 16, .max_concurrent = 100, .kv_cache_tokens = 0});
  d.AddEngine(On(1, 1));
  d.Admit({1}, {0, 1});
  Request r = MakeRequest(0, SampleId::kEvalSample);
  r.only = {0, 2};
  d.Add(r);
  EXPECT_TRUE(d.Assign(kAnyVersion).empty());
  d.Admit({1}, {0, 2});
  EXPECT_EQ(d.Assign(kAnyVersion).size(), 1U);
}

TEST(DispatcherTest, ChunkLengthFollowsTheRule) {
  EXPECT_EQ(ChunkTokens(0, 64, 16), 256);
  EXPECT_EQ(ChunkTokens(0, 8192, 16), 416);
  EXPECT_EQ(ChunkTokens(0, 100000, 16), 2048);
  EXPECT_EQ(ChunkTokens(4, 8192, 16), 4);
}

}  // namespace
}  // namespace tidepool::scheduler
