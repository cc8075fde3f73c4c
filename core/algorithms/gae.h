#pragma once
// Generalised advantage estimation (arXiv:1506.02438), V-trace (arXiv:1802.01561) and TD(lambda).
// Targets carry no gradient. Pure, float64.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/algorithms/cells.h"
#include "core/algorithms/returns.h"
#include "core/algorithms/statistics.h"

namespace tidepool::algorithms {

// Over tokens, backwards, with carried V+ (bootstrap, else 0) and A+ (0); at a valid cell
//   delta = r_t + gamma V+ - V_t;  A_t = delta + gamma lambda A+;  V+ = V_t;  A+ = A_t
// and at a masked cell both are carried unchanged. R = A + V with the raw A; then A is whitened where
// `whiten` is not null. bootstrap: [rows] (value after the last token of a row cut off by the limit; 0 for
// finished ones) or empty.
ReturnsAndAdvantages TokenGae(std::span<const double> token_rewards, std::span<const double> values,
                              std::span<const double> bootstrap, double gamma, double lambda,
                              const WhitenOptions* whiten, const Cells& cells);

// VAPO (arXiv:2504.05118): lambda_value for R; lambda_i = 1 - 1/max(alpha n_i, 1) for A of row i.
ReturnsAndAdvantages VapoGae(std::span<const double> token_rewards, std::span<const double> values,
                             double gamma, double lambda_value, double alpha, const WhitenOptions* whiten,
                             const Cells& cells);

// Environment form. rewards [T, B], values [T+1, B], dones [T+1, B] (d_t: step t begins a new episode; row 0
// is not used):  delta_t = r_t + gamma V_{t+1} (1 - d_{t+1}) - V_t,  A_t = delta_t + gamma lambda (1 -
// d_{t+1}) A_{t+1} Results [T, B] for every cell; mask [T, B] picks the cells of whiten's mean and variance
// alone.
ReturnsAndAdvantages EnvironmentGae(std::span<const double> rewards, std::span<const double> values,
                                    std::span<const uint8_t> dones, std::span<const uint8_t> mask,
                                    int64_t steps, int64_t batch, double gamma, double lambda,
                                    const WhitenOptions* whiten);

}  // namespace tidepool::algorithms
