#pragma once
// Metrics that are formulas of their own. Pure, float64.

#include <cstdint>
#include <span>

namespace tidepool::algorithms {

// 1 - Var(R - V)/Var(R) over cells with mask 1; NaN if Var(R) is 0.
double ExplainedVariance(std::span<const double> returns, std::span<const double> values,
                         std::span<const uint8_t> mask);

// pass@k (arXiv:2107.03374): 1 - C(n - c, k)/C(n, k); 1 if n - c < k. requires 1 <= k <= n, 0 <= c <= n.
double PassAtK(int64_t n, int64_t correct, int64_t k);

}  // namespace tidepool::algorithms
