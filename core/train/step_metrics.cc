#include "core/train/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

namespace tidepool::train {

void TokenSums::AddToken(const Token& t) {
  const double log_ratio = std::clamp(t.logprob - t.old_logprob, -20.0, 20.0), ratio = std::exp(log_ratio);
  ratio_max = tokens == 0 ? ratio : std::max(ratio_max, ratio);
  ratio_min = tokens == 0 ? ratio : std::min(ratio_min, ratio);
  ++tokens;
  entropy += t.entropy;
  kl -= log_ratio;
  clipped += t.clipped ? 1 : 0;
  dual_clipped += t.dual_clipped ? 1 : 0;
  advantage += t.advantage;
  importance += t.importance;
}

void TokenSums::AddGap(double logprob, double recorded) {
  const double difference = std::fabs(logprob - recorded);
  ++same_version;
  gap += difference;
  // Written so that a NaN shows.
  if (!(difference <= gap_max)) gap_max = difference;
  probability_gap += std::fabs(std::exp(logprob) - std::exp(recorded));
  mismatch_kl += recorded - logprob;
}

Status TokenSums::AddOtherRanks(comm::Collective& group) {
  // Counts are far below 2^53, so a double holds them; extremes travel in a place of their own each.
  const auto ranks = static_cast<size_t>(group.size());
  const auto here = static_cast<size_t>(group.rank());
  int64_t* const counts[] = {&tokens, &clipped, &dual_clipped, &same_version};
  double* const sums[] = {&loss,         &entropy_loss,     &balance,  &entropy,         &kl,
                          &advantage,    &importance,       &gap,      &probability_gap, &mismatch_kl,
                          &reference_kl, &reference_tokens, &kl_loss,  &pairs,           &pair_right,
                          &pair_chosen,  &pair_rejected,    &compared, &agreed};
  constexpr size_t kExtremes = 4;
  std::vector<double> all;
  for (const int64_t* c : counts) all.push_back(static_cast<double>(*c));
  for (const double* s : sums) all.push_back(*s);
  const size_t extremes = all.size();
  all.resize(extremes + kExtremes * ranks, 0.0);
  const double mine[kExtremes] = {tokens > 0 ? 1.0 : 0.0, ratio_max, ratio_min, gap_max};
  std::copy(std::begin(mine), std::end(mine),
            all.begin() + static_cast<ptrdiff_t>(extremes + kExtremes * here));
  TP_RETURN_IF_ERROR(group.AllReduceSum(std::span<double>(all), "token_sums"));
  size_t at = 0;
  for (int64_t* c : counts) *c = static_cast<int64_t>(all[at++]);
  for (double* s : sums) *s = all[at++];
  bool first = true;
  gap_max = 0;
  for (size_t r = 0; r < ranks; ++r) {
    const double* x = &all[extremes + kExtremes * r];
    if (!(x[3] <= gap_max)) gap_max = x[3];
    if (x[0] == 0) continue;
    ratio_max = first ? x[1] : std::max(ratio_max, x[1]);
    ratio_min = first ? x[2] : std::min(ratio_min, x[2]);
    first = false;
  }
  return OkStatus();
}

void ColumnMetrics(const std::string& name, std::span<const double> column, const algorithms::Cells& cells,
                   std::map<std::string, double>& metrics) {
  double high = -INFINITY, low = INFINITY;
  for (size_t c = 0; c < column.size(); ++c) {
    if (cells.mask[c] == 0) continue;
    high = std::max(high, column[c]);
    low = std::min(low, column[c]);
  }
  if (high < low) return;
  metrics[name + "/mean"] = algorithms::TokenMean(column, cells);
  metrics[name + "/max"] = high;
  metrics[name + "/min"] = low;
}

Status CheckSameWeights(comm::Collective& group, uint64_t digest, const std::string& who, StepNumber step) {
  TP_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, group.AllGather(digest, "digest"));
  const auto other = std::ranges::find_if(digests, [&](uint64_t d) { return d != digest; });
  if (other == digests.end()) return OkStatus();
  return Internal(who + ": after step " + std::to_string(step.value) + " rank " +
                  std::to_string(group.rank()) + " has other weights than rank " +
                  std::to_string(other - digests.begin()));
}

void RowMetrics(std::span<const Row> rows, std::span<const double> shaped,
                std::map<std::string, double>& metrics) {
  if (rows.empty()) return;
  const auto n = static_cast<double>(rows.size());
  double score = 0, score_max = -INFINITY, score_min = INFINITY, length = 0, length_max = 0,
         length_min = INFINITY;
  double prompt = 0, truncated = 0;
  for (const Row& row : rows) {
    score += row.reward / n;
    score_max = std::max(score_max, row.reward);
    score_min = std::min(score_min, row.reward);
    const auto response = static_cast<double>(row.response_tokens());
    length += response / n;
    length_max = std::max(length_max, response);
    length_min = std::min(length_min, response);
    prompt += static_cast<double>(row.prompt_tokens()) / n;
    truncated += row.truncated ? 1 / n : 0;
  }
  metrics["critic/score/mean"] = score;
  metrics["critic/score/max"] = score_max;
  metrics["critic/score/min"] = score_min;
  double mean = 0;
  for (const double r : shaped) mean += r / n;
  metrics["critic/rewards/mean"] = mean;
  metrics["response_length/mean"] = length;
  metrics["response_length/max"] = length_max;
  metrics["response_length/min"] = length_min;
  metrics["response_length/clip_ratio"] = truncated;
  metrics["prompt_length/mean"] = prompt;
}

void TokenMetrics(const TokenSums& s, bool policy, std::map<std::string, double>& metrics) {
  const auto n = static_cast<double>(std::max<int64_t>(1, s.tokens));
  metrics["actor/entropy"] = s.entropy / n;
  if (!policy) {
    metrics["sft/loss"] = s.loss;
    return;
  }
  metrics["actor/pg_loss"] = s.loss;
  metrics["actor/ppo_kl"] = s.kl / n;
  metrics["actor/pg_clipfrac"] = static_cast<double>(s.clipped) / n;
  metrics["actor/pg_clipfrac_lower"] = static_cast<double>(s.dual_clipped) / n;
  metrics["actor/ratio/max"] = s.ratio_max;
  metrics["actor/ratio/min"] = s.ratio_min;
  metrics["critic/advantages/mean"] = s.advantage / n;
  metrics["is/mean"] = s.importance / n;
  if (s.same_version > 0) {
    const auto same = static_cast<double>(s.same_version);
    metrics["training/rollout_logp_diff/mean"] = s.gap / same;
    metrics["training/rollout_logp_diff/max"] = s.gap_max;
    metrics["training/rollout_probs_diff_mean"] = s.probability_gap / same;
    metrics["training/mismatch_kl"] = s.mismatch_kl / same;
  }
}

void TimeMetrics(const StepTimes& t, int64_t tokens, int64_t computed,
                 std::map<std::string, double>& metrics) {
  if (t.prepare > 0) metrics["timing_s/actor_prepare"] = t.prepare;
  if (t.critic > 0) metrics["timing_s/update_critic"] = t.critic;
  metrics["timing_s/actor_loss"] = t.loss;
  metrics["timing_s/actor_forward"] = t.forward;
  metrics["timing_s/actor_head"] = t.head;
  if (t.reduce > 0) metrics["timing_s/actor_reduce"] = t.reduce;
  metrics["timing_s/actor_backward"] = t.backward;
  metrics["timing_s/actor_optimizer"] = t.optimizer;
  metrics["timing_s/actor_digest"] = t.digest;
  metrics["timing_s/update_actor"] = t.total;
  metrics["perf/total_num_tokens"] = static_cast<double>(tokens);
  metrics["perf/computed_tokens"] = static_cast<double>(computed);
}

}  // namespace tidepool::train
