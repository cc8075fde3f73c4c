#include "core/algorithms/returns.h"

#include <algorithm>
#include <cmath>

namespace tidepool::algorithms {

std::vector<double> OutcomeTokenRewards(std::span<const double> rewards, std::span<const double> kl,
                                        double kl_coef, const Cells& cells) {
  std::vector<double> r(cells.mask.size(), 0.0);
  for (size_t t = 0; t < kl.size(); ++t) {
    if (cells.mask[t] != 0) r[t] = -kl_coef * kl[t];
  }
  for (int64_t i = 0; i < cells.rows(); ++i) {
    if (const int64_t last = cells.LastValid(i); last >= 0)
      r[static_cast<size_t>(last)] += rewards[static_cast<size_t>(i)];
  }
  return r;
}

std::vector<double> DiscountedReturns(std::span<const double> token_rewards, double gamma,
                                      const Cells& cells) {
  std::vector<double> returns(cells.mask.size(), 0.0);
  for (int64_t i = 0; i < cells.rows(); ++i) {
    double carried = 0;
    for (int64_t t = cells.begin[static_cast<size_t>(i) + 1] - 1; t >= cells.begin[static_cast<size_t>(i)];
         --t) {
      const auto c = static_cast<size_t>(t);
      carried = gamma * carried + (cells.valid(t) ? token_rewards[c] : 0);
      if (cells.valid(t)) returns[c] = carried;
    }
  }
  return returns;
}

ReturnsAndAdvantages ReinforcePlusPlus(std::span<const double> token_rewards, double gamma,
                                       const WhitenOptions* whiten, const Cells& cells) {
  ReturnsAndAdvantages out;
  out.returns = DiscountedReturns(token_rewards, gamma, cells);
  out.advantages = out.returns;
  if (whiten != nullptr) Whiten(out.advantages, cells.mask, *whiten);
  return out;
}

ReturnsAndAdvantages ReMax(std::span<const double> token_rewards, std::span<const double> baseline,
                           const Cells& cells) {
  ReturnsAndAdvantages out;
  out.returns = DiscountedReturns(token_rewards, 1, cells);
  out.advantages = out.returns;
  const std::vector<double> b = Spread(baseline, cells);
  for (size_t t = 0; t < b.size(); ++t) {
    if (cells.mask[t] != 0) out.advantages[t] -= b[t];
  }
  return out;
}

std::vector<double> OptimalTokenBaseline(std::span<const double> token_rewards,
                                         std::span<const int64_t> group, std::span<const double> old_logp,
                                         std::span<const double> sum_pi_sq, double eps, Singleton singleton,
                                         const Cells& cells) {
  const std::vector<double> returns = DiscountedReturns(token_rewards, 1, cells);
  std::vector<double> advantages(returns.size(), 0.0), weight(returns.size(), 0.0);
  for (int64_t i = 0; i < cells.rows(); ++i) {
    double w = 0;
    for (int64_t t = cells.begin[static_cast<size_t>(i)]; t < cells.begin[static_cast<size_t>(i) + 1]; ++t) {
      const auto c = static_cast<size_t>(t);
      if (cells.valid(t)) w += 1 - 2 * std::exp(old_logp[c]) + sum_pi_sq[c];
      weight[c] = w;
    }
  }
  for (const std::vector<size_t>& rows : GroupRows(group)) {
    if (rows.size() == 1 && singleton == Singleton::kZero) continue;
    int64_t width = 0;
    for (const size_t i : rows) width = std::max(width, cells.begin[i + 1] - cells.begin[i]);
    for (int64_t t = 0; t < width; ++t) {
      double sum = 0, weights = 0;
      const auto each = [&](auto&& visit) {
        for (const size_t i : rows) {
          if (cells.begin[i] + t < cells.begin[i + 1] && cells.valid(cells.begin[i] + t))
            visit(static_cast<size_t>(cells.begin[i] + t));
        }
      };
      each([&](size_t c) { sum += returns[c] * weight[c], weights += weight[c]; });
      const double baseline = rows.size() == 1 ? 0 : sum / (weights + eps);
      each([&](size_t c) { advantages[c] = returns[c] - baseline; });
    }
  }
  return advantages;
}

}  // namespace tidepool::algorithms
