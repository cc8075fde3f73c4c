#include "scheduler/live_cost.h"

#include <algorithm>
#include <cmath>

namespace tidepool::scheduler {
namespace {

constexpr double kFade = 0.95;
constexpr double kVaried = 1e-3;  // of the mean of x^2: less variance than that says nothing about a slope

}  // namespace

void LiveCost::EngineStep(int64_t running, double seconds) {
  if (running <= 0 || seconds <= 0 || !std::isfinite(seconds)) return;
  const auto x = static_cast<double>(running);
  n_ = kFade * n_ + 1;
  x_ = kFade * x_ + x;
  y_ = kFade * y_ + seconds;
  xx_ = kFade * xx_ + x * x;
  xy_ = kFade * xy_ + x * seconds;
}

double LiveCost::StepSeconds(double running) const {
  if (n_ == 0) return 0;
  const double variance = xx_ / n_ - (x_ / n_) * (x_ / n_);
  double slope = 0;
  if (variance > kVaried * xx_ / n_) slope = std::max(0.0, (xy_ / n_ - (x_ / n_) * (y_ / n_)) / variance);
  // A negative start is noise: then the line goes through the origin.
  if (slope * x_ > y_ && x_ > 0) slope = y_ / x_;
  return std::max(0.0, (y_ - slope * x_) / n_) + slope * running;
}

}  // namespace tidepool::scheduler
