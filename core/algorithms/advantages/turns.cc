// Estimators over the turns of episodes.
#include <cmath>

#include "core/algorithms/advantages/parts.h"
#include "core/algorithms/gae.h"
#include "core/algorithms/gigpo.h"

namespace tidepool::algorithms {
namespace {

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

}  // namespace

TP_PLUGIN(Advantage, gigpo) {
  return {
      .paper = "GiGPO, arXiv:2505.10978",
      .formula =
          "episode's reward - mean_g + step_weight (R_t - mean of the group's turns in the same "
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
           {.name = "small_std", .fallback = 1e-6, .lo = 0, .doc = "mean_std: deviations up to this give 0"}},
      .needs = "an environment with turns",
      .provisions = {Provision::kTurns},
      .compute = StepGroups};
}

TP_PLUGIN(Advantage, turn_return) {
  return {.paper = "ROLL agentic_reinforce",
          .formula = "reward of the turn + gamma value of the next turn",
          .options = {{.name = "gamma", .fallback = 1.0, .lo = 0, .hi = 1, .doc = "discount a turn"}},
          .compares = false,
          .needs = "an environment with turns",
          .provisions = {Provision::kTurns},
          .compute = TurnCredit};
}

TP_PLUGIN(Algorithm, gigpo) {
  return {.paper = "GiGPO, arXiv:2505.10978",
          .doc =
              "episodes of a group are compared, and turns that began in the same state; for a job with an "
              "environment",
          .advantage = {"gigpo"},
          .loss = {"ppo"}};
}

}  // namespace tidepool::algorithms
