#pragma once
// Distributions over actions: log-probability, entropy and their derivatives by what the network puts out,
// and sampling by named noise. One row at a time, float64 inside. Pure; thread-safe.
//
//   categorical  p = softmax(logits);  d log p_a / d z_j = 1[j = a] - p_j,  d H / d z_j = -p_j (log p_j + H)
//   Gaussian     independent numbers, unsquashed (the environment clips):
//                log p = sum -((a - mu)/s)^2/2 - log s - log(2 pi)/2
//                d / d mu = (a - mu)/s^2,  d / d log s = ((a - mu)/s)^2 - 1
//                H = sum log s + (1 + log 2 pi)/2
//   squashed     squashed.h; its entropy has no formula (0 here), and its derivatives are there

#include <cstdint>
#include <span>

#include "core/policy/spec.h"

namespace tidepool::policy {

struct ActionTerms {
  double logp = 0, entropy = 0;
};
// head: [head_size]; log_std: [actions] where it is a parameter; action: [action_size], in the environment's
// bounds.
ActionTerms Evaluate(const PolicySpec& spec, std::span<const float> head, std::span<const float> log_std,
                     std::span<const float> action);
// d_head [actions] is overwritten, d_log_std [actions] is added to, for the derivatives by logp and entropy
// given. requires that it is not squashed.
void EvaluateBack(const PolicySpec& spec, std::span<const float> head, std::span<const float> log_std,
                  std::span<const float> action, double d_logp, double d_entropy, std::span<float> d_head,
                  std::span<double> d_log_std);

// The action of draw (seed; uid, position): the same key, the same action. greedy: the most likely choice
// (the first of equals), the mean.
void Sample(const PolicySpec& spec, std::span<const float> head, std::span<const float> log_std,
            uint64_t seed, uint64_t uid, uint32_t position, bool greedy, std::span<float> action);
// The same draw of an action that no weights have a part in: uniform inside the bounds. Returns its
// log-probability as Evaluate measures it. requires a squashed policy
double SampleUniformly(const PolicySpec& spec, uint64_t seed, uint64_t uid, uint32_t position,
                       std::span<float> action);

}  // namespace tidepool::policy
