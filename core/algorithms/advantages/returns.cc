// Estimators over the returns of tokens (returns.h): a baseline of the batch, of a greedy answer, of each
// token.
#include "core/algorithms/returns.h"

#include "core/algorithms/advantages/parts.h"
#include "core/algorithms/group_advantages.h"

namespace tidepool::algorithms {
namespace {

std::vector<double> ReinforceBaseline(const Options& o, const AdvantageInput& in) {
  const auto whiten = WhitenOf(o);
  return ReinforcePlusPlusBaseline(RowRewards(in), in.group, *in.cells, /*baseline=*/true, SingletonOf(o),
                                   whiten ? &*whiten : nullptr);
}

std::vector<double> Reinforce(const Options& o, const AdvantageInput& in) {
  const auto whiten = WhitenOf(o);
  return ReinforcePlusPlus(TokenRewards(in), o.Number("gamma", 1), whiten ? &*whiten : nullptr, *in.cells)
      .advantages;
}

std::vector<double> GreedyBaseline(const Options&, const AdvantageInput& in) {
  return ReMax(TokenRewards(in), in.baseline, *in.cells).advantages;
}

std::vector<double> TokenBaseline(const Options& o, const AdvantageInput& in) {
  return OptimalTokenBaseline(TokenRewards(in), in.group, in.old_logp, in.sum_pi_sq, o.Number("eps", 0),
                              SingletonOf(o), *in.cells);
}

}  // namespace

TP_PLUGIN(Advantage, reinforce_pp_baseline) {
  return {.paper = "REINFORCE++, arXiv:2501.03262",
          .formula = "r_i - mu_g on each token, whitened over all tokens of the batch",
          .options = {WhitenMode(), Eps(1e-8), Ddof(), SingletonOption()},
          .compute = ReinforceBaseline};
}

TP_PLUGIN(Advantage, reinforce_pp) {
  return {
      .paper = "REINFORCE++, arXiv:2501.03262",
      .formula = "discounted return of the reward at the last token, whitened over all tokens of the batch",
      .options = {Gamma(), WhitenMode(), Eps(1e-8), Ddof()},
      .compares = false,
      .compute = Reinforce};
}

TP_PLUGIN(Advantage, remax) {
  return {.paper = "ReMax, arXiv:2310.10505",
          .formula = "return to go - reward of the greedy answer",
          .compares = false,
          .needs = "a greedy answer of each prompt (the first sample of a group, which is not trained)",
          .provisions = {Provision::kGreedy},
          .compute = GreedyBaseline};
}

TP_PLUGIN(Advantage, otb) {
  return {
      .paper = "optimal token baseline (verl)",
      .formula = "G_it - sum_j G_jt W_jt / (sum_j W_jt + eps), W_t = sum_{s<=t} (1 - 2 pi_s + sum_v pi_v^2)",
      .options = {Eps(1e-8), SingletonOption()},
      .needs = "sum of squared probabilities of each token",
      .provisions = {Provision::kSquares},
      .compute = TokenBaseline};
}

TP_PLUGIN(Algorithm, reinforce_pp_baseline) {
  return {.paper = "REINFORCE++, arXiv:2501.03262",
          .doc = "group mean as baseline, then whitened over the batch",
          .advantage = {"reinforce_pp_baseline"},
          .loss = {"ppo"}};
}

TP_PLUGIN(Algorithm, reinforce_pp) {
  return {.paper = "REINFORCE++, arXiv:2501.03262",
          .doc = "returns whitened over the batch, no groups",
          .advantage = {"reinforce_pp"},
          .loss = {"ppo"}};
}

TP_PLUGIN(Algorithm, remax) {
  return {.paper = "ReMax, arXiv:2310.10505",
          .doc = "the greedy answer's reward as baseline",
          .advantage = {"remax"},
          .loss = {"reinforce"},
          .rules = {.aggregation = "seq-mean-token-sum"}};
}

TP_PLUGIN(Algorithm, otb) {
  return {.paper = "optimal token baseline (verl)",
          .doc = "a baseline for each token, weighted by its score norms",
          .advantage = {"otb"},
          .loss = {"ppo"}};
}

}  // namespace tidepool::algorithms
