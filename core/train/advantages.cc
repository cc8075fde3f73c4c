#include "core/train/advantages.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/base/check.h"

namespace tidepool::train {
namespace {

struct Moments {
  double mean = 0;
  double deviation = 0;  // divided by n - 1; 0 for n < 2
};
Moments MomentsOf(std::span<const double> x) {
  Moments m;
  const auto n = static_cast<double>(x.size());
  for (const double v : x) m.mean += v / n;
  if (x.size() < 2) return m;
  double squares = 0;
  for (const double v : x) squares += (v - m.mean) * (v - m.mean);
  m.deviation = std::sqrt(squares / (n - 1));
  return m;
}

}  // namespace

StatusOr<AdvantageScale> ParseAdvantageScale(std::string_view name) {
  if (name == "group_std") return AdvantageScale::kGroupStd;
  if (name == "batch_std") return AdvantageScale::kBatchStd;
  if (name == "none") return AdvantageScale::kNone;
  return InvalidArgument("algorithm.advantage_scale is '" + std::string(name) + "'; use group_std, batch_std or none");
}

std::vector<double> GroupAdvantages(std::span<const double> rewards, std::span<const GroupId> groups,
                                    AdvantageScale scale, double eps) {
  TP_CHECK(rewards.size() == groups.size()) << rewards.size() << " rewards, " << groups.size() << " groups";
  std::map<GroupId, std::vector<size_t>> rows;
  for (size_t i = 0; i < groups.size(); ++i) rows[groups[i]].push_back(i);
  const double batch_deviation = MomentsOf(rewards).deviation;
  std::vector<double> advantages(rewards.size(), 0.0);
  for (const auto& [group, members] : rows) {
    std::vector<double> r;
    for (const size_t i : members) r.push_back(rewards[i]);
    const auto [low, high] = std::minmax_element(r.begin(), r.end());
    // A mean of equal numbers can be off by an ulp, which a small deviation would blow up.
    if (r.size() < 2 || *high - *low <= 1e-8 * std::max({1.0, std::fabs(*high), std::fabs(*low)})) continue;
    const Moments m = MomentsOf(r);
    double divisor = 1;
    if (scale == AdvantageScale::kGroupStd) divisor = m.deviation + eps;
    if (scale == AdvantageScale::kBatchStd) divisor = batch_deviation + eps;
    for (const size_t i : members) advantages[i] = (rewards[i] - m.mean) / divisor;
  }
  return advantages;
}

double OverlongPenalty(double tokens, double limit, double buffer) {
  if (buffer <= 0 || tokens <= limit - buffer) return 0;
  return std::max(-1.0, (limit - buffer - tokens) / buffer);
}

}  // namespace tidepool::train
