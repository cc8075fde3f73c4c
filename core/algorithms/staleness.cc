#include "core/algorithms/staleness.h"

#include <algorithm>
#include <cmath>

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

double LinearProximal(double behave, double logp, double share) {
  return std::log((1 - share) * std::exp(behave) + share * std::exp(logp) + 1e-10);
}

int64_t RolloutCapacity(int64_t max_staleness, int64_t batch_size, int64_t max_concurrent, int64_t version,
                        int64_t accepted, int64_t running) {
  return std::min(max_concurrent - running, (max_staleness + version + 1) * batch_size - accepted - running);
}

EpisodeAge AgeOfEpisode(int64_t train_version, int64_t start_version, int64_t end_version,
                        std::optional<double> max_off_policy) {
  EpisodeAge age;
  age.total = std::max<int64_t>(0, train_version - start_version);
  age.in_flight = std::min(age.total, std::max<int64_t>(0, end_version - start_version));
  age.in_queue = age.total - age.in_flight;
  age.fresh =
      !max_off_policy.has_value() || static_cast<double>(train_version - start_version) <= *max_off_policy;
  return age;
}

}  // namespace tidepool::algorithms
