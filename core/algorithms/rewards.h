#pragma once
// Reward shaping, normalisation and filters. Pure, float64.

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/choices.h"

namespace tidepool::algorithms {

// Soft overlong penalty (DAPO eq. 13, arXiv:2503.14476) times factor: 0 up to limit - buffer tokens, then
// linear to -factor at the limit, -factor beyond. buffer 0: -factor beyond the limit alone.
double OverlongPenalty(double tokens, double limit, double buffer, double factor = 1);

// Stop-properly: a truncated response keeps coef of its reward (coef in [0, 1]) or gets coef (< 0) instead.
double TruncatedReward(double reward, bool truncated, double coef);

// max_penalty (1 - unique/total n-grams) over token ids, 0 below n tokens. max_penalty is negative.
double RepetitionPenalty(std::span<const int64_t> ids, int64_t n, double max_penalty);

// (r - mu)/s (AReaL), mean and std each over the batch, the group, or not at all; with leave_one_out mu is
// the mean of the others (0 where there are none); s = sqrt(sum_j (r_j - mu_j)^2 / (n - ddof)) + eps over the
// n entries of std's scope, each about its own mu (mean none: 0); ddof entries or fewer: s = eps. std none: s
// = 1.
struct NormaliseOptions {
  Scope mean = Scope::kNone, deviation = Scope::kNone;
  bool leave_one_out = false;
  int64_t ddof = 1;
  double eps = 1e-5;
};
std::vector<double> NormaliseRewards(std::span<const double> rewards, std::span<const int64_t> group,
                                     const NormaliseOptions& options);
// clip((r + bias) * scale, +-bound), before the above.
double ScaleReward(double reward, double bias, double scale, double bound = 20);

// Mean and deviation over all rewards ever seen (Welford), one object a domain (ROLL).
class RunningMoments {
 public:
  void Add(double x);
  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] double mean() const { return mean_; }
  [[nodiscard]] double Deviation() const;  // n - 1; 0 below two values
  [[nodiscard]] double Normalise(double x, double eps) const { return (x - mean_) / (Deviation() + eps); }

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

}  // namespace tidepool::algorithms
