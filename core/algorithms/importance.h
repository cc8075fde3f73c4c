#pragma once
// The gap between the sampler and the trainer: rejection, and the weights of decoupled PPO.
// Everywhere l = train - rollout per token, detached. Pure, float64.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/algorithms/cells.h"
#include "core/base/status.h"
#include "core/base/words.h"

namespace tidepool::algorithms {

// x held to +-|c|.
double Clamp(double x, std::optional<double> c);
// Bounds may be absent, and low may be above high: then high wins, as in torch.clamp.
double Bounded(double x, std::optional<double> low, std::optional<double> high);

// l; 0 on masked cells.
std::vector<double> LogRatio(std::span<const double> train, std::span<const double> rollout,
                             const Cells& cells);

// Runs of valid cells: the first cell and one past the last, in order, never across rows.
struct CellRun {
  int64_t from = 0, to = 0, row = 0;
};
std::vector<CellRun> ValidRuns(const Cells& cells);

enum class GapLevel { kToken, kSegment, kGeometric, kSequence };
constexpr auto WordsOf(GapLevel) {
  return std::to_array<const char*>({"token", "segment", "geometric", "sequence"});
}
// The log weight on each valid cell: l; its mean over the run of valid cells; over the row; its sum over the
// row.
std::vector<double> GapLogWeights(GapLevel level, std::span<const double> log_ratio, const Cells& cells);

// Rejection: which valid cells stay. `criterion` is a comma list of names, each with its own bounds; a cell
// stays if it passes all.
//   token_ratio, segment_ratio, geometric_ratio, sequence_ratio   low <= w <= high
//   {token, seq_sum, seq_mean, seq_max}_{k1, k2, k3}              of l clipped to +-log_clamp:
//       k1 = -l, k2 = l^2/2, k3 = e^l - 1 - l;  k2, k3 <= threshold;  k1 in [log a, log b] (no seq_max_k1)
enum class GapMeasure { kRatio, kK1, kK2, kK3 };
constexpr auto WordsOf(GapMeasure) { return std::to_array<const char*>({"ratio", "k1", "k2", "k3"}); }
enum class GapOver { kToken, kSegment, kRowMean, kRowSum, kRowMax };
struct RejectRule {
  GapMeasure measure = GapMeasure::kRatio;
  GapOver over = GapOver::kToken;
  std::optional<double> low, high;  // of the measure itself; k1: of -l
};
// threshold: a comma list in the order of the criteria, or one for all; "a_b" or one number u (for 1/u .. u)
// for k1. low and high: of the ratio criteria. kUnimplemented: a name that is not offered.
StatusOr<std::vector<RejectRule>> ParseRejectRules(std::string_view criterion, std::string_view threshold,
                                                   std::optional<double> low, std::optional<double> high);
struct RejectResult {
  std::vector<uint8_t> mask;   // [cells]
  double masked_frac = 0;      // of valid cells
  double seq_masked_frac = 0;  // rows that lost a cell, of rows with a valid one
};
RejectResult Reject(std::span<const RejectRule> rules, std::optional<double> log_clamp,
                    std::span<const double> train, std::span<const double> rollout, const Cells& cells);

// Behaviour weight of decoupled PPO (AReaL, arXiv:2505.24298): w = e^l, capped or rejected.
//   v: ratio e^l, kl_k1 l, kl_k2 l^2/2, kl_k3 e^-l - 1 + l, per token or mean, sum, max over the row (for
//   ratio of l, then exp); kept where lower <= v <= upper.
// mask: the rest leaves the mask with w = 0. clamp (ratio alone): w = clip(w, lower or 0, upper), the mask
// stays. At level sequence with ratio, w = exp(mean_t l) for the row whatever the aggregation of v.
struct BehaveOptions {
  GapMeasure metric = GapMeasure::kRatio;
  GapOver over = GapOver::kToken;
  bool clamp = false;
  std::optional<double> lower, upper;
};
// kUnimplemented: a name that is not offered, or clamp with another metric than ratio.
StatusOr<BehaveOptions> ParseBehave(std::string_view level, std::string_view action, std::string_view metric,
                                    std::string_view aggregation, std::optional<double> lower,
                                    std::optional<double> upper);
struct BehaveResult {
  std::vector<double> weights;  // [cells]
  std::vector<uint8_t> mask;    // [cells]
  double filtered_frac = 0;     // of valid cells: masked, or w changed
};
BehaveResult BehaviourWeights(const BehaveOptions& options, std::span<const double> train,
                              std::span<const double> rollout, const Cells& cells);

// M2PO (arXiv:2510.01161): drops the valid cells with the largest (beh - old)^2 until the mean of the rest is
// below the threshold; one always stays. Equal ones leave by place. Returns [cells], 1: stays.
std::vector<uint8_t> SecondMomentMask(std::span<const double> behave, std::span<const double> proximal,
                                      double threshold, const Cells& cells);

}  // namespace tidepool::algorithms
