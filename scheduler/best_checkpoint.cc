#include "scheduler/best_checkpoint.h"

#include <algorithm>

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

std::optional<BestCheckpoint> FindBest(const std::map<StepNumber, record::EvalResult>& evals,
                                       const std::set<StepNumber>& checkpointed, std::string_view metric) {
  std::optional<BestCheckpoint> best;
  for (const auto& [step, result] : evals) {
    const auto value = EvalValue(result, metric);
    if (value && checkpointed.contains(step) && (!best || *value > best->value)) best = {step, *value};
  }
  return best;
}

}  // namespace tidepool::scheduler
