#pragma once
// Shares a batch over the ranks of a training group, whole groups together, so that all finish at about
// the same time: k-way largest differencing (Karmarkar & Karp 1982). Pure.

#include <cstdint>
#include <span>
#include <vector>

namespace tidepool::scheduler {

// Cost of training one sample: a * tokens + b * tokens^2 (attention), in any unit.
struct SampleCost {
  double a = 1, b = 0;
  [[nodiscard]] double operator()(int64_t tokens) const {
    const auto n = static_cast<double>(tokens);
    return a * n + b * n * n;
  }
};

// Indices of `costs` per rank, each list sorted. `equal_count`: every rank gets as many items as the
// others, up to one.  requires ranks > 0. Deterministic: ties go by index. O(n log n * ranks).
std::vector<std::vector<int64_t>> BalancedPartition(std::span<const double> costs, int64_t ranks,
                                                    bool equal_count = false);

}  // namespace tidepool::scheduler
