#pragma once
// Staleness: proximal log-probs between versions, admission capacity, ages. Pure, float64.

#include <cstdint>
#include <optional>

namespace tidepool::algorithms {

// Share of the way from the sampling version v_t to the trained one v that the proximal policy stands at
// (AReaL, RLinf):  a = clip((v - 1 - v_t)/(v - v_t), 0, 1); 0 if v_t >= v or v_t = -1 (not sampled).
double ProximalShare(int64_t current_version, int64_t token_version);
// old = beh + a (lp - beh), detached.
double LogLinearProximal(double behave_logp, double logp, double share);
// old = log((1 - a) e^beh + a e^lp + 1e-10), detached.
double LinearProximal(double behave_logp, double logp, double share);

// Rollouts that may start (AReaL): min(max_concurrent - running, (eta + version + 1) batch - accepted -
// running); may be negative.
int64_t RolloutCapacity(int64_t max_staleness, int64_t batch_size, int64_t max_concurrent, int64_t version,
                        int64_t accepted, int64_t running);

// Age of an episode in versions: total max(0, v - start), of which in flight min(total, max(0, end - start)),
// the rest in the queue; fresh: v - start <= max_off_policy (no bound: always).
struct EpisodeAge {
  int64_t total = 0, in_flight = 0, in_queue = 0;
  bool fresh = true;
};
EpisodeAge AgeOfEpisode(int64_t train_version, int64_t start_version, int64_t end_version,
                        std::optional<double> max_off_policy);

}  // namespace tidepool::algorithms
