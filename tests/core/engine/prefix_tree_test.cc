#include "core/engine/prefix_tree.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <numeric>
#include <vector>

namespace tidepool::engine {
namespace {

class PrefixTreeTest : public testing::Test {
 protected:
  static std::vector<int32_t> Iota(int32_t n, int32_t from = 0) {
    std::vector<int32_t> v(static_cast<size_t>(n));
    std::iota(v.begin(), v.end(), from);
    return v;
  }
  // Puts the blocks of `tokens` into the tree and lets go of them; returns them.
  std::vector<int32_t> Put(const std::vector<int32_t>& tokens, const PrefixTree::Owner& owner) {
    std::vector<int32_t> blocks;
    int32_t parent = PrefixTree::RootOf(owner.adapter);
    const std::span<const int32_t> all(tokens);
    for (size_t at = 0; at < tokens.size(); at += 4) {
      const int32_t mine = pool_.Allocate();
      parent = tree_.Insert(parent, all.subspan(at, std::min<size_t>(4, tokens.size() - at)), mine, owner);
      if (parent != mine) {
        pool_.Ref(parent);
        pool_.Unref(mine);
      }
      blocks.push_back(parent);
    }
    for (const int32_t b : blocks) pool_.Unref(b);
    pool_.Tick();
    return blocks;
  }

  BlockPool pool_{8, [this](int32_t b) { tree_.Remove(b); }};
  PrefixTree tree_{pool_, 4};
  const PrefixTree::Owner group_{.gid = GroupId{7}, .tid = std::nullopt};
  const PrefixTree::Owner sample_{.gid = GroupId{7}, .tid = SampleId{1, 0, 0}};
};

TEST_F(PrefixTreeTest, FindsTheLongestPrefixButLeavesTheLastTokenToBeFed) {
  const auto tokens = Iota(10);
  const auto blocks = Put(tokens, group_);
  auto match = tree_.Find(tokens);  // the tail of 2 would cover all tokens
  EXPECT_EQ(match.full, (std::vector<int32_t>{blocks[0], blocks[1]}));
  EXPECT_EQ(match.tail, -1);
  match = tree_.Find(Iota(11));
  EXPECT_EQ(match.tail, blocks[2]);
  EXPECT_EQ(match.tokens(4), 10);
  match = tree_.Find(Iota(8));
  EXPECT_EQ(match.full, (std::vector<int32_t>{blocks[0]}));
  EXPECT_EQ(match.tokens(4), 4);
  auto other = Iota(12);
  other[5] = 99;
  EXPECT_EQ(tree_.Find(other).full, (std::vector<int32_t>{blocks[0]}));
}

TEST_F(PrefixTreeTest, AKnownStateCoversTheWholePrompt) {
  const auto tokens = Iota(10);
  const auto blocks = Put(tokens, group_);
  const std::vector<std::byte> state(12, std::byte{3});
  tree_.SetState(blocks[2], state);
  auto match = tree_.Find(tokens);
  EXPECT_TRUE(match.complete);
  EXPECT_EQ(match.last(), blocks[2]);
  EXPECT_EQ(match.tokens(4), 10);
  tree_.SetState(blocks[1], state);
  match = tree_.Find(Iota(8));
  EXPECT_TRUE(match.complete);
  EXPECT_EQ(match.last(), blocks[1]);
  EXPECT_FALSE(tree_.Find(Iota(9)).complete);
}

TEST_F(PrefixTreeTest, EqualBlocksAreKeptOnce) {
  const auto first = Put(Iota(8), group_);
  const auto second = Put(Iota(8), group_);
  EXPECT_EQ(first, second);
  EXPECT_EQ(pool_.cached(), 2);
}

TEST_F(PrefixTreeTest, ForgettingASampleLeavesThePromptAndForgettingTheGroupTakesAll) {
  Put(Iota(4), group_);
  Put(Iota(11), sample_);
  EXPECT_EQ(pool_.cached(), 3);
  tree_.Forget(SampleId{1, 0, 1});
  EXPECT_EQ(pool_.cached(), 3);
  tree_.Forget(SampleId{1, 0, 0});
  EXPECT_EQ(pool_.cached(), 1);
  EXPECT_EQ(tree_.Find(Iota(11)).tokens(4), 4);
  tree_.ForgetGroup(GroupId{7});
  EXPECT_EQ(pool_.cached(), 0);
  EXPECT_EQ(pool_.free(), 8);
}

TEST_F(PrefixTreeTest, WhatIsHeldIsNotForgotten) {
  const auto blocks = Put(Iota(8), group_);
  pool_.Ref(blocks[0]);
  tree_.ForgetGroup(GroupId{7});
  EXPECT_TRUE(tree_.Contains(blocks[0]));
  EXPECT_FALSE(tree_.Contains(blocks[1]));
  pool_.Unref(blocks[0]);
  EXPECT_EQ(pool_.cached(), 1);
}

TEST_F(PrefixTreeTest, EvictionTakesTheEndsOfPrefixesFirst) {
  Put(Iota(16), group_);
  Put(Iota(16, 100), group_);
  for (int i = 0; i < 3; ++i) {
    const int32_t b = pool_.Allocate();
    EXPECT_EQ(tree_.Find(Iota(17)).tokens(4), 12 - 4 * i);
    EXPECT_EQ(tree_.Find(Iota(17, 100)).tokens(4), 16);
    EXPECT_FALSE(tree_.Contains(b));
  }
}

}  // namespace
}  // namespace tidepool::engine
