#pragma once
// A Gaussian squashed by tanh: the actions of an off-policy policy (arXiv:1812.05905, appendix C), one row at
// a time, float64 inside. With mean and log_std [actions] behind each other in `head`, log_std clipped to
// [-20, 2] (a clipped one has no gradient):
//
//   x = mean + exp(log_std) noise,  u = tanh x,  a = mid + half u
//   log p(u) = sum -noise^2/2 - log_std - log(2 pi)/2 - log(1 - u^2)
//   log(1 - tanh^2 x) = 2 (log 2 - x - softplus(-2 x)), exact where 1 - u^2 is not
//
// It is the density of u, as stable-baselines3 measures it; that of a is less by log(half) for each number.
// Pure; thread-safe.

#include <span>
#include <vector>

#include "core/policy/spec.h"

namespace tidepool::policy {

inline constexpr double kHalfLogTwoPi = 0.91893853320467274178;

struct SquashedDraw {
  std::vector<float> action;  // u, [actions]
  double logp = 0;
};
// noise: [actions]; zeros: the action of the mean.
SquashedDraw DrawSquashed(std::span<const float> head, std::span<const double> noise);
// The same for a batch, into rows: heads [rows] of `stride` numbers, noise and actions [rows, actions], logp
// [rows].
struct SquashedRows {
  int64_t rows = 0, actions = 0, stride = 0;
  const float* heads = nullptr;
  const double* noise = nullptr;
};
void DrawSquashed(const SquashedRows& batch, float* actions, double* logp);
// d_heads [rows] of `stride` numbers, overwritten, zeros behind the head: by d_actions [rows, actions] and,
// for each row, d_logp.
void DrawSquashedBack(const SquashedRows& batch, const float* d_actions, double d_logp, float* d_heads);

// Of an action in the environment's bounds; one at a bound counts as just inside it.
double SquashedLogProb(const PolicySpec& spec, std::span<const float> head, std::span<const float> action);

float ToBounds(const PolicySpec& spec, float u);
float FromBounds(const PolicySpec& spec, float a);  // u, in [-1, 1]

}  // namespace tidepool::policy
