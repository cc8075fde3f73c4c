#include "core/algorithms/preference.h"

#include <cmath>

#include "core/base/check.h"

namespace tidepool::algorithms {
namespace {

double Sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

}  // namespace

double LogSigmoid(double x) { return x >= 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x)); }

PairLoss RewardModelLoss(std::span<const double> chosen, std::span<const double> rejected,
                         std::span<const double> margin, double centre) {
  TP_CHECK(chosen.size() == rejected.size() && (margin.empty() || margin.size() == chosen.size()));
  const auto n = static_cast<double>(chosen.size());
  PairLoss out;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const double x = chosen[i] - rejected[i] - (margin.empty() ? 0 : margin[i]),
                 sum = chosen[i] + rejected[i];
    out.loss += (-LogSigmoid(x) + centre * sum * sum) / n;
    out.grad_chosen.push_back((-Sigmoid(-x) + 2 * centre * sum) / n);
    out.grad_rejected.push_back((Sigmoid(-x) + 2 * centre * sum) / n);
    out.accuracy += chosen[i] > rejected[i] ? 1 / n : 0;
  }
  return out;
}

DpoResult DpoLoss(const DpoOptions& o, std::span<const double> policy_chosen,
                  std::span<const double> policy_rejected, std::span<const double> ref_chosen,
                  std::span<const double> ref_rejected) {
  const size_t pairs = policy_chosen.size();
  TP_CHECK(policy_rejected.size() == pairs && ref_chosen.size() == pairs && ref_rejected.size() == pairs);
  const auto n = static_cast<double>(pairs);
  DpoResult out;
  for (size_t i = 0; i < pairs; ++i) {
    const double won = policy_chosen[i] - ref_chosen[i], lost = policy_rejected[i] - ref_rejected[i],
                 h = won - lost;
    double slope = 0;  // of the pair's loss in h
    if (o.ipo) {
      const double off = h - 1 / (2 * o.beta);
      out.loss += off * off / n;
      slope = 2 * off;
    } else {
      const double e = o.label_smoothing, x = o.beta * h;
      out.loss += (-(1 - e) * LogSigmoid(x) - e * LogSigmoid(-x)) / n;
      slope = o.beta * (e * Sigmoid(x) - (1 - e) * Sigmoid(-x));
    }
    out.grad_chosen.push_back(slope / n);
    out.grad_rejected.push_back(-slope / n);
    out.chosen_rewards.push_back(o.beta * won);
    out.rejected_rewards.push_back(o.beta * lost);
    out.accuracy += won > lost ? 1 / n : 0;
  }
  return out;
}

}  // namespace tidepool::algorithms
