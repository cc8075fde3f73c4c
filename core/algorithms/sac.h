#pragma once
// Losses of soft actor-critic (arXiv:1812.05905) with their derivatives, as stable-baselines3 has them. Over
// a batch of transitions (s, a, r, s', terminated) drawn from a replay store; a_pi ~ pi(s), a' ~ pi(s').
//
//   y       = r + gamma (1 - terminated) (min_i Q'_i(s', a') - alpha log pi(a'|s'))     no gradient
//   L_Q     = sum_i mean (Q_i(s, a) - y)^2 / 2
//   L_pi    = mean (alpha log pi(a_pi|s) - min_i Q_i(s, a_pi))
//   L_alpha = -log alpha  mean (log pi(a_pi|s) + target_entropy)
//
// An episode that was truncated is not terminated: s' is its last observation, and y has its value. Pure;
// thread-safe. Spans of one call have one length, above 0.

#include <span>
#include <vector>

namespace tidepool::algorithms {

struct SoftTargetTerms {
  std::span<const float> rewards, terminated;  // 0 or 1
  std::span<const float> q1, q2;               // of the targets at (s', a')
  std::span<const double> logp;                // of a'
};
std::vector<double> SoftTargets(const SoftTargetTerms& terms, double alpha, double gamma);

// Of one critic: its share of L_Q; d_q [batch] is overwritten.
double SoftCriticLoss(std::span<const float> q, std::span<const double> targets, std::span<float> d_q);

struct SoftPolicyTerms {
  double loss = 0;
  std::vector<float> d_q1, d_q2;  // of the critics' values at (s, a_pi): of equal ones the first counts
  double d_logp = 0;              // of each row's log pi
};
SoftPolicyTerms SoftPolicyLoss(std::span<const float> q1, std::span<const float> q2,
                               std::span<const double> logp, double alpha);

struct TemperatureTerms {
  double loss = 0, d_log_alpha = 0;
};
TemperatureTerms TemperatureLoss(double log_alpha, std::span<const double> logp, double target_entropy);

}  // namespace tidepool::algorithms
