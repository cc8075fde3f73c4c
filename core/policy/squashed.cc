#include "core/policy/squashed.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tidepool::policy {
namespace {

constexpr double kLogStdLow = -20, kLogStdHigh = 2;

double ClippedLogStd(float log_std) {
  return std::clamp(static_cast<double>(log_std), kLogStdLow, kLogStdHigh);
}

// log(1 - tanh^2 x)
double LogSlope(double x) {
  const double away = std::fabs(x);  // it is even, and exp(-2 |x|) cannot overflow
  return 2 * (std::numbers::ln2 - away - std::log1p(std::exp(-2 * away)));
}

}  // namespace

SquashedDraw DrawSquashed(std::span<const float> head, std::span<const double> noise) {
  SquashedDraw out{.action = std::vector<float>(noise.size())};
  DrawSquashed({.rows = 1,
                .actions = static_cast<int64_t>(noise.size()),
                .stride = static_cast<int64_t>(head.size()),
                .heads = head.data(),
                .noise = noise.data()},
               out.action.data(), &out.logp);
  return out;
}

void DrawSquashed(const SquashedRows& b, float* actions, double* logp) {
  for (int64_t r = 0; r < b.rows; ++r) {
    const float* mean = b.heads + r * b.stride;
    const float* log_std = mean + b.actions;
    double sum = 0;
    for (int64_t i = 0; i < b.actions; ++i) {
      const double s = ClippedLogStd(log_std[i]), e = b.noise[r * b.actions + i],
                   x = mean[i] + std::exp(s) * e;
      actions[r * b.actions + i] = static_cast<float>(std::tanh(x));
      sum += -0.5 * e * e - s - kHalfLogTwoPi - LogSlope(x);
    }
    logp[r] = sum;
  }
}

// By x: d u = 1 - u^2, d log p = 2 u (of the correction alone: the noise is given). By log_std: d x =
// exp(log_std) noise, and -1 of log p itself.
void DrawSquashedBack(const SquashedRows& b, const float* d_actions, double d_logp, float* d_heads) {
  for (int64_t r = 0; r < b.rows; ++r) {
    const float* mean = b.heads + r * b.stride;
    const float* log_std = mean + b.actions;
    float* d_mean = d_heads + r * b.stride;
    float* d_log_std = d_mean + b.actions;
    std::fill_n(d_mean, b.stride, 0.0F);
    for (int64_t i = 0; i < b.actions; ++i) {
      const double s = ClippedLogStd(log_std[i]), spread = std::exp(s) * b.noise[r * b.actions + i],
                   u = std::tanh(mean[i] + spread);
      const double d_x = d_actions[r * b.actions + i] * (1 - u * u) + d_logp * 2 * u;
      d_mean[i] = static_cast<float>(d_x);
      const bool free = log_std[i] >= kLogStdLow && log_std[i] <= kLogStdHigh;
      d_log_std[i] = free ? static_cast<float>(d_x * spread - d_logp) : 0.0F;
    }
  }
}

double SquashedLogProb(const PolicySpec& spec, std::span<const float> head, std::span<const float> action) {
  constexpr double kInside = 1 - 1e-6;  // atanh of a bound is infinite
  double sum = 0;
  for (size_t i = 0; i < action.size(); ++i) {
    const double s = ClippedLogStd(head[action.size() + i]),
                 x = std::atanh(std::clamp<double>(FromBounds(spec, action[i]), -kInside, kInside)),
                 e = (x - head[i]) * std::exp(-s);
    sum += -0.5 * e * e - s - kHalfLogTwoPi - LogSlope(x);
  }
  return sum;
}

float ToBounds(const PolicySpec& spec, float u) {
  const double mid = (spec.high + spec.low) / 2, half = (spec.high - spec.low) / 2;
  return static_cast<float>(mid + half * u);
}
float FromBounds(const PolicySpec& spec, float a) {
  const double mid = (spec.high + spec.low) / 2, half = (spec.high - spec.low) / 2;
  return static_cast<float>(std::clamp((a - mid) / half, -1.0, 1.0));
}

}  // namespace tidepool::policy
