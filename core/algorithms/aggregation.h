#pragma once
// How token losses x_it become one number: L = sum over valid cells of weight_it x_it.
//
// Every mode is a weight per cell, computed once from the whole optimiser batch: N = valid cells and
// S = rows with one, of all ranks and micro-batches, before any rejection. A micro-batch takes its slice of
// the weights and nothing else divides, so the result does not depend on how rows are cut into ranks,
// micro-batches and packs. D: where ranks *average* gradients afterwards, weights are multiplied by D.
//
//   token-mean               D / N                       DAPO, PPO
//   seq-mean-token-sum       D / S                       sequence objectives
//   seq-mean-token-mean      D / (S n_i)                 GRPO paper, GSPO
//   seq-mean-token-sum-norm  1 / L_max [/ S]             Dr.GRPO; L_max a constant
//   rollout-mean-token-mean  1 / (R n_rollout)           agent rollouts of several rows (slime); R: rollouts
//                                                        with a valid cell, 1 with divide false
//   mask-ratio               max_steps / (n_i cells)     embodied (RLinf); cells: all, masked ones included
//   seq-mean                 1 / (S n_i)                 mean over rows of a value that all cells of a row
//   hold
//
// Rows and batches without a valid cell have weight 0 and give L = 0. Pure functions; thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/algorithms/cells.h"
#include "core/base/status.h"
#include "core/base/words.h"

namespace tidepool::algorithms {

enum class AggregationMode {
  kTokenMean,
  kSeqMeanTokenSum,
  kSeqMeanTokenMean,
  kSeqMeanTokenSumNorm,
  kRolloutMean,
  kMaskRatio,
  kSeqMean,
};
constexpr auto WordsOf(AggregationMode) {
  return std::to_array<const char*>({"token-mean", "seq-mean-token-sum", "seq-mean-token-mean",
                                     "seq-mean-token-sum-norm", "rollout-mean-token-mean", "mask-ratio",
                                     "seq-mean"});
}

struct Aggregation {
  AggregationMode mode = AggregationMode::kTokenMean;
  std::optional<double> global_tokens;  // N; counted in `cells` where absent
  std::optional<double> global_seqs;    // S
  double dp_size = 1;                   // D
  double scale = 1;                     // L_max; > 0
  bool divide_by_seqs = false;          // seq-mean-token-sum-norm: by S too
  double max_steps = 1;                 // mask-ratio
  std::vector<int64_t> rollout;         // rollout-mean-token-mean: id of each row
  bool divide = true;                   // rollout-mean-token-mean: mean (true) or sum over rollouts
};

// [cells]; 0 on masked ones. kInvalidArgument: a count or constant that is not above 0, or `rollout` of
// another length than the rows.
StatusOr<std::vector<double>> AggregationWeights(const Aggregation& aggregation, const Cells& cells);

}  // namespace tidepool::algorithms
