#pragma once
// Advantages of outcome rewards, by group (GRPO, arXiv:2402.03300; Dr.GRPO, arXiv:2503.20783).
// In float64. Pure functions; thread-safe.

#include <span>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"

namespace tidepool::train {

enum class AdvantageScale {
  kGroupStd,  // (r - mean of group) / (std of group + eps)
  kBatchStd,  // (r - mean of group) / (std of all rewards of the batch + eps)
  kNone,      //  r - mean of group
};
// "group_std", "batch_std", "none"; kInvalidArgument otherwise.
StatusOr<AdvantageScale> ParseAdvantageScale(std::string_view name);

// rewards, groups: [rows], finite; groups may be uneven and interleaved. Deviations divide by n - 1.
// A group of one, and a group of equal rewards (to 1e-8 of their size), get exactly 0.
std::vector<double> GroupAdvantages(std::span<const double> rewards, std::span<const GroupId> groups,
                                    AdvantageScale scale, double eps);

// DAPO eq. 13 (arXiv:2503.14476): 0 up to limit - buffer tokens, then linear to -1 at the limit, -1 beyond.
double OverlongPenalty(double tokens, double limit, double buffer);

}  // namespace tidepool::train
