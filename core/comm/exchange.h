#pragma once
// What the ways by which ranks exchange have in common. For the sources of this folder.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "core/comm/collective.h"
#include "core/sharding/intervals.h"

namespace tidepool::comm {

// Who says that the ranks of a group did not come together.
inline std::string Ranks(const GroupOptions& o) {
  return "collective group of " + std::to_string(o.size) + " ranks: rank " + std::to_string(o.rank);
}

// The bucket of an interval; past its end: empty.
inline sharding::Interval Bucket(const sharding::Interval& of, int64_t bucket, int64_t size) {
  return sharding::Common(of, {of.from + bucket * size, of.from + (bucket + 1) * size});
}
// That the longest one has.
inline int64_t Buckets(std::span<const sharding::Interval> of_rank, int64_t size) {
  int64_t most = 0;
  for (const sharding::Interval& i : of_rank) most = std::max(most, (i.size() + size - 1) / size);
  return most;
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

// own += what the other ranks have, `of(rank)` for each: one after the other, so that the bits of a sum
// follow from the ranks, whoever forms it. A piece at a time stays in the cache.
template <typename T, typename Of>
void SumInOrder(std::span<T> own, int me, int ranks, Of of) {
  constexpr size_t kPiece = 2048;
  Wide<T> sum[kPiece];
  for (size_t from = 0; from < own.size(); from += kPiece) {
    const size_t n = std::min(kPiece, own.size() - from);
    for (int rank = 0; rank < ranks; ++rank) {
      const T* x = (rank == me ? own.data() : of(rank)) + from;
      if (rank == 0)
        for (size_t i = 0; i < n; ++i) sum[i] = Widened(x[i]);
      else
        for (size_t i = 0; i < n; ++i) sum[i] += Widened(x[i]);
    }
    for (size_t i = 0; i < n; ++i) own[from + i] = Narrowed(sum[i], T{});
  }
}

}  // namespace tidepool::comm
