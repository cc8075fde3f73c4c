#pragma once
// Formulas that the checking interface offers and no job uses: others compare them with their own. What jobs
// use is in core/algorithms, core/environments and core/tasks. Pure, float64.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/algorithms/importance.h"
#include "core/environments/toy_text.h"

namespace tidepool::algorithms {

// Importance weights (TIS and relatives): w = exp(log weight clipped to +-log_clamp), truncated to
// [low, high], divided by its mean where normalize_mean (token: over valid cells; else over rows with one).
struct ImportanceOptions {
  GapLevel level = GapLevel::kToken;
  std::optional<double> log_clamp;
  bool truncate = true;
  std::optional<double> low, high;
  bool normalize_mean = false;
};
struct ImportanceResult {
  std::vector<double> weights;  // [cells]
  // Before truncation. mean, ess: over valid cells; the others too, but at level sequence over rows.
  double mean = 0, max = 0, min = 0;
  double frac_high = 0, frac_low = 0;  // w > high, w < 1/high; 0 without high
  double ess = 0;                      // 1/<(w/<w>)^2>, w clamped to [1/high, high]: in (0, 1]
};
ImportanceResult ImportanceWeights(const ImportanceOptions& options, std::span<const double> train,
                                   std::span<const double> rollout, const Cells& cells);

// kl <-l>, k3_kl <e^l - l - 1>, chi2_token <exp(2 clamp(l, +-20))> - 1, chi2_seq: mean over rows of
// exp(2 clamp(sum l, +-20)) - 1; with a = mean_t train and b = mean_t rollout, means over rows of e^-a, e^-b,
// b - a, |b - a|, e^(b-a). Rows without a valid cell do not count; without any, all are 0.
struct GapMetrics {
  double kl = 0, k3_kl = 0, chi2_token = 0, chi2_seq = 0;
  double training_ppl = 0, rollout_ppl = 0, log_ppl_diff = 0, log_ppl_abs_diff = 0, ppl_ratio = 0;
};
GapMetrics MeasureGap(std::span<const double> train, std::span<const double> rollout, const Cells& cells);

// V-trace, w = exp(log_rhos), all [T, B], bootstrap [B] = V_T = v_T:
//   delta_t = min(w, rho_bar)(r_t + d_t V_{t+1} - V_t)
//   v_t = V_t + delta_t + d_t lambda min(w, c_bar)(v_{t+1} - V_{t+1})
//   A_t = min(w, pg_rho_bar)(r_t + d_t v_{t+1} - V_t)
// Discounts d_t are 0 after a terminal state. No bar: no cap.
struct VTraceOptions {
  std::optional<double> rho_bar, c_bar, pg_rho_bar;
  double lambda = 1;
};
struct VTraceResult {
  std::vector<double> vs, pg_advantages;
};
VTraceResult VTrace(std::span<const double> rewards, std::span<const double> values,
                    std::span<const double> discounts, std::span<const double> log_rhos,
                    std::span<const double> bootstrap, const VTraceOptions& options);

// TD(lambda):  y_t = r_t + d_t ((1 - lambda) V_{t+1} + lambda y_{t+1}),  y_T = V_T = bootstrap.
std::vector<double> TdLambda(std::span<const double> rewards, std::span<const double> values,
                             std::span<const double> discounts, std::span<const double> bootstrap,
                             double lambda);

// Simple turn credit (ROLL agentic_reinforce): every cell of a run of valid cells holds
//   r(last cell of the run) + gamma * (value of the next run).
std::vector<double> TurnReturns(std::span<const double> token_rewards, double gamma, const Cells& cells);

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

// One position: lp of the label, entropy H = logsumexp(z) - sum softmax(z) z (both at z = logits / T), and
// d lp / d logits = (1[label] - softmax(z)) / T.
struct TokenDistribution {
  double logp = 0, entropy = 0;
  std::vector<double> grad_logits;
};
TokenDistribution LogProbAndEntropy(std::span<const double> logits, int64_t label, double temperature);

// DAPO's dynamic sampling: a group is kept if the deviation of its rewards is above the threshold.
bool KeepGroup(std::span<const double> rewards, double threshold, int64_t ddof);

// pass@k (arXiv:2107.03374): 1 - C(n - c, k)/C(n, k); 1 if n - c < k. requires 1 <= k <= n, 0 <= c <= n.
double PassAtK(int64_t n, int64_t correct, int64_t k);

// Fewest moves from S to G over 4-neighbours; '#' is wall, all else free. Empty if there is no way,
// or no S or G.
std::optional<int64_t> MazeDistance(const std::vector<std::string>& grid);

}  // namespace tidepool::algorithms

namespace tidepool::environments {

// CliffWalking: 4 x 12, actions up, right, down, left; the cliff (3, 1..10) costs 100 and leads back to the
// start 36, not terminal; else -1; state 47 ends. slippery: each of the three directions (a - 1, a, a + 1)
// with 1/3.
TransitionTable CliffWalking(bool slippery);

// Taxi-v3: state ((row 5 + col) 5 + passenger) 4 + destination, passenger 4 in the taxi; actions south,
// north, east, west, pick up, drop off. -1 a step, -10 an illegal pick up or drop off, +20 delivered (ends).
// Every state is treated as an ordinary one.
TransitionTable Taxi();

}  // namespace tidepool::environments
