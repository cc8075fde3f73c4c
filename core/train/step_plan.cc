#include "core/train/step_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/algorithms/advantages.h"
#include "core/algorithms/distillation.h"
#include "core/algorithms/importance.h"
#include "core/base/limited_call.h"
#include "core/base/plugin_label.h"

namespace tidepool::train {

using algorithms::Provision;

StepPlan PlanRows(const Batch& batch, const algorithms::ResolvedAlgorithm& a, bool policy) {
  StepPlan plan;
  const bool greedy_first = policy && a.advantage->Uses(Provision::kGreedy);
  for (const Row& row : batch.rows) {
    const bool dropped =
        policy && ((a.mask_truncated && row.truncated) || (greedy_first && row.tid.sample == 0));
    const auto n = static_cast<size_t>(row.response_tokens());
    for (size_t t = 0; t < n; ++t)
      plan.cells.mask.push_back(!dropped && (row.loss_mask.empty() || row.loss_mask[t] != 0) ? 1 : 0);
    plan.cells.begin.push_back(static_cast<int64_t>(plan.cells.mask.size()));
    plan.groups.push_back(row.gid.value);
    if (!policy) continue;
    plan.behave.insert(plan.behave.end(), row.logprobs.begin(), row.logprobs.end());
    plan.behave.resize(plan.cells.mask.size(), 0.0);  // of rows elsewhere: Trainer::Step adds them
  }
  plan.weights.assign(plan.cells.mask.size(), 0.0);
  plan.selected.assign(plan.cells.mask.size(), 0);
  plan.advantages.assign(plan.cells.mask.size(), 0.0);
  return plan;
}

std::vector<uint8_t> SampledByTrained(const Batch& batch, const algorithms::Cells& cells) {
  std::vector<uint8_t> sampled;
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const Row& row = batch.rows[i];
    const auto first = static_cast<size_t>(cells.begin[i]);
    const auto n = static_cast<size_t>(row.response_tokens());
    bool all = row.versions.size() == n;
    for (size_t t = 0; all && t < n; ++t)
      all = cells.mask[first + t] == 0 || row.versions[t] == batch.version;
    sampled.push_back(all ? 1 : 0);
  }
  return sampled;
}

Status CheckScores(const Row& row, const algorithms::ResolvedAlgorithm& a, size_t reward_functions) {
  if (a.advantage->Uses(Provision::kComponents) && row.components.size() != reward_functions) {
    return InvalidArgument(std::to_string(row.components.size()) +
                           " scores of single reward functions, advantage " + a.advantage->name + " needs " +
                           std::to_string(reward_functions));
  }
  if (!a.advantage->Uses(Provision::kTurns)) return OkStatus();
  if (row.turns.empty())
    return InvalidArgument("there is no record of its turns, which advantage " + a.advantage->name +
                           " compares");
  int64_t from = -1;
  for (const TurnMark& turn : row.turns) {
    if (turn.begin <= from || !std::isfinite(turn.reward_before)) {
      return InvalidArgument("turn at token " + std::to_string(turn.begin) + " does not follow the one at " +
                             std::to_string(from));
    }
    from = turn.begin;
    if (turn.begin >= row.response_tokens()) break;
  }
  return OkStatus();
}

Status FillAdvantages(const Batch& batch, const algorithms::ResolvedAlgorithm& a,
                      std::span<const double> component_weights, double kl_coef, StepPlan& plan) {
  for (const Row& row : batch.rows)
    TP_RETURN_IF_ERROR(CheckScores(row, a, component_weights.size()).At("row " + ToString(row.tid)));
  algorithms::AdvantageInput in{.cells = &plan.cells, .rewards = plan.scores, .group = plan.groups};
  if (!plan.kl.empty()) {
    in.kl = plan.kl;
    in.kl_coef = kl_coef;
  }
  in.values = plan.values;
  in.old_logp = plan.old;
  in.sum_pi_sq = plan.squares;
  in.teacher_logp = plan.teacher;
  in.returns = &plan.returns;
  std::vector<int64_t> total;
  for (const Row& row : batch.rows) total.push_back(row.prompt_tokens() + row.response_tokens());
  in.total_tokens = total;
  std::vector<double> baseline, components;
  if (a.advantage->Uses(Provision::kGreedy)) {
    std::map<int64_t, double> of_group;
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      if (batch.rows[i].tid.sample == 0) of_group[plan.groups[i]] = plan.scores[i];
    }
    // A greedy answer that was lost: its group's samples are their own baseline, which gives them no
    // gradient.
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const auto it = of_group.find(plan.groups[i]);
      baseline.push_back(it == of_group.end() ? plan.scores[i] : it->second);
    }
    in.baseline = baseline;
  }
  if (a.advantage->Uses(Provision::kComponents)) {
    for (const Row& row : batch.rows)
      components.insert(components.end(), row.components.begin(), row.components.end());
    in.components = components;
    in.component_weights = component_weights;
  }
  if (a.advantage->Uses(Provision::kTurns)) {
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const Row& row = batch.rows[i];
      for (const TurnMark& turn : row.turns) {
        // Heard, but there was no room left to answer: no turn of the policy.
        if (turn.begin >= row.response_tokens()) break;
        plan.steps.row.push_back(static_cast<int64_t>(i));
        plan.steps.begin.push_back(turn.begin);
        plan.steps.state.push_back(static_cast<int64_t>(turn.state));
        plan.steps.before.push_back(turn.reward_before);
      }
    }
    in.steps = &plan.steps;
  }
  TP_RETURN_IF_ERROR(
      LimitedCall({.what = PluginLabel("advantage", algorithms::AdvantagePlugins(), a.advantage->name),
                   .on = "a batch of " + std::to_string(plan.cells.rows()) + " rows"})
          .Run(StatusCode::kInternal, [&] {
            plan.advantages = a.advantage->compute(a.advantage_options, in);
            return OkStatus();
          }));
  if (a.teacher_coef != 0) {
    const std::vector<double> more =
        algorithms::OnPolicyDistillAdvantages(plan.old, plan.teacher, a.teacher_coef, plan.cells);
    for (size_t c = 0; c < more.size(); ++c) plan.advantages[c] += more[c];
  }
  return OkStatus();
}

double SharedStates(const StepPlan& plan) {
  std::map<std::pair<int64_t, int64_t>, int64_t> seen;
  const auto state = [&](size_t k) {
    return std::pair{plan.groups[static_cast<size_t>(plan.steps.row[k])], plan.steps.state[k]};
  };
  for (size_t k = 0; k < plan.steps.row.size(); ++k) ++seen[state(k)];
  double shared = 0;
  for (size_t k = 0; k < plan.steps.row.size(); ++k) shared += seen[state(k)] > 1 ? 1 : 0;
  return shared / static_cast<double>(std::max<size_t>(1, plan.steps.row.size()));
}

void FillRejection(const algorithms::ResolvedAlgorithm& a, StepPlan& plan) {
  if (a.reject.empty() && !a.second_moment) return;
  plan.keep.assign(plan.cells.mask.size(), 1.0);
  const auto drop = [&](const std::vector<uint8_t>& mask) {
    for (size_t c = 0; c < mask.size(); ++c) plan.keep[c] = mask[c] != 0 ? plan.keep[c] : 0;
  };
  // l is clipped as everywhere: +-20.
  if (!a.reject.empty()) drop(algorithms::Reject(a.reject, 20.0, plan.old, plan.behave, plan.cells).mask);
  if (a.second_moment)
    drop(algorithms::SecondMomentMask(plan.behave, plan.old, *a.second_moment, plan.cells));
  int64_t lost = 0;
  for (size_t c = 0; c < plan.keep.size(); ++c) lost += plan.cells.mask[c] != 0 && plan.keep[c] == 0 ? 1 : 0;
  plan.masked_fraction =
      static_cast<double>(lost) / static_cast<double>(std::max<int64_t>(1, plan.cells.Tokens()));
}

algorithms::Cells Only(const algorithms::Cells& cells, std::span<const int64_t> rows) {
  algorithms::Cells only = cells;
  std::fill(only.mask.begin(), only.mask.end(), uint8_t{0});
  for (const int64_t i : rows) {
    const int64_t from = cells.begin[static_cast<size_t>(i)], to = cells.begin[static_cast<size_t>(i) + 1];
    std::copy(cells.mask.begin() + from, cells.mask.begin() + to, only.mask.begin() + from);
  }
  return only;
}

}  // namespace tidepool::train
