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

double PassAtK(int64_t n, int64_t correct, int64_t k) {
  if (n - correct < k) return 1;
  double miss = 1;  // product of (1 - k/j), j = n - c + 1 .. n
  for (int64_t j = n - correct + 1; j <= n; ++j) miss *= 1 - static_cast<double>(k) / static_cast<double>(j);
  return 1 - miss;
}

}  // namespace tidepool::algorithms
