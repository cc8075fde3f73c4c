#pragma once
// Learning rates as a pure function of the step.

#include <cstdint>

#include "core/base/choices.h"

namespace tidepool::train {

struct ScheduleOptions {
  Schedule kind = Schedule::kConstant;
  double peak = 1e-5;
  double min_ratio = 0;      // of the peak, reached at `steps`
  int64_t warmup_steps = 0;  // linear from peak / warmup_steps at step 1 to the peak
  int64_t steps = 1;         // of the job
};
// requires step >= 1. Beyond `steps` the last value stays.
double LearningRate(const ScheduleOptions& options, int64_t step);

}  // namespace tidepool::train
