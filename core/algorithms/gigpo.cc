#include "core/algorithms/gigpo.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/algorithms/statistics.h"
#include "core/base/check.h"

namespace tidepool::algorithms {
namespace {

std::vector<double> Normalised(std::span<const double> x, const GigpoOptions& o) {
  std::vector<double> out(x.size(), 0.0);
  if (x.size() < 2 || AllEqual(x)) return out;
  const double mean = Mean(x), deviation = Deviation(x, o.ddof);
  if (o.divide_by_std && deviation <= o.small_std) return out;
  for (size_t i = 0; i < x.size(); ++i) out[i] = (x[i] - mean) / (o.divide_by_std ? deviation + o.eps : 1);
  return out;
}

// Rows of each trajectory in order of their steps.
std::vector<std::vector<size_t>> Trajectories(std::span<const int64_t> traj, std::span<const int64_t> step) {
  std::vector<std::vector<size_t>> all = GroupRows(traj);
  for (std::vector<size_t>& rows : all) std::ranges::stable_sort(rows, {}, [&](size_t i) { return step[i]; });
  return all;
}

}  // namespace

std::vector<double> StepReturns(std::span<const double> step_rewards, std::span<const int64_t> traj,
                                std::span<const int64_t> step, double gamma) {
  std::vector<double> returns(step_rewards.size(), 0.0);
  for (const std::vector<size_t>& rows : Trajectories(traj, step)) {
    double carried = 0;
    for (size_t k = rows.size(); k-- > 0;)
      returns[rows[k]] = carried = step_rewards[rows[k]] + gamma * carried;
  }
  return returns;
}

GigpoResult Gigpo(std::span<const double> step_rewards, std::span<const int64_t> group,
                  std::span<const int64_t> traj, std::span<const int64_t> step,
                  std::span<const int64_t> state, const GigpoOptions& o) {
  const size_t n = step_rewards.size();
  TP_CHECK(group.size() == n && traj.size() == n && step.size() == n && state.size() == n);
  GigpoResult out;
  out.step_returns = StepReturns(step_rewards, traj, step, o.gamma);
  out.episode_adv.assign(n, 0.0);
  out.step_adv.assign(n, 0.0);
  out.advantages.assign(n, 0.0);

  std::vector<double> episode_sum(n, 0.0);
  for (const std::vector<size_t>& rows : Trajectories(traj, step)) {
    double sum = 0;
    for (size_t k = rows.size(); k-- > 0;) sum += step_rewards[rows[k]];
    for (const size_t i : rows) episode_sum[i] = sum;
  }

  for (const std::vector<size_t>& rows : GroupRows(group)) {
    std::vector<double> sums;
    std::map<int64_t, size_t> place;  // trajectory -> entry of sums
    for (const size_t i : rows) {
      if (o.per_step_row || place.try_emplace(traj[i], sums.size()).second) sums.push_back(episode_sum[i]);
    }
    const std::vector<double> a = Normalised(sums, o);
    for (size_t k = 0; k < rows.size(); ++k)
      out.episode_adv[rows[k]] = o.per_step_row ? a[k] : a[place[traj[rows[k]]]];
  }

  std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> same_state;
  for (size_t i = 0; i < n; ++i) same_state[{group[i], state[i]}].push_back(i);
  for (const auto& [key, rows] : same_state) {
    std::vector<double> returns;
    for (const size_t i : rows) returns.push_back(out.step_returns[i]);
    const std::vector<double> a = Normalised(returns, o);
    for (size_t k = 0; k < rows.size(); ++k) out.step_adv[rows[k]] = a[k];
  }
  for (size_t i = 0; i < n; ++i) out.advantages[i] = out.episode_adv[i] + o.step_weight * out.step_adv[i];
  return out;
}

}  // namespace tidepool::algorithms
