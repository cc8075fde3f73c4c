#include "core/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/train/step_metrics.h"

namespace tidepool::train {
namespace {

TEST(ScheduleTest, WarmsUpAndDecays) {
  ScheduleOptions o{.kind = Schedule::kLinear, .peak = 1.0, .min_ratio = 0.1, .warmup_steps = 4, .steps = 14};
  EXPECT_EQ(LearningRate(o, 1), 0.25);
  EXPECT_EQ(LearningRate(o, 4), 1.0);
  EXPECT_NEAR(LearningRate(o, 9), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(o, 14), 0.1, 1e-12);
  EXPECT_NEAR(LearningRate(o, 99), 0.1, 1e-12);
  o.kind = Schedule::kCosine;
  EXPECT_NEAR(LearningRate(o, 9), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(o, 14), 0.1, 1e-12);
  o.kind = Schedule::kConstant;
  EXPECT_EQ(LearningRate(o, 14), 1.0);
}

TEST(StepMetricsTest, AGapThatIsNoNumberIsNotHidden) {
  TokenSums s;
  s.AddGap(-1, -1);
  s.AddGap(std::nan(""), -1);
  s.AddGap(-1, -1.5);
  std::map<std::string, double> m;
  TokenMetrics(s, true, m);
  EXPECT_FALSE(m["training/rollout_logp_diff/mean"] < 1e9);
}

}  // namespace
}  // namespace tidepool::train
