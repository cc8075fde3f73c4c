#pragma once
// What the ways by which ranks exchange have in common. For the sources of this folder.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/sharding/intervals.h"

namespace tidepool::comm {

// Who says that the ranks of a group did not come together.
inline std::string Ranks(const GroupOptions& o) {
  return "collective group of " + std::to_string(o.size) + " ranks: rank " + std::to_string(o.rank);
}

// The bucket of an interval; past its end: empty, at its end.
inline sharding::Interval Bucket(const sharding::Interval& of, int64_t bucket, int64_t size) {
  const int64_t from = std::min(of.to, of.from + bucket * size);
  return {from, std::min(of.to, from + size)};
}
// That the longest one has.
inline int64_t Buckets(std::span<const sharding::Interval> of_rank, int64_t size) {
  int64_t most = 0;
  for (const sharding::Interval& i : of_rank) most = std::max(most, (i.size() + size - 1) / size);
  return most;
}

// Of an exchange: ranks that disagree about what one of them gives another; `sizes`: [rank][rank] what is for
// whom, as each says; `from`: what this one awaits.
inline Status CheckSizes(std::span<const uint64_t> sizes, std::span<const sharding::Interval> from, int rank,
                         const std::string& tag) {
  const size_t ranks = from.size();
  for (size_t other = 0; other < ranks; ++other) {
    const uint64_t theirs = sizes[other * ranks + static_cast<size_t>(rank)];
    if (theirs != static_cast<uint64_t>(from[other].size()))
      return Internal("collective op=all_to_all tag=" + tag + " rank=" + std::to_string(rank) + "/" +
                      std::to_string(ranks) + ": rank " + std::to_string(other) + " has " +
                      std::to_string(theirs) + " bytes for this one, which awaits " +
                      std::to_string(from[other].size()));
  }
  return OkStatus();
}

// What a number is added up in. 16 bits are those of a bfloat16 number.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, uint16_t>, float, T>;
template <typename T>
T Widened(T x) {
  return x;
}
inline float Widened(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }
template <typename T>
T Narrowed(T x, T /*like*/) {
  return x;
}
// To the nearest, ties to even; NaN stays NaN.
inline uint16_t Narrowed(float x, uint16_t /*like*/) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40U : rounded);
}

// Of Collective::Scatter::has.
inline bool Has(std::span<const uint8_t> has, int rank) {
  return has.empty() || has[static_cast<size_t>(rank)] != 0;
}

// sum = what the ranks have, `of(rank)` for each, null where one has nothing: one after the other, so that
// the bits of a sum follow from the ranks, whoever forms it. `sum` may be one of them. A piece at a time
// stays in the cache.
template <typename T, typename Of>
void SumInOrder(std::span<T> sum, int ranks, Of of) {
  constexpr size_t kPiece = 2048;
  Wide<T> piece[kPiece];
  for (size_t from = 0; from < sum.size(); from += kPiece) {
    const size_t n = std::min(kPiece, sum.size() - from);
    bool first = true;
    for (int rank = 0; rank < ranks; ++rank) {
      const T* x = of(rank);
      if (x == nullptr) continue;
      if (first)
        for (size_t i = 0; i < n; ++i) piece[i] = Widened(x[from + i]);
      else
        for (size_t i = 0; i < n; ++i) piece[i] += Widened(x[from + i]);
      first = false;
    }
    if (first) std::fill_n(piece, n, Wide<T>{0});
    for (size_t i = 0; i < n; ++i) sum[from + i] = Narrowed(piece[i], T{});
  }
}

// Nodes of all ranks behind each other, in their order, and whose they are.
struct AllNodes {
  std::vector<sharding::SumNode> nodes;
  std::vector<std::pair<int, int64_t>> at;  // rank, number among its own
  int64_t most = 0;                         // of a rank
  explicit AllNodes(std::span<const std::vector<sharding::SumNode>> of_rank) {
    for (size_t rank = 0; rank < of_rank.size(); ++rank) {
      most = std::max(most, static_cast<int64_t>(of_rank[rank].size()));
      for (size_t i = 0; i < of_rank[rank].size(); ++i) {
        nodes.push_back(of_rank[rank][i]);
        at.emplace_back(static_cast<int>(rank), static_cast<int64_t>(i));
      }
    }
  }
};

// sum = the tree of what the nodes have, `of(rank, i)` for node i of a rank. A piece at a time stays in the
// cache.
template <typename T, typename Of>
void SumTree(std::span<T> sum, const AllNodes& all, Of of) {
  constexpr size_t kPiece = 2048;
  std::vector<float> pieces(all.nodes.size() * kPiece);
  for (size_t from = 0; from < sum.size(); from += kPiece) {
    const size_t n = std::min(kPiece, sum.size() - from);
    for (size_t node = 0; node < all.nodes.size(); ++node)
      std::copy_n(of(all.at[node].first, all.at[node].second) + from, n, pieces.data() + node * kPiece);
    sharding::AddUpTree(all.nodes, [&](size_t left, size_t right) {
      float* to = pieces.data() + left * kPiece;
      const float* more = pieces.data() + right * kPiece;
      for (size_t i = 0; i < n; ++i) to[i] += more[i];
    });
    for (size_t i = 0; i < n; ++i) sum[from + i] = Narrowed(pieces[i], T{});
  }
}

}  // namespace tidepool::comm
