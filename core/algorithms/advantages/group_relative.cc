// Estimators that compare the samples of a group by the reward of each (group_advantages.h), and the
// algorithms that are made of them.
#include <utility>

#include "core/algorithms/advantages/parts.h"
#include "core/algorithms/group_advantages.h"

namespace tidepool::algorithms {
namespace {

std::vector<double> Grpo(const Options& o, const AdvantageInput& in) {
  const GrpoOptions g{.scale = FromWord<AdvantageScale>(o.Text("scale")).value_or(AdvantageScale::kGroupStd),
                      .leave_one_out = o.Text("baseline") == "loo",
                      .std_of_others = o.Text("std_of") == "others",
                      .ddof = static_cast<int64_t>(o.Number("ddof", 1)),
                      .eps = o.Number("eps", 0),
                      .singleton = SingletonOf(o),
                      .skip_zero_std = o.Text("zero_std") == "skip"};
  return Spread(GrpoAdvantages(RowRewards(in), in.group, g), *in.cells);
}

std::vector<double> Rloo(const Options& o, const AdvantageInput& in) {
  return Spread(RlooAdvantages(RowRewards(in), in.group, SingletonOf(o)), *in.cells);
}

std::vector<double> Opo(const Options& o, const AdvantageInput& in) {
  return Spread(OpoAdvantages(RowRewards(in), in.group, *in.cells, SingletonOf(o)), *in.cells);
}

std::vector<double> MaxRl(const Options&, const AdvantageInput& in) {
  return Spread(MaxRlAdvantages(RowRewards(in), in.group), *in.cells);
}

std::vector<double> PassK(const Options& o, const AdvantageInput& in) {
  return Spread(PassKAdvantages(RowRewards(in), in.group, o.Text("scale") == "group_std",
                                static_cast<int64_t>(o.Number("ddof", 1)), o.Number("eps", 0)),
                *in.cells);
}

std::vector<double> Gpg(const Options& o, const AdvantageInput& in) {
  return Spread(GpgAdvantages(RowRewards(in), in.group, o.Text("alpha") == "batch/nonzero",
                              o.Number("f_norm", 1), SingletonOf(o)),
                *in.cells);
}

std::vector<double> Gdpo(const Options& o, const AdvantageInput& in) {
  return Spread(GdpoAdvantages(in.components, in.component_weights, in.group,
                               static_cast<int64_t>(o.Number("ddof", 1)), o.Number("eps", 0)),
                *in.cells);
}

// One group at a time; a sample of a job is one turn.
std::vector<double> LengthShaped(const Options& o, const AdvantageInput& in) {
  const std::vector<double> all = RowRewards(in);
  std::vector<double> out(all.size(), 0.0);
  for (const std::vector<size_t>& rows : GroupRows(in.group)) {
    std::vector<double> rewards;
    std::vector<int64_t> tokens, total, turns(rows.size(), 1);
    for (const size_t i : rows) {
      rewards.push_back(all[i]);
      tokens.push_back(in.cells->Tokens(static_cast<int64_t>(i)));
      total.push_back(in.total_tokens[i]);
    }
    const std::vector<double> a = LengthShapedAdvantages(
        rewards, tokens, total, turns, {.w_in = o.Number("w_in", 0), .w_out = o.Number("w_out", 0)});
    for (size_t k = 0; k < rows.size(); ++k) out[rows[k]] = a[k];
  }
  return Spread(out, *in.cells);
}

}  // namespace

TP_PLUGIN(Advantage, grpo) {
  return {.paper = "DeepSeekMath, arXiv:2402.03300",
          .formula = "(r_i - mu_g)/(s_g + eps)",
          .options = {Choice("scale", "group_std", {"group_std", "batch_std", "none"},
                             "what centred rewards are divided by"),
                      Eps(1e-6), Ddof(),
                      Choice("baseline", "mean", {"mean", "loo"}, "mean of the group, or of the others"),
                      Choice("std_of", "all", {"all", "others"}, "deviation of the group, or of the others"),
                      Choice("zero_std", {}, {"skip"}, "skip: no division where the deviation is 0"),
                      SingletonOption()},
          .compute = Grpo};
}

TP_PLUGIN(Advantage, rloo) {
  return {.paper = "Back to basics, arXiv:2402.14740",
          .formula = "r_i - mean of the others",
          .options = {SingletonOption()},
          .compute = Rloo};
}

TP_PLUGIN(Advantage, opo) {
  return {.paper = "On-policy RL with optimal reward baseline, arXiv:2505.23585",
          .formula = "r_i - sum_j n_j r_j / sum_j n_j",
          .options = {SingletonOption()},
          .compute = Opo};
}

TP_PLUGIN(Advantage, gpg) {
  return {.paper = "Group policy gradient, arXiv:2504.02546",
          .formula = "alpha (r_i - mu_g)/f_norm, alpha = B/max(1, #{r != 0})",
          .options = {Choice("alpha", "batch/nonzero", {"batch/nonzero"},
                             "scale that makes up for rewards of 0; null: 1"),
                      {.name = "f_norm", .fallback = 1.0, .lo = 1e-12, .doc = "divisor"},
                      SingletonOption()},
          .compute = Gpg};
}

TP_PLUGIN(Advantage, maxrl) {
  return {.paper = "MaxRL, arXiv:2602.02710",
          .formula = "(r_i - mu_g)/mu_g, 0 if mu_g <= 0; rewards are not negative",
          .compute = MaxRl};
}

TP_PLUGIN(Advantage, passk) {
  return {.paper = "Pass@k training, arXiv:2503.19595",
          .formula = "best sample: r_(1) - r_(2) [/(s_g + eps)], others 0",
          .options = {Choice("scale", "none", {"group_std", "none"},
                             "whether the gap is divided by the deviation"),
                      Eps(1e-6), Ddof()},
          .compute = PassK};
}

TP_PLUGIN(Advantage, gdpo) {
  return {.paper = "GDPO, arXiv:2601.05242",
          .formula = "whiten(sum_k w_k (r_ik - mu_gk)/(s_gk + eps)), w_k the weights of reward.functions",
          .options = {Eps(1e-6), Ddof()},
          .needs = "each reward function's score",
          .provisions = {Provision::kComponents},
          .compute = Gdpo};
}

TP_PLUGIN(Advantage, length_shaped) {
  return {.paper = "prime-rl",
          .formula = "r - mean(r) (w_o n_out/max + w_i n_in/max + w_t turns/max), centred",
          .options = {{.name = "w_out", .fallback = 0.0, .lo = 0, .doc = "weight of the response's length"},
                      {.name = "w_in", .fallback = 0.0, .lo = 0, .doc = "weight of all other tokens"}},
          .compute = LengthShaped};
}

TP_PLUGIN(Algorithm, grpo) {
  return {.paper = "DeepSeekMath, arXiv:2402.03300",
          .doc = "group-relative advantages with PPO's clip",
          .advantage = {"grpo"},
          .loss = {"ppo"}};
}

TP_PLUGIN(Algorithm, dr_grpo) {
  return {.paper = "Understanding R1-zero-like training, arXiv:2503.20783",
          .doc = "no deviation, sums over a constant length",
          .advantage = {"grpo", {{"scale", "none"}}},
          .loss = {"ppo"},
          .rules = {.aggregation = "seq-mean-token-sum-norm"}};
}

TP_PLUGIN(Algorithm, dapo) {
  return {.paper = "DAPO, arXiv:2503.14476",
          .doc = "clip-higher, token mean, groups of equal rewards are replaced",
          .advantage = {"grpo"},
          .loss = {"ppo", {{"clip_high", 0.28}}},
          .rules = {.filter = "zero_variance"}};
}

TP_PLUGIN(Algorithm, rloo) {
  return {.paper = "Back to basics, arXiv:2402.14740",
          .doc = "leave-one-out baseline, policy gradient",
          .advantage = {"rloo"},
          .loss = {"reinforce"},
          .rules = {.aggregation = "seq-mean-token-sum"}};
}

TP_PLUGIN(Algorithm, opo) {
  return {.paper = "On-policy RL with optimal reward baseline, arXiv:2505.23585",
          .doc = "length-weighted baseline, exact on-policy",
          .advantage = {"opo"},
          .loss = {"onpolicy"}};
}

TP_PLUGIN(Algorithm, gpg) {
  return {.paper = "Group policy gradient, arXiv:2504.02546",
          .doc = "plain policy gradient, scaled for groups without a gradient",
          .advantage = {"gpg"},
          .loss = {"reinforce"}};
}

TP_PLUGIN(Algorithm, maxrl) {
  return {.paper = "MaxRL, arXiv:2602.02710",
          .doc = "rewards relative to the group's mean",
          .advantage = {"maxrl"},
          .loss = {"ppo"}};
}

TP_PLUGIN(Algorithm, passk) {
  return {.paper = "Pass@k training, arXiv:2503.19595",
          .doc = "only the best of a group is pushed",
          .advantage = {"passk"},
          .loss = {"ppo"}};
}

TP_PLUGIN(Algorithm, gdpo) {
  return {.paper = "GDPO, arXiv:2601.05242",
          .doc = "each reward is normalised in its group before they are added up",
          .advantage = {"gdpo"},
          .loss = {"ppo"}};
}

}  // namespace tidepool::algorithms
