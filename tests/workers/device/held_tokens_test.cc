#include "workers/device/held_tokens.h"

#include <gtest/gtest.h>

#include "core/base/rng.h"

namespace tidepool::workers {
namespace {

up::ChunkDelta Delta(const SampleId& tid, std::vector<int32_t> ids, bool ended = false) {
  up::ChunkDelta d;
  d.tid = tid;
  d.tokens.ids = std::move(ids);
  d.tokens.logprobs.assign(d.tokens.ids.size(), -1);
  d.tokens.versions = {{{0, 3}, static_cast<int64_t>(d.tokens.ids.size())}};
  d.ended = ended;
  return d;
}

constexpr SampleId kTid{7, 0, 1};

down::StartChunk Chunk(std::vector<int32_t> generated, std::vector<int32_t> prompt = {5, 6}) {
  down::StartChunk c;
  c.tid = kTid;
  c.gid = {1};
  c.prompt = std::move(prompt);
  c.generated = std::move(generated);
  return c;
}
// The next chunk as the controller says it who thinks that `have` of these tokens are with the worker.
down::StartChunk Shortened(down::StartChunk c, int64_t have) {
  c.have = have;
  c.have_hash = sample::HashOfIds(c.prompt, c.generated, static_cast<size_t>(have));
  c.prompt.clear();
  c.generated.erase(c.generated.begin(), c.generated.begin() + have);
  return c;
}

TEST(HeldTokensTest, NamesOffsetsAndSaysEverythingAgainWithOneEnd) {
  HeldTokens held;
  held.SetKept(true);
  held.Begin(Chunk({}));
  up::ChunkDelta first = Delta(kTid, {10, 11}, /*ended=*/true);
  held.Say(first);
  EXPECT_EQ(first.from, 0);
  held.Begin(Chunk({10, 11}));  // the next chunk of the same attempt
  up::ChunkDelta second = Delta(kTid, {12});
  held.Say(second);
  EXPECT_EQ(second.from, 2);
  const auto offered = held.Offered({0});
  ASSERT_EQ(offered.size(), 1u);
  EXPECT_EQ(offered[0].tokens, 3);
  EXPECT_EQ(offered[0].newest, (Version{0, 3}));
  const auto all = held.From(kTid, 0, 0);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_FALSE(all[0].ended) << "the end of an earlier chunk would end the one that is under way";
  EXPECT_EQ(all[0].tokens.ids, (std::vector<int32_t>{10, 11, 12}));
  const auto behind = held.From(kTid, 0, 1);
  ASSERT_EQ(behind.size(), 1u);
  EXPECT_EQ(behind[0].from, 1);
  EXPECT_EQ(behind[0].tokens.ids, (std::vector<int32_t>{11, 12}));
  held.Forget({1});
  EXPECT_TRUE(held.Offered({0}).empty());
}

// Whoever reads what is said again, from wherever, has what was said, and no more messages than it needs.
TEST(HeldTokensTest, WhatIsSaidAgainIsWhatWasSaid) {
  Rng rng(testing::UnitTest::GetInstance()->random_seed());
  for (int round = 0; round < 200; ++round) {
    HeldTokens held;
    held.SetKept(true);
    held.Begin(Chunk({}));
    const bool routed = rng.Below(4) == 0, cuts = rng.Below(2) == 0;
    sample::Segment said;
    for (int64_t steps = rng.Below(3000); steps > 0; --steps) {
      up::ChunkDelta d =
          Delta(kTid, std::vector<int32_t>(1 + rng.Below(2), static_cast<int32_t>(rng.Below(500))));
      d.tokens.versions[0].first.number = said.size() / 700;
      if (cuts) d.tokens.log_kept.assign(d.tokens.ids.size(), -0.5F);
      if (routed) d.tokens.routing = "expert";
      d.ended = steps == 1;
      said.Append(d.tokens);
      held.Say(d);
    }
    const int64_t from = routed ? 0 : rng.Below(said.size() + 1);  // routing is not cut
    sample::Segment again;
    bool ended = false;
    const auto deltas = held.From(kTid, 0, from);
    int64_t at = from;
    for (const up::ChunkDelta& d : deltas) {
      EXPECT_EQ(d.from, at);
      at += d.tokens.size();
      again.Append(d.tokens);
      ended = d.ended;
    }
    EXPECT_EQ(again, routed ? said : said.Tail(from)) << "from " << from << " of " << said.size();
    EXPECT_EQ(ended, said.size() > 0);
    if (!routed) EXPECT_LE(deltas.size(), static_cast<size_t>(said.size()) / 1024 + 1);
  }
}

// A hedge sent the attempt elsewhere, and it came back with as many tokens, but others.
TEST(HeldTokensTest, WhatAnotherWorkerMadeOfAnAttemptIsNotOffered) {
  HeldTokens held;
  held.SetKept(true);
  held.Begin(Chunk({}));
  up::ChunkDelta mine = Delta(kTid, {10, 11});
  held.Say(mine);
  held.Begin(Chunk({10, 99}));
  up::ChunkDelta next = Delta(kTid, {12});
  held.Say(next);
  EXPECT_EQ(next.from, 2);
  EXPECT_TRUE(held.Offered({0}).empty());
  EXPECT_TRUE(held.From(kTid, 0, 0).empty());
  const auto partial = held.TakePartial();
  ASSERT_EQ(partial.size(), 1u);
  EXPECT_EQ(partial[0].first, kTid);
}

TEST(HeldTokensTest, OffersNothingWhereWorkersEndWithTheirController) {
  HeldTokens held;
  held.Begin(Chunk({}));
  up::ChunkDelta a = Delta(kTid, {1}), b = Delta(kTid, {2, 3}, true);
  held.Say(a);
  held.Say(b);
  EXPECT_EQ(b.from, 1);
  EXPECT_TRUE(held.Offered({0}).empty());
  EXPECT_TRUE(held.From(kTid, 0, 0).empty());
  EXPECT_EQ(held.TakePartial().size(), 1u);
}

// Whether deltas are kept or not, the next chunk of an attempt need not bring along what is here.
TEST(HeldTokensTest, PutsInWhatTheControllerLeftOut) {
  for (const bool kept : {false, true}) {
    HeldTokens held;
    held.SetKept(kept);
    held.Begin(Chunk({}));
    up::ChunkDelta a = Delta(kTid, {1, 2}), b = Delta(kTid, {3}, true);
    b.end = scheduler::event::ChunkEnd::kChunkLimit;
    held.Say(a);
    held.Say(b);
    const auto whole = Chunk({1, 2, 3, 70, 71});  // an environment has said something
    down::StartChunk next = Shortened(whole, 3);
    ASSERT_TRUE(held.Complete(next));
    EXPECT_EQ(next.prompt, whole.prompt);
    EXPECT_EQ(next.generated, whole.generated);
    held.Begin(next);
    up::ChunkDelta c = Delta(kTid, {4});
    held.Say(c);
    EXPECT_EQ(c.from, 5);
    next = Shortened(Chunk({1, 2, 3, 70, 71, 4}), 2);  // a part of what is here
    ASSERT_TRUE(held.Complete(next));
    EXPECT_EQ(next.generated, (std::vector<int32_t>{1, 2, 3, 70, 71, 4}));
  }
}

TEST(HeldTokensTest, WhatIsNotHereAsTheControllerThinksIsAskedForWhole) {
  using scheduler::event::ChunkEnd;
  const auto after = [](const std::function<void(HeldTokens&)>& change, down::StartChunk next) {
    HeldTokens held;
    held.Begin(Chunk({}));
    up::ChunkDelta a = Delta(kTid, {1, 2, 3}, true);
    a.end = ChunkEnd::kChunkLimit;
    held.Say(a);
    change(held);
    const bool completed = held.Complete(next);
    if (!completed) {
      up::ChunkDelta end{kTid, 0, {}, true, ChunkEnd::kCancelled, "not here"};
      held.Say(end);
      EXPECT_EQ(end.from, 3) << "the end of the chunk is where the controller expects it";
    }
    return completed;
  };
  const auto nothing = [](HeldTokens&) {};
  EXPECT_TRUE(after(nothing, Shortened(Chunk({1, 2, 3}), 3)));
  EXPECT_FALSE(after(nothing, Shortened(Chunk({1, 9, 3}), 3))) << "other tokens";
  EXPECT_FALSE(after(nothing, Shortened(Chunk({1, 2, 3}, {5, 7}), 3))) << "another prompt";
  EXPECT_FALSE(after([](HeldTokens& held) { held.Drop(kTid, 0); }, Shortened(Chunk({1, 2, 3}), 3)));
  EXPECT_FALSE(after([](HeldTokens& held) { held.Forget({1}); }, Shortened(Chunk({1, 2, 3}), 3)));
  EXPECT_FALSE(after([](HeldTokens& held) { held.Clear(); }, Shortened(Chunk({1, 2, 3}), 3)));
}

// Attempts that went to other workers are forgotten some day, the oldest first.
TEST(HeldTokensTest, IdleAttemptsTakeNoMoreThanTheirLimit) {
  HeldTokens held;
  const std::vector<int32_t> prompt(1 << 20, 3);
  std::vector<down::StartChunk> chunks;
  for (int64_t i = 0; i < 20; ++i) {
    down::StartChunk c = Chunk({}, prompt);
    c.tid = {i, 0, 0};
    held.Begin(c);
    up::ChunkDelta d = Delta(c.tid, {1}, true);
    d.end = scheduler::event::ChunkEnd::kDrained;
    held.Say(d);
    c.generated = {1};
    chunks.push_back(Shortened(std::move(c), 1));
  }
  for (size_t i = 0; i < chunks.size(); ++i) EXPECT_EQ(held.Complete(chunks[i]), i >= 5) << i;
}

}  // namespace
}  // namespace tidepool::workers
