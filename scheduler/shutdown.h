#pragma once
// How a run that is asked to stop ends: admission shuts, a running optimizer step may finish if that fits
// the budget, a checkpoint is written, exit 0. Bounded by one deadline that counts everything; what does
// not fit is left to the next life (steps since the last checkpoint are trained again from their
// payload, so nothing is lost). Pure; not thread-safe.

#include <string>
#include <utility>

#include "core/base/time.h"

namespace tidepool::scheduler {

class Shutdown {
 public:
  static constexpr double kBudgetSeconds = 20;     // everything, until Finish
  static constexpr double kCheckpointSeconds = 8;  // of it for the checkpoint
  static constexpr double kExitSeconds = 3;        // of it for ending the children

  Shutdown() = default;
  Shutdown(std::string why, TimePoint since) : why_(std::move(why)), since_(since) {}
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
  std::string why_;
  TimePoint since_;
};

}  // namespace tidepool::scheduler
