#include "scheduler/group_filter.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace tidepool::scheduler {
namespace {

std::optional<double> ValueOf(const Sample& s, const std::string& name) {
  if (name == "reward" || name == "reward_std") return s.reward;
  if (name == "response_tokens") return static_cast<double>(s.enq.response_len);
  const auto named = std::ranges::find(s.rewards, name, &std::pair<std::string, double>::first);
  return named == s.rewards.end() ? std::nullopt : std::optional(named->second);
}

std::optional<double> ValueOf(const Group& group, const std::string& name) {
  std::vector<double> values;
  for (const Sample& s : group.samples) {
    if (s.phase == SamplePhase::kDropped) continue;
    if (const auto value = ValueOf(s, name)) values.push_back(*value);
  }
  if (values.empty()) return std::nullopt;
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / n;
  if (name != "reward_std") return mean;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / n);
}

}  // namespace

std::string WhyLeftOut(const Group& group, const BatchOptions& options) {
  if (options.drops_equal_rewards && group.samples.size() >= 2 && group.EqualRewards())
    return "equal rewards";
  for (const GroupCondition& c : options.keep_groups) {
    const auto value = ValueOf(group, c.value);
    if (!value || (c.at_least ? *value >= c.bound : *value <= c.bound)) continue;
    return c.value + " " + std::to_string(*value) + (c.at_least ? " below " : " above ") +
           std::to_string(c.bound);
  }
  return {};
}

}  // namespace tidepool::scheduler
