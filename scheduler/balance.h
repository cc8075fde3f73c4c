#pragma once
// Shares a batch over the ranks of a training group, whole groups together, so that all finish at about
// the same time: k-way largest differencing (Karmarkar & Karp 1982). Pure.

#include <cstdint>
#include <span>
#include <vector>

namespace tidepool::scheduler {

// Indices of `costs` per rank, each list sorted. `equal_count`: every rank gets as many items as the
// others, up to one.  requires ranks > 0. Deterministic: ties go by index. O(n log n * ranks).
std::vector<std::vector<int64_t>> BalancedPartition(std::span<const double> costs, int64_t ranks,
                                                    bool equal_count = false);

}  // namespace tidepool::scheduler
