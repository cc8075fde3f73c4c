#pragma once
// Means and their 95 % intervals. Pure functions.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tidepool {

// Mean and deviation of a sample, one value at a time (Welford, Technometrics 4, 1962).
class RunningMean {
 public:
  void Add(double x) {
    ++count_;
    const double off = x - mean_;
    mean_ += off / static_cast<double>(count_);
    squares_ += off * (x - mean_);
  }
  [[nodiscard]] double mean() const { return mean_; }
  // With n - 1; 0 for fewer than two values.
  [[nodiscard]] double deviation() const {
    return count_ < 2 ? 0 : std::sqrt(squares_ / static_cast<double>(count_ - 1));
  }

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

struct MeanInterval {
  double mean = 0, low = 0, high = 0;
};

inline constexpr double kZ95 = 1.959964;  // standard errors to each side

// Wilson's interval of a share of n draws: right for shares near 0 and 1 and for few draws.
inline MeanInterval ShareInterval(double share, int64_t draws) {
  if (draws <= 0) return {0, 0, 1};
  const auto n = static_cast<double>(draws);
  const double scale = 1 + kZ95 * kZ95 / n;
  const double centre = (share + kZ95 * kZ95 / (2 * n)) / scale;
  const double half = kZ95 * std::sqrt(share * (1 - share) / n + kZ95 * kZ95 / (4 * n * n)) / scale;
  return {share, std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

// The mean +- 1.96 standard errors.
inline MeanInterval IntervalOfMean(double mean, double deviation, int64_t draws) {
  const double half = draws > 0 ? kZ95 * deviation / std::sqrt(static_cast<double>(draws)) : 0;
  return {mean, mean - half, mean + half};
}

}  // namespace tidepool
