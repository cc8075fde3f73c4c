#pragma once
// From a task's reward to the number that advantages are made of (core/algorithms/rewards.h has the
// formulas). In order:
//   truncated     samples cut at the limit keep a share of their reward, or get a value
//   overlong      soft penalty over the last tokens before the limit
//   repetition    penalty times the share of repeated n-grams
//   length        penalty * mean(r) * n/max(n) over the group
//   bias, scale   clip((r + bias) * scale, +-20)
//   running       (r - mean)/deviation of all rewards ever seen, this step's included
//   mean, deviation   over batch or group
// Pure but for the running moments, which are the caller's. No LibTorch.

#include <cstdint>
#include <span>
#include <vector>

#include "core/algorithms/rewards.h"
#include "core/base/config.h"
#include "core/train/batch.h"

namespace tidepool::train {

struct ShapingOptions : RewardShapingConfig {
  int64_t max_new_tokens = 0;
  double overlong_buffer = 0, overlong_factor = 1;  // buffer 0: off
};

// [rows], or empty: there is no such penalty. A row that is elsewhere has 0: whoever has its tokens knows.
std::vector<double> RepetitionPenalties(const ShapingOptions& options, std::span<const Row> rows);

// [rows]. `repetition`: RepetitionPenalties, those of all ranks. `moments` gets this step's rewards where
// running is set.
std::vector<double> ShapedRewards(const ShapingOptions& options, std::span<const Row> rows,
                                  std::span<const double> repetition, algorithms::RunningMoments& moments);

}  // namespace tidepool::train
