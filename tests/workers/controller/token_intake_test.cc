#include "workers/controller/token_intake.h"

#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

constexpr SampleId kTid{7, 0, 1};
constexpr WorkerRef kWorker{{2}, {5}};
constexpr SlotId kSlot{2};

struct TokenIntakeTest : testing::Test {
  SampleStore samples;
  std::vector<down::Resend> asked;
  std::vector<scheduler::Event> fed;
  TokenIntake intake{samples,
                     {.expects = [](const SlotRef&, const SampleId&, int32_t) { return true; },
                      .have_row = [](const SampleId&) { return true; },
                      .check = [](const sample::Segment&) { return OkStatus(); },
                      .feed = [this](scheduler::Event e) { fed.push_back(std::move(e)); },
                      .ask = [this](const WorkerRef&, down::Resend what) { asked.push_back(what); }}};

  void Say(int64_t from, int64_t tokens) {
    up::StepTokens step{.slot = kSlot};
    up::ChunkDelta& delta = step.chunks.emplace_back();
    delta.tid = kTid;
    delta.from = from;
    delta.tokens.ids.assign(static_cast<size_t>(tokens), 1);
    delta.tokens.logprobs.assign(static_cast<size_t>(tokens), -1.0F);
    delta.tokens.versions = {{{0, 1}, tokens}};
    intake.Take(kWorker, step);
  }
  int64_t have() { return samples.Get(kTid, 0).tokens.size(); }
};

// Else a sample would be younger in its ENQ than its oldest token.
TEST_F(TokenIntakeTest, TellsOfEachVersionOfWhatIsSaidTogether) {
  up::StepTokens step{.slot = kSlot};
  up::ChunkDelta& delta = step.chunks.emplace_back();
  delta.tid = kTid;
  delta.tokens.ids.assign(5, 1);
  delta.tokens.logprobs.assign(5, -1.0F);
  delta.tokens.versions = {{{0, 139}, 3}, {{0, 140}, 2}};
  intake.Take(kWorker, step);
  ASSERT_EQ(fed.size(), 2u);
  const auto first = std::get<scheduler::event::ChunkProgress>(fed[0]),
             second = std::get<scheduler::event::ChunkProgress>(fed[1]);
  EXPECT_EQ(first.new_tokens, 3);
  EXPECT_EQ(first.version, (Version{0, 139}));
  EXPECT_EQ(second.new_tokens, 2);
  EXPECT_EQ(second.version, (Version{0, 140}));
}

// What is in a token log comes as an outline: tokens, or a fragment of a control task.
TEST_F(TokenIntakeTest, TakesOutlinesOfWhatTheWorkerHasLogged) {
  for (const auto kind : {sample::SegmentKind::kTokens, sample::SegmentKind::kFragment}) {
    SCOPED_TRACE(Name(kind));
    samples.Drop(kTid);
    up::StepTokens step{.slot = kSlot};
    up::ChunkDelta& delta = step.chunks.emplace_back();
    delta.tid = kTid;
    delta.tokens = {.kind = kind, .versions = {{{0, 3}, 40}}, .outlined = 40};
    delta.ended = true;
    delta.logged = {storage::FirstFileOf(kWorker.inc), 0};
    fed.clear();
    intake.Take(kWorker, step);
    EXPECT_EQ(have(), 40);
    EXPECT_EQ(samples.Get(kTid, 0).logged, delta.logged);
    ASSERT_EQ(fed.size(), 2u);
    EXPECT_EQ(std::get<scheduler::event::ChunkProgress>(fed[0]).new_tokens, 40);
  }
}

// A worker that generates 40 tokens a second while the answer is on its way said all tokens 40 times.
TEST_F(TokenIntakeTest, AsksOnceForEachGap) {
  Say(0, 4);
  for (int64_t from = 8; from < 40; from += 4) Say(from, 4);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].from, 4);
  for (int64_t from = 4; from < 40; from += 4) Say(from, 4);  // the answer
  EXPECT_EQ(have(), 40);
  Say(44, 4);
  Say(48, 4);
  ASSERT_EQ(asked.size(), 2u) << "another gap";
  EXPECT_EQ(asked[1].from, 40);
}

// What the process generates before it has heard the question is behind the same gap.
TEST_F(TokenIntakeTest, WhatWasAdoptedIsAskedForOnce) {
  intake.Adopt(kWorker, {{kSlot, kTid, 0, 20, {0, 1}, {0, 1}}});
  Say(20, 4);
  Say(24, 4);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].from, 0);
  intake.Adopt({{2}, {6}}, {{kSlot, kTid, 0, 20, {0, 1}, {0, 1}}});
  EXPECT_EQ(asked.size(), 2u) << "of another process";
}

// What a worker has of an attempt is not sent to it again.
struct NextChunkTest : TokenIntakeTest {
  NextChunkTest() {
    EncodedRow row;
    row.prompt = {5, 6, 7};
    samples.PutRow(kTid.ordinal, false, row);
  }
  // The message of the next chunk, on this worker.
  down::StartChunk On(const WorkerRef& worker, int32_t att = 0) {
    return samples.StartMessage({.worker = worker, .slot = kSlot, .tid = kTid, .att = att, .gid = {3}});
  }
  void ExpectWhole(const down::StartChunk& m) {
    EXPECT_EQ(m.have, 0);
    EXPECT_EQ(m.prompt.size(), 3u);
    EXPECT_EQ(static_cast<int64_t>(m.generated.size()), have());
  }
  void End(scheduler::event::ChunkEnd end) {
    up::StepTokens step{.slot = kSlot};
    step.chunks.push_back({kTid, 0, {}, true, end, "", have()});
    intake.Take(kWorker, step);
  }
};

TEST_F(NextChunkTest, BringsWhatItsWorkerLacks) {
  ExpectWhole(On(kWorker));
  Say(0, 4);
  down::StartChunk next = On(kWorker);
  EXPECT_EQ(next.have, 4);
  EXPECT_TRUE(next.prompt.empty());
  EXPECT_TRUE(next.generated.empty());
  EXPECT_EQ(next.have_hash, sample::HashOfIds(std::vector<int32_t>{5, 6, 7}, std::vector<int32_t>(4, 1), 4));
  samples.Get(kTid, 0).tokens.Append({.kind = sample::SegmentKind::kObservation, .ids = {8, 9}});
  next = On(kWorker);
  EXPECT_EQ(next.have, 4);
  EXPECT_EQ(next.generated, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(On(kWorker).have, 6) << "it was sent them";
}

TEST_F(NextChunkTest, IsWholeForWhoMayHaveNothing) {
  using scheduler::event::ChunkEnd;
  const WorkerRef other{{1}, {5}}, successor{{2}, {6}};
  On(kWorker);
  Say(0, 4);
  ExpectWhole(On(other));
  ExpectWhole(On(kWorker));
  ExpectWhole(On(successor));
  ExpectWhole(On(kWorker));
  samples.Forgotten(kTid);  // it is told to cancel
  ExpectWhole(On(kWorker));
  samples.Forgotten({3}, other);
  EXPECT_EQ(On(kWorker).have, 4);
  samples.Forgotten({3}, kWorker);
  ExpectWhole(On(kWorker));
  for (const ChunkEnd end : {ChunkEnd::kCancelled, ChunkEnd::kError, ChunkEnd::kDataError}) {
    End(end);
    ExpectWhole(On(kWorker));
  }
  for (const ChunkEnd end : {ChunkEnd::kChunkLimit, ChunkEnd::kDrained, ChunkEnd::kEos}) {
    End(end);
    EXPECT_EQ(On(kWorker).have, 4);
  }
  const auto again = On(kWorker, 1);  // another attempt
  EXPECT_EQ(again.have, 0);
  EXPECT_EQ(again.prompt.size(), 3u);
}

}  // namespace
}  // namespace tidepool::workers
