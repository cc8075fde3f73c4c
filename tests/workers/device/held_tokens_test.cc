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

TEST(HeldTokensTest, NamesOffsetsAndSaysEverythingAgainWithOneEnd) {
  HeldTokens held;
  held.SetKept(true);
  held.Begin(kTid, 0, {1}, {});
  up::ChunkDelta first = Delta(kTid, {10, 11}, /*ended=*/true);
  held.Say(first);
  EXPECT_EQ(first.from, 0);
  held.Begin(kTid, 0, {1}, {10, 11});  // the next chunk of the same attempt
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
    held.Begin(kTid, 0, {1}, {});
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
  held.Begin(kTid, 0, {1}, {});
  up::ChunkDelta mine = Delta(kTid, {10, 11});
  held.Say(mine);
  held.Begin(kTid, 0, {1}, {10, 99});
  up::ChunkDelta next = Delta(kTid, {12});
  held.Say(next);
  EXPECT_EQ(next.from, 2);
  EXPECT_TRUE(held.Offered({0}).empty());
  EXPECT_TRUE(held.From(kTid, 0, 0).empty());
  const auto partial = held.TakePartial();
  ASSERT_EQ(partial.size(), 1u);
  EXPECT_EQ(partial[0].first, kTid);
}

TEST(HeldTokensTest, KeepsNothingWhereWorkersEndWithTheirController) {
  HeldTokens held;
  held.Begin(kTid, 0, {1}, {});
  up::ChunkDelta a = Delta(kTid, {1}), b = Delta(kTid, {2, 3}, true);
  held.Say(a);
  held.Say(b);
  EXPECT_EQ(b.from, 1);
  EXPECT_TRUE(held.Offered({0}).empty());
  EXPECT_TRUE(held.TakePartial().empty()) << "an attempt that is over is forgotten";
}

}  // namespace
}  // namespace tidepool::workers
