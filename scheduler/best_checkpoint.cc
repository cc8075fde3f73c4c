#include "scheduler/best_checkpoint.h"

#include <algorithm>
#include <cmath>

namespace tidepool::scheduler {

std::optional<double> EvalValue(const record::EvalResult& r, std::string_view metric) {
  if (r.total <= 0 || r.lost > r.total) return std::nullopt;
  if (metric == "eval/reward/mean") return r.mean;
  if (metric == "eval/accuracy") {
    if (r.graded != 0) return std::nullopt;
    return static_cast<double>(r.correct) / static_cast<double>(r.total);
  }
  std::string_view name = "return";
  if (metric != "eval/return/mean") {
    constexpr std::string_view kBefore = "eval/reward/", kAfter = "/mean";
    if (!metric.starts_with(kBefore) || !metric.ends_with(kAfter) ||
        metric.size() <= kBefore.size() + kAfter.size())
      return std::nullopt;
    name = metric.substr(kBefore.size(), metric.size() - kBefore.size() - kAfter.size());
  }
  const auto it = std::ranges::find(r.rewards, name, &record::EvalScore::name);
  return it == r.rewards.end() ? std::nullopt : std::optional(it->mean);
}

bool OfTrainer(std::string_view metric) {
  return metric == "eval/loss" || metric.starts_with("eval/sft/") || metric.starts_with("eval/dpo/") ||
         metric.starts_with("eval/reward_model/");
}

std::optional<BestCheckpoint> FindBest(const std::map<StepNumber, record::EvalResult>& evals,
                                       const HeldOutFigures& figures,
                                       const std::set<StepNumber>& checkpointed, std::string_view metric) {
  std::map<StepNumber, double> values;
  if (OfTrainer(metric)) {
    for (const auto& [step, of] : figures) {
      const auto it = of.find(metric);
      if (it != of.end() && std::isfinite(it->second)) values[step] = it->second;
    }
  } else {
    for (const auto& [step, result] : evals) {
      if (const auto value = EvalValue(result, metric)) values[step] = *value;
    }
  }
  std::optional<BestCheckpoint> best;
  for (const auto& [step, value] : values) {
    const BestCheckpoint one{step, value};
    if (checkpointed.contains(step) && (!best || IsBetter(one, *best, metric))) best = one;
  }
  return best;
}

bool IsBetter(const BestCheckpoint& a, const BestCheckpoint& b, std::string_view metric) {
  if (a.value == b.value) return a.step < b.step;
  return metric.ends_with("loss") ? a.value < b.value : a.value > b.value;
}

}  // namespace tidepool::scheduler
