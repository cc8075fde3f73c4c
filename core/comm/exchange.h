#pragma once
// What the ways by which ranks exchange have in common. For the sources of this folder.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

// own += what the other ranks have, `of(rank)` for each: one after the other, so that the bits of a sum
// follow from the ranks, whoever forms it. A piece at a time stays in the cache.
template <typename T, typename Of>
void SumInOrder(std::span<T> own, int me, int ranks, Of of) {
  constexpr size_t kPiece = 2048;
  T sum[kPiece];
  for (size_t from = 0; from < own.size(); from += kPiece) {
    const size_t n = std::min(kPiece, own.size() - from);
    for (int rank = 0; rank < ranks; ++rank) {
      const T* x = (rank == me ? own.data() : of(rank)) + from;
      if (rank == 0)
        std::copy_n(x, n, sum);
      else
        for (size_t i = 0; i < n; ++i) sum[i] += x[i];
    }
    std::copy_n(sum, n, own.data() + from);
  }
}

}  // namespace tidepool::comm
