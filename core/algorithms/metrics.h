#pragma once
// Metrics that are formulas of their own. Pure, float64.

#include <cstdint>
#include <span>

namespace tidepool::algorithms {

// 1 - Var(R - V)/Var(R) over cells with mask 1; NaN if Var(R) is 0.
double ExplainedVariance(std::span<const double> returns, std::span<const double> values,
                         std::span<const uint8_t> mask);

}  // namespace tidepool::algorithms
