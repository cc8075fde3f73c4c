#pragma once
// Whether a run learns at all. Where advantages are relative to a group, groups of equal rewards teach
// nothing; a run in which that is so of every group, step after step, goes on without a fault and learns
// nothing.

#include <cstdint>
#include <map>
#include <string>

namespace tidepool::observe {

class LearningWatch {
 public:
  static constexpr int64_t kSteps = 20;
  // A step's metrics. What to say, once for each time that `kSteps` steps in a row had a share of equal
  // groups (reward/frac_reward_zero_std) of 1 and a gradient (actor/grad_norm) of 0; else empty.
  std::string OnStep(const std::map<std::string, double>& metrics);

 private:
  int64_t silent_ = 0;  // steps in a row
};

}  // namespace tidepool::observe
