#include "core/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tidepool::train {

double LearningRate(const ScheduleOptions& o, int64_t step) {
  if (step <= o.warmup_steps) return o.peak * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  if (o.kind == Schedule::kConstant) return o.peak;
  const auto span = static_cast<double>(std::max<int64_t>(1, o.steps - o.warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - o.warmup_steps) / span);
  const double shape = o.kind == Schedule::kLinear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return o.peak * (o.min_ratio + (1 - o.min_ratio) * shape);
}

}  // namespace tidepool::train
