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
}  // namespace tidepool::algorithms
