#pragma once
// GiGPO (arXiv:2505.10978): step groups for agents. One row a step, in any order. Pure, float64.
//
//   R_t = sum_k gamma^k r_{t+k} inside a trajectory (ordered by step)
//   A^E: episode sums (undiscounted) normalised over the group. per_step_row: an episode's sum stands on each
//        of its rows and all rows of a group are normalised together (peers; long episodes weigh more);
//        otherwise over the trajectories (paper).
//   A^S: R_t normalised over all rows with the same (group, state).   A = A^E + step_weight A^S
// Normalising is x - mean, or (x - mean)/(std + eps) where std > small_std and 0 elsewhere. A group of one
// and one of equal values give 0.

#include <cstdint>
#include <span>
#include <vector>

namespace tidepool::algorithms {

struct GigpoOptions {
  double gamma = 0.95;
  double step_weight = 1;
  bool divide_by_std = false;
  double eps = 1e-6;
  int64_t ddof = 1;
  double small_std = 1e-6;
  bool per_step_row = true;
};
struct GigpoResult {
  std::vector<double> step_returns, episode_adv, step_adv, advantages;  // [rows]
};
// R_t. All [rows].
std::vector<double> StepReturns(std::span<const double> step_rewards, std::span<const int64_t> traj,
                                std::span<const int64_t> step, double gamma);
// All [rows]; traj ids are unique over groups.
GigpoResult Gigpo(std::span<const double> step_rewards, std::span<const int64_t> group,
                  std::span<const int64_t> traj, std::span<const int64_t> step,
                  std::span<const int64_t> state, const GigpoOptions& options);

}  // namespace tidepool::algorithms
