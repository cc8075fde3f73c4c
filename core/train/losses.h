#pragma once
// Losses per token with their derivatives, and how they are summed up over the batch.
//
// The trainer calls these scalar forms themselves: the vocabulary-sized work is in the model's
// kernels, and a token costs nanoseconds here. In float64. Pure functions; thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/train/advantages.h"

namespace tidepool::train {

// L = sum over tokens of mask * weight * x, with N = sum of the mask and S = number of rows with a
// token, both of the whole batch of an update, never of a micro-batch (n: tokens of the row):
enum class Aggregation {
  kTokenMean,            // 1 / N
  kSeqMeanTokenMean,     // 1 / (n S)
  kSeqMeanTokenSum,      // 1 / S
  kSeqMeanTokenSumNorm,  // 1 / (S L_max), L_max a constant (Dr.GRPO)
};
// "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm".
StatusOr<Aggregation> ParseAggregation(std::string_view name);

struct GlobalCounts {
  int64_t tokens = 0;     // N
  int64_t sequences = 0;  // S
};
// The weight of each token of a row with `row_tokens` valid ones; 0 if it has none.
double TokenWeight(Aggregation aggregation, const GlobalCounts& counts, int64_t row_tokens, double length_norm);

struct LossOptions {
  AdvantageScale scale = AdvantageScale::kGroupStd;
  double advantage_eps = 1e-6;
  Aggregation aggregation = Aggregation::kTokenMean;
  double length_norm = 1;           // L_max
  double clip_low = 0.2;
  double clip_high = 0.2;
  std::optional<double> dual_clip;  // c > 1
  bool tis = false;                 // weight by exp(old - behaviour), truncated
  double tis_max = 2.0;
  double entropy_coef = 0;
  bool mask_truncated = false;
};
// Fills in what an algorithm (grpo, dr_grpo, dapo) leaves to its name. kInvalidArgument names the key.
StatusOr<LossOptions> ResolveLoss(const AlgorithmConfig& config, int64_t max_new_tokens);

// PPO's clipped objective (arXiv:1707.06347) with separate bounds (DAPO), dual clip (arXiv:1912.09729)
// and truncated importance weight, for one token. rho = exp(lp - old), log ratio clamped to +-20:
//   x = max(-A rho, -A clip(rho, 1 - low, 1 + high));  A < 0 and dual clip c: x = min(x, -c A);
//   x *= w = min(exp(old - behaviour), tis_max), a constant in the derivative.
struct TokenLoss {
  double value = 0;       // x
  double derivative = 0;  // d x / d lp
  bool clipped = false;      // the clipped branch won
  bool dual_clipped = false;
  double importance = 1;     // w before truncation
};
TokenLoss PolicyLoss(const LossOptions& options, double logprob, double old_logprob, double behaviour_logprob, double advantage);

}  // namespace tidepool::train
