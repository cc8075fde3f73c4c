#include "workers/device/held_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>

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
  const auto offered = held.Offered();
  ASSERT_EQ(offered.size(), 1u);
  EXPECT_EQ(offered[0].tokens, 3);
  EXPECT_EQ(offered[0].newest, (Version{0, 3}));
  const auto all = held.From(kTid, 0, 0);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_FALSE(all[0].ended) << "the end of an earlier chunk would end the one that is under way";
  EXPECT_EQ(held.From(kTid, 0, 2).size(), 1u);
  held.Forget({1});
  EXPECT_TRUE(held.Offered().empty());
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
  EXPECT_TRUE(held.Offered().empty());
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
  EXPECT_TRUE(held.Offered().empty());
  EXPECT_TRUE(held.TakePartial().empty()) << "an attempt that is over is forgotten";
}

}  // namespace
}  // namespace tidepool::workers
