#pragma once
// Returns to go over the tokens of a response, and the estimators made of them.
// token_rewards r: [cells] (masked cells are ignored). Results [cells], 0 on masked cells. Pure, float64.

#include <cstdint>
#include <span>
#include <vector>

#include "core/algorithms/cells.h"
#include "core/algorithms/group_advantages.h"
#include "core/algorithms/statistics.h"

namespace tidepool::algorithms {

struct ReturnsAndAdvantages {
  std::vector<double> returns, advantages;
};

// Token rewards of an outcome: r_it = 1[t last valid cell of i] r_i - kl_coef kl_it. kl: [cells] or empty.
std::vector<double> OutcomeTokenRewards(std::span<const double> rewards, std::span<const double> kl,
                                        double kl_coef, const Cells& cells);

// G_t = m_t r_t + gamma G_{t+1}, carried through masked cells, which discount too: a tool call in the
// middle does not cut the credit of earlier turns (slime, OpenRLHF).
std::vector<double> DiscountedReturns(std::span<const double> token_rewards, double gamma,
                                      const Cells& cells);

// REINFORCE++ (arXiv:2501.03262): A = whiten(G) over all valid cells; whiten null: A = G.
ReturnsAndAdvantages ReinforcePlusPlus(std::span<const double> token_rewards, double gamma,
                                       const WhitenOptions* whiten, const Cells& cells);

// ReMax (arXiv:2310.10505): G_t = sum_{s >= t} m_s r_s,  A_it = G_it - b_i, b_i the reward of the greedy
// answer.
ReturnsAndAdvantages ReMax(std::span<const double> token_rewards, std::span<const double> baseline,
                           const Cells& cells);

// Optimal token baseline (verl): A_it = G_it - B_gt,  B_gt = sum_j G_jt W_jt / (sum_j W_jt + eps) over the
// group's rows whose cell t is valid,  W_t = sum_{s <= t} m_s (1 - 2 pi_s + sum_v pi_v^2),  t counted
// from the row's begin. old_logp = log pi, sum_pi_sq: [cells]. Groups of one: raw has no baseline, zero gives
// 0.
std::vector<double> OptimalTokenBaseline(std::span<const double> token_rewards,
                                         std::span<const int64_t> group, std::span<const double> old_logp,
                                         std::span<const double> sum_pi_sq, double eps, Singleton singleton,
                                         const Cells& cells);

}  // namespace tidepool::algorithms
