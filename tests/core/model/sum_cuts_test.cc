// Where sums are cut: the same places for one to four ranks, each with nodes of the whole's tree.

#include "core/model/sum_cuts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/model/cut.h"
#include "tests/core/model/reference.h"

namespace tidepool::model {
namespace {

ModelSpec Spec(int64_t kv_heads, int64_t inner) {
  ModelSpec s = TinySpec();
  s.kv_heads = kv_heads, s.heads = 2 * kv_heads, s.intermediate_size = inner, s.vocab_size = 53;
  return s;
}

// What is added up first, and so on: "((01)2)".
std::string Tree(const std::vector<std::vector<SumNode>>& of_ranks) {
  std::vector<SumNode> nodes;
  std::vector<std::string> sums;
  for (const auto& rank : of_ranks) {
    for (const SumNode& n : rank) {
      std::vector<SumNode> leaves;
      std::vector<std::string> names;
      for (int32_t t = 0; t < n.tiles; ++t) {
        leaves.push_back({t, 1});
        names.push_back(std::to_string(n.first + t));
      }
      sharding::AddUpTree(leaves, [&](size_t l, size_t r) { names[l] = "(" + names[l] + names[r] + ")"; });
      nodes.push_back(n);
      sums.push_back(names[0]);
    }
  }
  sharding::AddUpTree(nodes, [&](size_t l, size_t r) { sums[l] = "(" + sums[l] + sums[r] + ")"; });
  return sums[0];
}

TEST(SumCutsTest, OneToFourRanksAddUpTheSameTilesByTheSameTree) {
  for (const int64_t kv : {1, 2, 3, 4, 6, 8, 12, 24}) {
    const ModelSpec spec = Spec(kv, 48);
    const SumCuts one(spec, {}, true);
    for (int64_t ranks = 1; ranks <= 4; ++ranks) {
      if (!CheckCut(spec, ranks).ok()) continue;
      SCOPED_TRACE(std::to_string(kv) + " heads, " + std::to_string(ranks) + " ranks");
      const SumCuts cuts(spec, {ranks - 1, ranks}, true);
      EXPECT_TRUE(cuts.as_whole(spec));
      EXPECT_EQ(Tree(cuts.nodes()), Tree(one.nodes()));
      const std::vector<int64_t> segments = {48, 53};
      // The places of all ranks behind each other are those of one.
      const device::SumTiles whole = one.Of({0, one.tiles()}, segments);
      std::vector<int64_t> ends[2];
      int64_t before[2] = {0, 0};
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const SumCuts of(spec, {rank, ranks}, true);
        const device::SumTiles mine = of.Of({of.first(), of.end() - of.first()}, segments);
        EXPECT_EQ(mine.unit, whole.unit);
        EXPECT_EQ(mine.begin[1], mine.end[0][mine.tiles - 1]);
        for (int s = 0; s < 2; ++s) {
          for (int32_t t = 0; t < mine.tiles; ++t)
            ends[s].push_back(before[s] + mine.end[s][t] - mine.begin[s]);
          before[s] = ends[s].back();
        }
      }
      for (int s = 0; s < 2; ++s)
        for (int32_t t = 0; t < whole.tiles; ++t)
          EXPECT_EQ(ends[s][static_cast<size_t>(t)], whole.end[s][t] - whole.begin[s]);
    }
  }
}

TEST(SumCutsTest, MoreRanksAndHalvesOfWordsAreCutByThemselves) {
  const ModelSpec eight = Spec(8, 64);
  EXPECT_FALSE(SumCuts(eight, {7, 8}, true).as_whole(eight));
  EXPECT_EQ(SumCuts(eight, {7, 8}, true).tiles(), 8);
  const ModelSpec odd = Spec(4, 36);  // 9 of 36 for each of four
  EXPECT_FALSE(SumCuts(odd, {0, 4}, true).as_whole(odd));
  EXPECT_TRUE(SumCuts(odd, {0, 2}, true).as_whole(odd));
  EXPECT_EQ(SumCuts(odd, {}, true).tiles(), 2);
  EXPECT_EQ(SumCuts(odd, {}, false).tiles(), 1);
}

}  // namespace
}  // namespace tidepool::model
