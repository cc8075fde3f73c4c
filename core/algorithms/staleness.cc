#include "core/algorithms/staleness.h"

#include <algorithm>

namespace tidepool::algorithms {

double ProximalShare(int64_t current, int64_t token) {
  if (token >= current || token == -1) return 0;
  const auto v = static_cast<double>(current), t = static_cast<double>(token);
  return std::clamp((v - 1 - t) / (v - t), 0.0, 1.0);
}

double LogLinearProximal(double behave, double logp, double share) {
  // At the ends the other policy plays no part, whatever its log-prob (0 * inf).
  if (share == 0) return behave;
  return share == 1 ? logp : behave + share * (logp - behave);
}

}  // namespace tidepool::algorithms
