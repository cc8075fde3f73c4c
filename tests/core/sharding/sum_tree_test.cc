// The tree over tiles: one order whoever has which of its nodes.

#include "core/sharding/sum_tree.h"

#include <gtest/gtest.h>

#include <string>

namespace tidepool::sharding {
namespace {

std::string Written(std::vector<SumNode> nodes) {
  std::vector<std::string> sums;
  for (const SumNode& n : nodes) {  // what a node has added up by itself
    std::vector<SumNode> leaves;
    std::vector<std::string> names;
    for (int32_t t = 0; t < n.tiles; ++t) {
      leaves.push_back({t, 1});
      names.push_back(std::to_string(n.first + t));
    }
    AddUpTree(leaves,
              [&](size_t left, size_t right) { names[left] = "(" + names[left] + names[right] + ")"; });
    sums.push_back(names[0]);
  }
  AddUpTree(nodes, [&](size_t left, size_t right) { sums[left] = "(" + sums[left] + sums[right] + ")"; });
  return sums[0];
}

TEST(SumTreeTest, NeighboursFirstWhoeverHasTheNodes) {
  EXPECT_EQ(Written({{0, 1}}), "0");
  EXPECT_EQ(Written({{0, 2}}), "(01)");
  EXPECT_EQ(Written({{0, 3}}), "((01)2)");
  for (const std::vector<SumNode>& nodes : {std::vector<SumNode>{{0, 6}},
                                            {{0, 2}, {2, 1}, {3, 1}, {4, 2}},
                                            {{0, 2}, {2, 2}, {4, 2}},
                                            {{0, 4}, {4, 1}, {5, 1}}})
    EXPECT_EQ(Written(nodes), "(((01)(23))(45))");
  EXPECT_EQ(Written({{0, 4}}), "((01)(23))");
  EXPECT_EQ(Written({{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}}), "(((01)(23))4)");
}

}  // namespace
}  // namespace tidepool::sharding
