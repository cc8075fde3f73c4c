#include "core/algorithms/advantages.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/algorithms/distillation.h"
#include "core/algorithms/gae.h"
#include "core/algorithms/gigpo.h"
#include "core/algorithms/group_advantages.h"
#include "core/algorithms/returns.h"

namespace tidepool::algorithms {
namespace {

Singleton SingletonOf(const Options& o) {
  return FromWord<Singleton>(o.Text("singleton")).value_or(Singleton::kZero);
}

OptionSpec SingletonOption() {
  return Choice("singleton", "zero", {"zero", "raw"}, "a group of one gets 0, or its reward");
}
OptionSpec Ddof() {
  return {.name = "ddof", .fallback = 1.0, .lo = 0, .hi = 1, .doc = "deviations divide by n - this"};
}
OptionSpec Eps(double fallback) {
  return {.name = "eps", .fallback = fallback, .lo = 0, .doc = "added to deviations"};
}
OptionSpec Gamma() { return {.name = "gamma", .fallback = 1.0, .lo = 0, .hi = 1, .doc = "discount a token"}; }
OptionSpec WhitenMode() {
  return Choice("whiten", "add_var", {"none", "add_var", "clamp_var", "add_std"},
                "how advantages are whitened over all tokens of the batch");
}

std::optional<WhitenOptions> WhitenOf(const Options& o) {
  const auto mode = FromWord<EpsMode>(o.Text("whiten"));
  if (!mode) return std::nullopt;
  return WhitenOptions{
      .ddof = static_cast<int64_t>(o.Number("ddof", 1)), .eps = o.Number("eps", 1e-8), .eps_mode = *mode};
}

// Estimators of whole rows see the row's reward less its KL.
std::vector<double> RowRewards(const AdvantageInput& in) {
  std::vector<double> rewards(in.rewards.begin(), in.rewards.end());
  if (in.kl.empty() || in.kl_coef == 0) return rewards;
  const std::vector<double> kl = RowSums(in.kl, *in.cells);
  for (size_t i = 0; i < rewards.size(); ++i) rewards[i] -= in.kl_coef * kl[i];
  return rewards;
}
std::vector<double> TokenRewards(const AdvantageInput& in) {
  return OutcomeTokenRewards(in.rewards, in.kl, in.kl_coef, *in.cells);
}
std::vector<double> Taken(const AdvantageInput& in, ReturnsAndAdvantages result) {
  if (in.returns != nullptr) *in.returns = std::move(result.returns);
  return std::move(result.advantages);
}

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
std::vector<double> Gdpo(const Options& o, const AdvantageInput& in) {
  return Spread(GdpoAdvantages(in.components, in.component_weights, in.group,
                               static_cast<int64_t>(o.Number("ddof", 1)), o.Number("eps", 0)),
                *in.cells);
}
std::vector<double> GreedyBaseline(const Options&, const AdvantageInput& in) {
  return ReMax(TokenRewards(in), in.baseline, *in.cells).advantages;
}
std::vector<double> TokenBaseline(const Options& o, const AdvantageInput& in) {
  return OptimalTokenBaseline(TokenRewards(in), in.group, in.old_logp, in.sum_pi_sq, o.Number("eps", 0),
                              SingletonOf(o), *in.cells);
}
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
std::vector<double> Teacher(const Options& o, const AdvantageInput& in) {
  return OnPolicyDistillAdvantages(in.old_logp, in.teacher_logp, o.Number("coef", 1), *in.cells);
}
// Steps with the rewards that fall to them: what a turn adds to the episode's reward, the last turn what is
// left of the row's (so shaping and a KL in the reward count there). Rows without a verdict have no steps.
struct RewardedSteps {
  std::vector<double> reward;
  std::vector<int64_t> group, row, index, state, begin, end;
};
RewardedSteps StepsOf(const AdvantageInput& in) {
  const std::vector<double> rewards = RowRewards(in);
  const AgentSteps& s = *in.steps;
  RewardedSteps out;
  for (size_t k = 0; k < s.row.size(); ++k) {
    const auto row = static_cast<size_t>(s.row[k]);
    if (std::isnan(rewards[row])) continue;
    const bool last = k + 1 == s.row.size() || s.row[k + 1] != s.row[k];
    const int64_t from = in.cells->begin[row];
    out.reward.push_back((last ? rewards[row] : s.before[k + 1]) - s.before[k]);
    out.group.push_back(in.group[row]);
    out.row.push_back(s.row[k]);
    out.index.push_back(static_cast<int64_t>(k));
    out.state.push_back(s.state[k]);
    out.begin.push_back(from + s.begin[k]);
    out.end.push_back(last ? in.cells->begin[row + 1] : from + s.begin[k + 1]);
  }
  return out;
}
std::vector<double> SpreadSteps(std::span<const double> per_step, const RewardedSteps& steps,
                                const Cells& cells) {
  std::vector<double> out(cells.mask.size(), 0.0);
  for (size_t k = 0; k < per_step.size(); ++k) {
    for (int64_t c = steps.begin[k]; c < steps.end[k]; ++c) {
      if (cells.valid(c)) out[static_cast<size_t>(c)] = per_step[k];
    }
  }
  return out;
}
std::vector<double> StepGroups(const Options& o, const AdvantageInput& in) {
  const RewardedSteps s = StepsOf(in);
  const GigpoOptions g{.gamma = o.Number("gamma", 1),
                       .step_weight = o.Number("step_weight", 1),
                       .divide_by_std = o.Text("norm") == "mean_std",
                       .eps = o.Number("eps", 0),
                       .ddof = static_cast<int64_t>(o.Number("ddof", 1)),
                       .small_std = o.Number("small_std", 0),
                       .per_step_row = o.Text("episode_stats") == "per_step_row"};
  return SpreadSteps(Gigpo(s.reward, s.group, s.row, s.index, s.state, g).advantages, s, *in.cells);
}
std::vector<double> TurnCredit(const Options& o, const AdvantageInput& in) {
  const RewardedSteps s = StepsOf(in);
  return SpreadSteps(StepReturns(s.reward, s.row, s.index, o.Number("gamma", 1)), s, *in.cells);
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

const std::vector<AdvantageEntry>& AdvantageEstimators() {
  static const std::vector<AdvantageEntry> entries = {
      {.name = "grpo",
       .paper = "DeepSeekMath, arXiv:2402.03300",
       .formula = "(r_i - mu_g)/(s_g + eps)",
       .options = {Choice("scale", "group_std", {"group_std", "batch_std", "none"},
                          "what centred rewards are divided by"),
                   Eps(1e-6), Ddof(),
                   Choice("baseline", "mean", {"mean", "loo"}, "mean of the group, or of the others"),
                   Choice("std_of", "all", {"all", "others"}, "deviation of the group, or of the others"),
                   Choice("zero_std", {}, {"skip"}, "skip: no division where the deviation is 0"),
                   SingletonOption()},
       .compute = Grpo},
      {.name = "rloo",
       .paper = "Back to basics, arXiv:2402.14740",
       .formula = "r_i - mean of the others",
       .options = {SingletonOption()},
       .compute = Rloo},
      {.name = "opo",
       .paper = "On-policy RL with optimal reward baseline, arXiv:2505.23585",
       .formula = "r_i - sum_j n_j r_j / sum_j n_j",
       .options = {SingletonOption()},
       .compute = Opo},
      {.name = "gpg",
       .paper = "Group policy gradient, arXiv:2504.02546",
       .formula = "alpha (r_i - mu_g)/f_norm, alpha = B/max(1, #{r != 0})",
       .options = {Choice("alpha", "batch/nonzero", {"batch/nonzero"},
                          "scale that makes up for rewards of 0; null: 1"),
                   {.name = "f_norm", .fallback = 1.0, .lo = 1e-12, .doc = "divisor"},
                   SingletonOption()},
       .compute = Gpg},
      {.name = "maxrl",
       .paper = "MaxRL, arXiv:2602.02710",
       .formula = "(r_i - mu_g)/mu_g, 0 if mu_g <= 0; rewards are not negative",
       .compute = MaxRl},
      {.name = "passk",
       .paper = "Pass@k training, arXiv:2503.19595",
       .formula = "best sample: r_(1) - r_(2) [/(s_g + eps)], others 0",
       .options = {Choice("scale", "none", {"group_std", "none"},
                          "whether the gap is divided by the deviation"),
                   Eps(1e-6), Ddof()},
       .compute = PassK},
      {.name = "reinforce_pp_baseline",
       .paper = "REINFORCE++, arXiv:2501.03262",
       .formula = "r_i - mu_g on each token, whitened over all tokens of the batch",
       .options = {WhitenMode(), Eps(1e-8), Ddof(), SingletonOption()},
       .compute = ReinforceBaseline},
      {.name = "reinforce_pp",
       .paper = "REINFORCE++, arXiv:2501.03262",
       .formula = "discounted return of the reward at the last token, whitened over all tokens of the batch",
       .options = {Gamma(), WhitenMode(), Eps(1e-8), Ddof()},
       .compares = false,
       .compute = Reinforce},
      {.name = "gdpo",
       .paper = "GDPO, arXiv:2601.05242",
       .formula = "whiten(sum_k w_k (r_ik - mu_gk)/(s_gk + eps)), w_k the weights of reward.functions",
       .options = {Eps(1e-6), Ddof()},
       .needs = "each reward function's score",
       .provisions = {Provision::kComponents},
       .compute = Gdpo},
      {.name = "remax",
       .paper = "ReMax, arXiv:2310.10505",
       .formula = "return to go - reward of the greedy answer",
       .compares = false,
       .needs = "a greedy answer of each prompt (the first sample of a group, which is not trained)",
       .provisions = {Provision::kGreedy},
       .compute = GreedyBaseline},
      {.name = "otb",
       .paper = "optimal token baseline (verl)",
       .formula = "G_it - sum_j G_jt W_jt / (sum_j W_jt + eps), W_t = sum_{s<=t} (1 - 2 pi_s + sum_v pi_v^2)",
       .options = {Eps(1e-8), SingletonOption()},
       .needs = "sum of squared probabilities of each token",
       .provisions = {Provision::kSquares},
       .compute = TokenBaseline},
      {.name = "gae",
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
       .compute = Gae},
      {.name = "gae_vapo",
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
       .compute = GaeVapo},
      {.name = "on_policy_distill",
       .paper = "on-policy distillation, arXiv:2601.02780",
       .formula = "coef (teacher_lp - lp) of each token; rewards do not count",
       .options = {{.name = "coef", .fallback = 1.0, .lo = 0, .doc = "scale"}},
       .compares = false,
       .needs = "a teacher (algorithm.teacher)",
       .provisions = {Provision::kTeacher},
       .compute = Teacher},
      {.name = "gae_env",
       .paper = "Generalized advantage estimation, arXiv:1506.02438",
       .formula = "GAE over steps of environments, cut at their ends, with the value of the last observation "
                  "after a truncation",
       .options =
           {{.name = "gamma", .fallback = 0.99, .lo = 0, .hi = 1, .doc = "discount a step"},
            {.name = "lambda", .fallback = 0.95, .lo = 0, .hi = 1, .doc = "0: one step, 1: the whole return"},
            Choice("whiten", "add_var", {"none", "add_var"}, "advantages over all steps of the batch")},
       .compares = false,
       .needs = "model.policy: a critic and environments"},
      {.name = "vtrace",
       .paper = "IMPALA, arXiv:1802.01561",
       .formula = "min(w, pg_bar)(r_t + d_t v_{t+1} - V_t)",
       .compares = false,
       .needs = "a critic and environments"},
      {.name = "td_lambda",
       .paper = "TD(lambda), Sutton 1988",
       .formula = "r_t + d_t ((1 - lambda) V_{t+1} + lambda y_{t+1})",
       .compares = false,
       .needs = "a critic and environments"},
      {.name = "gigpo",
       .paper = "GiGPO, arXiv:2505.10978",
       .formula = "episode's reward - mean_g + step_weight (R_t - mean of the group's turns in the same "
                  "state), R_t = r_t + gamma R_{t+1}",
       .options =
           {{.name = "gamma", .fallback = 0.95, .lo = 0, .hi = 1, .doc = "discount a turn"},
            {.name = "step_weight",
             .fallback = 1.0,
             .lo = 0,
             .doc = "of the comparison of equal states; 0: whole episodes alone"},
            Choice("norm", "mean", {"mean", "mean_std"},
                   "both parts are centred, or divided by the deviation as well"),
            Choice(
                "episode_stats", "trajectory", {"trajectory", "per_step_row"},
                "means over episodes (paper), or over their turns, so that long episodes weigh more (peers)"),
            Eps(1e-6),
            Ddof(),
            {.name = "small_std",
             .fallback = 1e-6,
             .lo = 0,
             .doc = "mean_std: deviations up to this give 0"}},
       .needs = "an environment with turns",
       .provisions = {Provision::kTurns},
       .compute = StepGroups},
      {.name = "turn_return",
       .paper = "ROLL agentic_reinforce",
       .formula = "reward of the turn + gamma value of the next turn",
       .options = {{.name = "gamma", .fallback = 1.0, .lo = 0, .hi = 1, .doc = "discount a turn"}},
       .compares = false,
       .needs = "an environment with turns",
       .provisions = {Provision::kTurns},
       .compute = TurnCredit},
      {.name = "length_shaped",
       .paper = "prime-rl",
       .formula = "r - mean(r) (w_o n_out/max + w_i n_in/max + w_t turns/max), centred",
       .options = {{.name = "w_out", .fallback = 0.0, .lo = 0, .doc = "weight of the response's length"},
                   {.name = "w_in", .fallback = 0.0, .lo = 0, .doc = "weight of all other tokens"}},
       .compute = LengthShaped},
  };
  return entries;
}

bool AdvantageEntry::Uses(Provision p) const { return std::ranges::count(provisions, p) > 0; }

const AdvantageEntry* FindAdvantage(std::string_view name) {
  const auto it = std::ranges::find(AdvantageEstimators(), name, &AdvantageEntry::name);
  return it == AdvantageEstimators().end() ? nullptr : &*it;
}

}  // namespace tidepool::algorithms
