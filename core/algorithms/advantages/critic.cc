// Estimators with a critic (gae.h). Those over steps of environments have no `compute`: core/policy has their
// steps.
#include "core/algorithms/advantages/parts.h"
#include "core/algorithms/gae.h"

namespace tidepool::algorithms {
namespace {

std::vector<double> Gae(const Options& o, const AdvantageInput& in) {
  const auto whiten = WhitenOf(o);
  return Taken(in, TokenGae(TokenRewards(in), in.values, {}, o.Number("gamma", 1), o.Number("lambda", 1),
                            whiten ? &*whiten : nullptr, *in.cells));
}

std::vector<double> GaeVapo(const Options& o, const AdvantageInput& in) {
  const auto whiten = WhitenOf(o);
  return Taken(in, VapoGae(TokenRewards(in), in.values, o.Number("gamma", 1), o.Number("lambda_value", 1),
                           o.Number("alpha", 1), whiten ? &*whiten : nullptr, *in.cells));
}

}  // namespace

TP_PLUGIN(Advantage, gae) {
  return {
      .paper = "Generalized advantage estimation, arXiv:1506.02438",
      .formula = "sum (gamma lambda)^k delta_{t+k}, delta_t = r_t + gamma V_{t+1} - V_t",
      .options =
          {Gamma(),
           {.name = "lambda", .fallback = 1.0, .lo = 0, .hi = 1, .doc = "0: one step, 1: the whole return"},
           WhitenMode(),
           Eps(1e-8),
           Ddof()},
      .compares = false,
      .needs = "a critic",
      .provisions = {Provision::kCritic},
      .compute = Gae};
}

TP_PLUGIN(Advantage, gae_vapo) {
  return {
      .paper = "VAPO, arXiv:2504.05118",
      .formula = "GAE with lambda_i = 1 - 1/max(alpha n_i, 1) for the policy, lambda_value for the critic",
      .options =
          {Gamma(),
           {.name = "alpha", .fallback = 0.05, .lo = 0, .doc = "longer samples look further ahead"},
           {.name = "lambda_value", .fallback = 1.0, .lo = 0, .hi = 1, .doc = "of the critic's targets"},
           WhitenMode(),
           Eps(1e-8),
           Ddof()},
      .compares = false,
      .needs = "a critic",
      .provisions = {Provision::kCritic},
      .compute = GaeVapo};
}

TP_PLUGIN(Advantage, gae_env) {
  return {
      .paper = "Generalized advantage estimation, arXiv:1506.02438",
      .formula =
          "GAE over steps of environments, cut at their ends, with the value of the last observation "
          "after a truncation",
      .options =
          {{.name = "gamma", .fallback = 0.99, .lo = 0, .hi = 1, .doc = "discount a step"},
           {.name = "lambda", .fallback = 0.95, .lo = 0, .hi = 1, .doc = "0: one step, 1: the whole return"},
           Choice("whiten", "add_var", {"none", "add_var"}, "advantages over all steps of the batch")},
      .compares = false,
      .needs = "model.policy: a critic and environments"};
}

TP_PLUGIN(Advantage, vtrace) {
  return {.paper = "IMPALA, arXiv:1802.01561",
          .formula = "min(w, pg_bar)(r_t + d_t v_{t+1} - V_t)",
          .compares = false,
          .needs = "a critic and environments"};
}

TP_PLUGIN(Advantage, td_lambda) {
  return {.paper = "TD(lambda), Sutton 1988",
          .formula = "r_t + d_t ((1 - lambda) V_{t+1} + lambda y_{t+1})",
          .compares = false,
          .needs = "a critic and environments"};
}

TP_PLUGIN(Algorithm, ppo) {
  return {.paper = "Proximal policy optimization, arXiv:1707.06347",
          .doc = "a critic's values, generalised advantages",
          .advantage = {"gae"},
          .loss = {"ppo"}};
}

TP_PLUGIN(Algorithm, vapo) {
  return {.paper = "VAPO, arXiv:2504.05118",
          .doc = "PPO with a lambda that grows with the response, clip-higher",
          .advantage = {"gae_vapo"},
          .loss = {"ppo", {{"clip_high", 0.28}}}};
}

}  // namespace tidepool::algorithms
