#include "core/algorithms/sac.h"

#include <algorithm>

namespace tidepool::algorithms {

std::vector<double> SoftTargets(const SoftTargetTerms& t, double alpha, double gamma) {
  std::vector<double> y(t.rewards.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const double value = std::min<double>(t.q1[i], t.q2[i]) - alpha * t.logp[i];
    y[i] = t.rewards[i] + gamma * (1 - t.terminated[i]) * value;
  }
  return y;
}

double SoftCriticLoss(std::span<const float> q, std::span<const double> targets, std::span<float> d_q) {
  const auto n = static_cast<double>(q.size());
  double sum = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    const double error = q[i] - targets[i];
    sum += 0.5 * error * error;
    d_q[i] = static_cast<float>(error / n);
  }
  return sum / n;
}

SoftPolicyTerms SoftPolicyLoss(std::span<const float> q1, std::span<const float> q2,
                               std::span<const double> logp, double alpha) {
  const auto n = static_cast<double>(logp.size());
  SoftPolicyTerms out{.d_q1 = std::vector<float>(q1.size()), .d_q2 = std::vector<float>(q2.size())};
  for (size_t i = 0; i < logp.size(); ++i) {
    const bool first = q1[i] <= q2[i];
    out.loss += (alpha * logp[i] - (first ? q1[i] : q2[i])) / n;
    (first ? out.d_q1 : out.d_q2)[i] = static_cast<float>(-1 / n);
  }
  out.d_logp = alpha / n;
  return out;
}

TemperatureTerms TemperatureLoss(double log_alpha, std::span<const double> logp, double target_entropy) {
  double mean = 0;
  for (const double lp : logp) mean += (lp + target_entropy) / static_cast<double>(logp.size());
  return {.loss = -log_alpha * mean, .d_log_alpha = -mean};
}

}  // namespace tidepool::algorithms
