#include "core/train/losses.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tidepool::train {

StatusOr<Aggregation> ParseAggregation(std::string_view name) {
  if (name == "token-mean") return Aggregation::kTokenMean;
  if (name == "seq-mean-token-mean") return Aggregation::kSeqMeanTokenMean;
  if (name == "seq-mean-token-sum") return Aggregation::kSeqMeanTokenSum;
  if (name == "seq-mean-token-sum-norm") return Aggregation::kSeqMeanTokenSumNorm;
  return InvalidArgument("algorithm.aggregation is '" + std::string(name) +
                         "'; use token-mean, seq-mean-token-mean, seq-mean-token-sum or seq-mean-token-sum-norm");
}

double TokenWeight(Aggregation aggregation, const GlobalCounts& counts, int64_t row_tokens, double length_norm) {
  if (row_tokens == 0) return 0;
  const auto n = static_cast<double>(counts.tokens), s = static_cast<double>(counts.sequences);
  switch (aggregation) {
    case Aggregation::kTokenMean: return 1 / n;
    case Aggregation::kSeqMeanTokenMean: return 1 / (static_cast<double>(row_tokens) * s);
    case Aggregation::kSeqMeanTokenSum: return 1 / s;
    case Aggregation::kSeqMeanTokenSumNorm: return 1 / (s * length_norm);
  }
  return 0;
}

StatusOr<LossOptions> ResolveLoss(const AlgorithmConfig& c, int64_t max_new_tokens) {
  const bool dr = c.name == "dr_grpo", dapo = c.name == "dapo";
  if (!dr && !dapo && c.name != "grpo") {
    return InvalidArgument("algorithm.name is '" + c.name + "'; use grpo, dr_grpo or dapo");
  }
  if (c.kl_coef != 0) {
    return Unimplemented("algorithm.kl_coef is " + std::to_string(c.kl_coef) + ", but there are no reference models yet; set it to 0");
  }
  LossOptions o;
  TP_ASSIGN_OR_RETURN(o.scale, ParseAdvantageScale(!c.advantage_scale.empty() ? c.advantage_scale : dr ? "none" : "group_std"));
  TP_ASSIGN_OR_RETURN(o.aggregation, ParseAggregation(!c.aggregation.empty() ? c.aggregation : dr ? "seq-mean-token-sum-norm" : "token-mean"));
  o.advantage_eps = c.advantage_eps;
  o.length_norm = static_cast<double>(max_new_tokens);
  o.clip_low = c.clip_low;
  o.clip_high = c.clip_high.value_or(dapo ? 0.28 : 0.2);
  o.dual_clip = c.dual_clip;
  if (!c.correction.empty() && c.correction != "none" && c.correction != "tis") {
    return InvalidArgument("algorithm.correction is '" + c.correction + "'; use none or tis");
  }
  o.tis = c.correction == "tis";
  o.tis_max = c.tis_max;
  o.entropy_coef = c.entropy_coef;
  o.mask_truncated = c.mask_truncated;
  if (!(o.clip_low >= 0 && o.clip_low <= 1) || !(o.clip_high >= 0)) {
    return InvalidArgument("algorithm.clip_low must be in [0, 1] and clip_high at least 0");
  }
  if (o.dual_clip.has_value() && !(*o.dual_clip > 1)) return InvalidArgument("algorithm.dual_clip must be above 1");
  if (o.tis && !(o.tis_max > 0)) return InvalidArgument("algorithm.tis_max must be above 0");
  if (o.aggregation == Aggregation::kSeqMeanTokenSumNorm && max_new_tokens < 1) {
    return InvalidArgument("algorithm.aggregation seq-mean-token-sum-norm needs rollout.max_new_tokens of at least 1");
  }
  return o;
}

TokenLoss PolicyLoss(const LossOptions& o, double logprob, double old_logprob, double behaviour_logprob, double advantage) {
  const double log_ratio = logprob - old_logprob;
  const bool clamped = log_ratio < -20 || log_ratio > 20;
  const double rho = std::exp(std::clamp(log_ratio, -20.0, 20.0));
  const double bounded = std::clamp(rho, 1 - o.clip_low, 1 + o.clip_high);
  const double plain = -advantage * rho, clipped = -advantage * bounded;
  TokenLoss t;
  t.clipped = clipped > plain;
  t.value = t.clipped ? clipped : plain;
  // Where the clipped branch wins, its derivative is that of a constant.
  t.derivative = t.clipped || clamped ? 0 : plain;
  if (o.dual_clip.has_value() && advantage < 0 && t.value > -*o.dual_clip * advantage) {
    t.value = -*o.dual_clip * advantage;
    t.derivative = 0;
    t.dual_clipped = true;
  }
  if (o.tis) {
    t.importance = std::exp(std::clamp(old_logprob - behaviour_logprob, -20.0, 20.0));
    const double w = std::min(t.importance, o.tis_max);
    t.value *= w;
    t.derivative *= w;
  }
  return t;
}

}  // namespace tidepool::train
