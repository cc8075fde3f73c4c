#pragma once
// Estimators of KL(policy || reference) from sampled tokens, with their gradients, and the adaptive
// coefficient. Pure, float64.
//
// With d = lp - ref (http://joschu.net/blog/kl-approx.html):
//   k1 = d     abs = |d|     k2 = d^2/2     k3 = exp(-d) - 1 + d
// All have values that estimate KL(pi || ref) (k2 approximately). As a *loss*, the expected gradient of k1
// is zero and that of k3 is the gradient of KL(ref || pi): for a right gradient use k2,
// straight_through_k2, score_term, or a ratio weight.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/choices.h"

namespace tidepool::algorithms {

// Applied in this order. Clips pass no gradient outside (at the bound they do).
struct KlOptions {
  KlKind kind = KlKind::kK3;
  std::optional<double> clamp_log;  // d clipped to +-c; not in abs; in k3 in the exponent and the linear term
  bool score_term = false;  // times exp(lp - sg(lp)): the gradient of the sampling; not where |d| > clamp_log
  std::optional<double> clamp_out;   // the estimate clipped to +-c
  bool straight_through_k2 = false;  // that value, with the gradient of unclamped k2 (verl k3+)
};
struct KlToken {
  double value = 0;
  double slope = 0;  // d value / d lp
};
KlToken KlEstimate(const KlOptions& options, double logp, double ref_logp);

// beta *= 1 + clip(kl/target - 1, +-0.2) n/horizon (arXiv:1909.08593). Returns the new coefficient.
double AdaptKlCoefficient(double beta, double kl, double target, double n_steps, double horizon);

}  // namespace tidepool::algorithms
