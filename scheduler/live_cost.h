#pragma once
// What an engine step of this run costs, fitted online to what its workers report. Repacking asks it, and who
// weighs engines.
//
//   t(b) = t0 + c b     b: samples in the batch; from heartbeats
//
// A least-squares line whose samples fade by a factor of 0.95, so a change of hardware, lengths or load is
// followed within some tens of samples. Where b has hardly varied, t0 takes everything. Pure.

#include <cstdint>

namespace tidepool::scheduler {

class LiveCost {
 public:
  void EngineStep(int64_t running, double seconds);
  [[nodiscard]] double StepSeconds(double running) const;  // 0: nothing was measured yet

 private:
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // fading sums
};

}  // namespace tidepool::scheduler
