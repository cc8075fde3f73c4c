#pragma once
// Sums that are formed in parts, and added up in one order whoever has which part: as a binary tree over
// tiles, neighbours first, ((0 + 1) + (2 + 3)) + (4 + 5). Pure.

#include <cstdint>
#include <span>
#include <vector>

namespace tidepool::sharding {

// Tiles [first, first + tiles), added up already.
struct SumNode {
  int32_t first = 0, tiles = 1;
  friend bool operator==(const SumNode&, const SumNode&) = default;
};

// Calls join(i, j) so that what node i has becomes i + j, until node 0 has all. requires nodes of all tiles,
// in order, that the tree has.
template <typename Join>
void AddUpTree(std::span<const SumNode> nodes, Join join) {
  struct Sum {
    size_t node;
    int32_t first, tiles;
  };
  std::vector<Sum> waiting;
  const auto join_last = [&] {
    const Sum right = waiting.back();
    waiting.pop_back();
    join(waiting.back().node, right.node);
    waiting.back().tiles += right.tiles;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    waiting.push_back({i, nodes[i].first, nodes[i].tiles});
    while (waiting.size() > 1) {
      const Sum &left = waiting[waiting.size() - 2], &right = waiting.back();
      if (left.tiles != right.tiles || left.first % (2 * left.tiles) != 0) break;
      join_last();
    }
  }
  while (waiting.size() > 1) join_last();
}

}  // namespace tidepool::sharding
