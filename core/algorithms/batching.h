#pragma once
// Rows into bins by a token budget. Pure and deterministic.

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"

namespace tidepool::algorithms {

// First-fit decreasing: bins of at most `capacity`, larger rows first, equal ones in order; rows inside a bin
// ascend. kInvalidArgument: a length below 0, or above the capacity (never a silent truncation).
StatusOr<std::vector<std::vector<int64_t>>> FirstFitDecreasing(std::span<const int64_t> lengths,
                                                               int64_t capacity);

}  // namespace tidepool::algorithms
