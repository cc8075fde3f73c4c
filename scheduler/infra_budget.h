#pragma once
// How many samples a run may lose to graders or environments that fail, before it ends rather than learn from
// what is left: the share scheduler.infra_drop_stop of the samples of 20 steps, and all of the first two
// steps'. Pure.

#include <cmath>
#include <cstdint>

namespace tidepool::scheduler {

struct InfraBudget {
  static constexpr int64_t kSteps = 20;
  double stop = 0.2;
  int64_t step_samples = 0;
  // So many outcomes are looked at, the newest.
  [[nodiscard]] int64_t Window() const { return kSteps * step_samples; }
  // The run ends with so many lost among those of the last 20 steps: no sample to come can lower the share.
  [[nodiscard]] int64_t Most() const {
    return static_cast<int64_t>(std::floor(stop * static_cast<double>(Window()))) + 1;
  }
  // And with so many, if no other one was seen in these steps.
  [[nodiscard]] int64_t MostAlone() const { return 2 * step_samples; }
  // With `lost` of the `seen` last ones the run ends.
  [[nodiscard]] bool Spent(int64_t lost, int64_t seen) const {
    return lost >= Most() || (seen >= MostAlone() && lost == seen);
  }
  // So many are lost that people are to know (scheduler.infra_drop_alarm); of few seen a share says little.
  [[nodiscard]] bool Alarms(int64_t lost, int64_t seen, double alarm) const {
    return seen >= MostAlone() && static_cast<double>(lost) > alarm * static_cast<double>(seen);
  }
};

}  // namespace tidepool::scheduler
