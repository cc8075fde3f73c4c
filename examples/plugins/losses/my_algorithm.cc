// my_algorithm: the idea, in a sentence, and its paper.
//
// To do: write the loss, the advantage estimator, or both; the algorithm at the end names the parts that it
// is made of, and parts that exist already (`tidepool algorithms --table`) need not be written again.
// docs/adding_an_algorithm.md.
#include <cmath>

#include "core/algorithms/advantages/parts.h"
#include "core/algorithms/losses/losses.h"
#include "core/algorithms/registry.h"
#include "core/algorithms/statistics.h"

namespace tidepool::algorithms {
namespace {

// x of every token that counts, and its derivative by the token's log-probability. As an example:
//   x = -A tanh(scale (rho - 1)) / scale,  rho = exp(lp - old)
Status MyAlgorithmTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const double scale = o.Number("scale", 1);
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const double rho = std::exp(b.logp[t] - b.old_logp[t]), gate = std::tanh(scale * (rho - 1));
    out.value[t] = Times(-b.advantages[t], gate / scale);
    out.slope[t] = Times(-b.advantages[t], (1 - gate * gate) * rho);
  }
  return OkStatus();
}

// An advantage for every token, 0 on masked ones. As an example: the reward less the mean of the group.
std::vector<double> MyAlgorithmAdvantages(const Options& /*options*/, const AdvantageInput& in) {
  const std::vector<double> rewards = RowRewards(in);  // a row is a sample; NaN where it has no verdict
  std::vector<double> advantages(rewards.size(), 0.0);
  for (const std::vector<size_t>& rows : GroupRows(in.group)) {
    double sum = 0, count = 0;
    for (const size_t i : rows) {
      if (std::isnan(rewards[i])) continue;
      sum += rewards[i];
      ++count;
    }
    for (const size_t i : rows) advantages[i] = std::isnan(rewards[i]) ? 0 : rewards[i] - sum / count;
  }
  return Spread(advantages, *in.cells);
}

}  // namespace

TP_PLUGIN(Loss, my_algorithm) {
  return {.paper = "an example",
          .formula = "-A tanh(scale (rho - 1)) / scale, rho = exp(lp - old)",
          .options = {{.name = "scale",
                       .fallback = 1.0,
                       .lo = 1e-6,
                       .doc = "steepness",
                       .required = true}},  // keys of `algorithm`
          .needs = {Column::kAdvantages, Column::kOld},
          .terms = MyAlgorithmTerms};
}

TP_PLUGIN(Advantage, my_algorithm) {
  return {.paper = "an example", .formula = "r_i - mean_j r_j", .compute = MyAlgorithmAdvantages};
}

TP_PLUGIN(Algorithm, my_algorithm) {
  return {.paper = "an example",
          .doc = "what sets it apart, in a few words",
          .advantage = {"my_algorithm"},  // or one that is there already, as {"grpo"}
          .loss = {"my_algorithm"}};
}

}  // namespace tidepool::algorithms
