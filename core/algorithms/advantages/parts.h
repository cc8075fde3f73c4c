#pragma once
// What the estimators of this folder share: options by their usual names, and rewards as each kind of
// estimator sees them.

#include <optional>
#include <utility>
#include <vector>

#include "core/algorithms/gae.h"
#include "core/algorithms/group_advantages.h"
#include "core/algorithms/registry.h"
#include "core/algorithms/returns.h"

namespace tidepool::algorithms {

inline Singleton SingletonOf(const Options& o) {
  return FromWord<Singleton>(o.Text("singleton")).value_or(Singleton::kZero);
}

inline OptionSpec SingletonOption() {
  return Choice("singleton", "zero", {"zero", "raw"}, "a group of one gets 0, or its reward");
}
inline OptionSpec Ddof() {
  return {.name = "ddof", .fallback = 1.0, .lo = 0, .hi = 1, .doc = "deviations divide by n - this"};
}
inline OptionSpec Eps(double fallback) {
  return {.name = "eps", .fallback = fallback, .lo = 0, .doc = "added to deviations"};
}
inline OptionSpec Gamma() {
  return {.name = "gamma", .fallback = 1.0, .lo = 0, .hi = 1, .doc = "discount a token"};
}
inline OptionSpec WhitenMode() {
  return Choice("whiten", "add_var", {"none", "add_var", "clamp_var", "add_std"},
                "how advantages are whitened over all tokens of the batch");
}

inline std::optional<WhitenOptions> WhitenOf(const Options& o) {
  const auto mode = FromWord<EpsMode>(o.Text("whiten"));
  if (!mode) return std::nullopt;
  return WhitenOptions{
      .ddof = static_cast<int64_t>(o.Number("ddof", 1)), .eps = o.Number("eps", 1e-8), .eps_mode = *mode};
}

// Estimators of whole rows see the row's reward less its KL.
inline std::vector<double> RowRewards(const AdvantageInput& in) {
  std::vector<double> rewards(in.rewards.begin(), in.rewards.end());
  if (in.kl.empty() || in.kl_coef == 0) return rewards;
  const std::vector<double> kl = RowSums(in.kl, *in.cells);
  for (size_t i = 0; i < rewards.size(); ++i) rewards[i] -= in.kl_coef * kl[i];
  return rewards;
}
inline std::vector<double> TokenRewards(const AdvantageInput& in) {
  return OutcomeTokenRewards(in.rewards, in.kl, in.kl_coef, *in.cells);
}
inline std::vector<double> Taken(const AdvantageInput& in, ReturnsAndAdvantages result) {
  if (in.returns != nullptr) *in.returns = std::move(result.returns);
  return std::move(result.advantages);
}

}  // namespace tidepool::algorithms
