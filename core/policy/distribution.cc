#include "core/policy/distribution.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/base/rng.h"
#include "core/policy/squashed.h"

namespace tidepool::policy {
namespace {

// Box-Muller by draws 2 i and 2 i + 1; 1 - u is never 0.
double Noise(uint64_t seed, uint64_t uid, uint32_t position, size_t i) {
  const auto uniform = [&](size_t draw) {
    return static_cast<double>(SampleUniform(seed, uid, position, static_cast<uint32_t>(draw)));
  };
  const double radius = std::sqrt(-2 * std::log(1 - uniform(2 * i)));
  return radius * std::cos(2 * std::numbers::pi * uniform(2 * i + 1));
}

double LogSumExp(std::span<const float> z) {
  const double top = *std::ranges::max_element(z);
  double sum = 0;
  for (const float x : z) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

}  // namespace

ActionTerms Evaluate(const PolicySpec& spec, std::span<const float> head, std::span<const float> log_std,
                     std::span<const float> action) {
  ActionTerms out;
  if (spec.squashed) return {.logp = SquashedLogProb(spec, head, action)};
  if (!spec.continuous) {
    const double norm = LogSumExp(head);
    out.logp = static_cast<double>(head[static_cast<size_t>(action[0])]) - norm;
    for (const float z : head) out.entropy -= std::exp(z - norm) * (z - norm);
    return out;
  }
  for (size_t i = 0; i < head.size(); ++i) {
    const double u = (static_cast<double>(action[i]) - head[i]) * std::exp(-static_cast<double>(log_std[i]));
    out.logp += -0.5 * u * u - log_std[i] - kHalfLogTwoPi;
    out.entropy += log_std[i] + 0.5 + kHalfLogTwoPi;
  }
  return out;
}

void EvaluateBack(const PolicySpec& spec, std::span<const float> head, std::span<const float> log_std,
                  std::span<const float> action, double d_logp, double d_entropy, std::span<float> d_head,
                  std::span<double> d_log_std) {
  if (!spec.continuous) {
    const double norm = LogSumExp(head);
    double entropy = 0;
    if (d_entropy != 0) {
      for (const float z : head) entropy -= std::exp(z - norm) * (z - norm);
    }
    const auto chosen = static_cast<size_t>(action[0]);
    for (size_t j = 0; j < head.size(); ++j) {
      const double p = std::exp(head[j] - norm);
      d_head[j] = static_cast<float>(d_logp * ((j == chosen ? 1.0 : 0.0) - p) -
                                     d_entropy * p * (head[j] - norm + entropy));
    }
    return;
  }
  for (size_t i = 0; i < head.size(); ++i) {
    const double inverse = std::exp(-static_cast<double>(log_std[i])),
                 u = (static_cast<double>(action[i]) - head[i]) * inverse;
    d_head[i] = static_cast<float>(d_logp * u * inverse);
    d_log_std[i] += d_logp * (u * u - 1) + d_entropy;
  }
}

void Sample(const PolicySpec& spec, std::span<const float> head, std::span<const float> log_std,
            uint64_t seed, uint64_t uid, uint32_t position, bool greedy, std::span<float> action) {
  if (!spec.continuous) {
    if (greedy) {
      action[0] = static_cast<float>(std::ranges::max_element(head) - head.begin());
      return;
    }
    const double norm = LogSumExp(head);
    double u = SampleUniform(seed, uid, position, 0);
    size_t chosen = head.size() - 1;  // rounding may leave a little of u at the end
    for (size_t j = 0; j < head.size(); ++j) {
      u -= std::exp(head[j] - norm);
      if (u < 0) {
        chosen = j;
        break;
      }
    }
    action[0] = static_cast<float>(chosen);
    return;
  }
  if (spec.squashed) {
    std::vector<double> noise(action.size());
    for (size_t i = 0; i < noise.size() && !greedy; ++i) noise[i] = Noise(seed, uid, position, i);
    const SquashedDraw drawn = DrawSquashed(head, noise);
    for (size_t i = 0; i < action.size(); ++i) action[i] = ToBounds(spec, drawn.action[i]);
    return;
  }
  for (size_t i = 0; i < head.size(); ++i) {
    const double noise = greedy ? 0 : Noise(seed, uid, position, i);
    action[i] = static_cast<float>(head[i] + std::exp(static_cast<double>(log_std[i])) * noise);
  }
}

double SampleUniformly(const PolicySpec& spec, uint64_t seed, uint64_t uid, uint32_t position,
                       std::span<float> action) {
  for (size_t i = 0; i < action.size(); ++i)
    action[i] = ToBounds(spec, 2 * SampleUniform(seed, uid, position, static_cast<uint32_t>(2 * i)) - 1);
  return -static_cast<double>(action.size()) * std::numbers::ln2;
}

}  // namespace tidepool::policy
