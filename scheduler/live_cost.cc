#include "scheduler/live_cost.h"

#include <algorithm>
#include <cmath>

namespace tidepool::scheduler {
namespace {

constexpr double kFade = 0.95, kCopyWeight = 0.3;
constexpr double kVaried = 1e-3;  // of the mean of x^2: less variance than that says nothing about a slope

}  // namespace

void FadingLine::Add(double x, double y) {
  if (!std::isfinite(x) || !std::isfinite(y) || y < 0) return;
  n_ = kFade * n_ + 1;
  x_ = kFade * x_ + x;
  y_ = kFade * y_ + y;
  xx_ = kFade * xx_ + x * x;
  xy_ = kFade * xy_ + x * y;
}

bool FadingLine::Varied() const { return n_ > 0 && xx_ / n_ - (x_ / n_) * (x_ / n_) > kVaried * xx_ / n_; }

double FadingLine::slope() const {
  if (n_ == 0) return 0;
  if (!Varied()) return flat_ || x_ == 0 ? 0 : y_ / x_;
  const double slope = (xy_ / n_ - (x_ / n_) * (y_ / n_)) / (xx_ / n_ - (x_ / n_) * (x_ / n_));
  // A negative intercept is noise: then the line goes through the origin.
  return slope * x_ > y_ && x_ > 0 ? y_ / x_ : std::max(0.0, slope);
}

double FadingLine::intercept() const { return n_ == 0 ? 0 : std::max(0.0, (y_ - slope() * x_) / n_); }

void LiveCost::EngineStep(int64_t running, double seconds) {
  if (running > 0 && seconds > 0) engine_.Add(static_cast<double>(running), seconds);
}

void LiveCost::Environments(const Turns& t) {
  if (t.step_s <= 0) return;
  waiting_ = kFade * waiting_ + t.step_s * static_cast<double>(t.waiting);
  decoding_ = kFade * decoding_ + static_cast<double>(t.decoding);
  decoded_ = kFade * decoded_ + static_cast<double>(t.decoded - last_.decoded);
  observed_ = kFade * observed_ + static_cast<double>(t.observed - last_.observed);
  last_ = t;
}

void LiveCost::TrainStep(int64_t slots, double tokens, double seconds) {
  if (slots > 0 && tokens > 0 && seconds > 0) train_.Add(1 / static_cast<double>(slots), seconds / tokens);
}

void LiveCost::StateCopy(double seconds) {
  state_copy_ = state_copy_ == 0 ? seconds : (1 - kCopyWeight) * state_copy_ + kCopyWeight * seconds;
}

}  // namespace tidepool::scheduler
