#pragma once
// How a run is stopped from outside: admission shuts, a running optimizer step may finish if that fits
// the budget, a checkpoint is written, exit 0. Bounded by one deadline that counts everything; what does
// not fit is left to the next life (steps since the last checkpoint are trained again from their
// payload, so nothing is lost). Pure; not thread-safe.

#include <string>

#include "core/base/time.h"

namespace tidepool::scheduler {

class Shutdown {
 public:
  static constexpr double kBudgetSeconds = 20;     // everything, until Finish
  static constexpr double kCheckpointSeconds = 8;  // of it for the checkpoint
  static constexpr double kExitSeconds = 3;        // of it for ending the children

  void Request(const std::string& why, TimePoint now) {
    if (requested_) return;
    requested_ = true;
    why_ = why;
    since_ = now;
  }
  [[nodiscard]] bool requested() const { return requested_; }
  [[nodiscard]] const std::string& why() const { return why_; }
  // A running optimizer step is still waited for.
  [[nodiscard]] bool MayFinishStep(TimePoint now) const {
    return now - since_ < FromSeconds(kBudgetSeconds - kCheckpointSeconds - kExitSeconds);
  }
  // A checkpoint is still waited for.
  [[nodiscard]] bool MayCheckpoint(TimePoint now) const {
    return now - since_ < FromSeconds(kBudgetSeconds - kExitSeconds);
  }

 private:
  bool requested_ = false;
  std::string why_;
  TimePoint since_;
};

}  // namespace tidepool::scheduler
