#include "core/algorithms/metrics.h"

#include <limits>
#include <vector>

#include "core/algorithms/statistics.h"

namespace tidepool::algorithms {

double ExplainedVariance(std::span<const double> returns, std::span<const double> values,
                         std::span<const uint8_t> mask) {
  std::vector<double> r, rest;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) continue;
    r.push_back(returns[i]);
    rest.push_back(returns[i] - values[i]);
  }
  const double total = Deviation(r, 0), left = Deviation(rest, 0);
  if (total == 0) return std::numeric_limits<double>::quiet_NaN();
  return 1 - (left * left) / (total * total);
}

}  // namespace tidepool::algorithms
