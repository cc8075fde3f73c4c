#pragma once
// Rows into parts of equal cost, as the checking interface offers it. Jobs share rows by
// scheduler/placement.h. Pure and deterministic.

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"

namespace tidepool::algorithms {

// k parts of about equal total by Karmarkar-Karp's largest differencing, then
// exchanges between the largest and the smallest part.
// equal_size: parts differ by at most one row. Parts may be empty. kInvalidArgument: k < 1 or a length below
// 0.
StatusOr<std::vector<std::vector<int64_t>>> BalancedPartition(std::span<const int64_t> lengths, int64_t k,
                                                              bool equal_size);

// Largest minus smallest total of the parts.
int64_t Spread(std::span<const int64_t> lengths, const std::vector<std::vector<int64_t>>& parts);

}  // namespace tidepool::algorithms
