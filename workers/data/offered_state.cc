#include "workers/data/offered_state.h"

#include <string>
#include <utility>

namespace tidepool::workers {

void OfferedState::Offer(StepNumber step, Parts parts) {
  const MutexLock lock(mu_);
  step_ = step;
  parts_ = std::move(parts);
}

bool OfferedState::Withdraw(std::chrono::milliseconds limit) {
  const MutexLock lock(mu_);
  step_ = {};
  parts_.clear();
  return gone_.WaitFor(mu_, limit, [&]() TP_REQUIRES(mu_) { return readers_ == 0; });
}

StepNumber OfferedState::step() const {
  const MutexLock lock(mu_);
  return step_;
}

StatusOr<PublishedBytes> OfferedState::Read(StepNumber step) {
  PublishedBytes out;
  {
    const MutexLock lock(mu_);
    if (!step_.valid() || step_ != step)
      return NotFound("the state of step " + std::to_string(step.value) + " is not here");
    out.parts = parts_;
    ++readers_;
  }
  // Not under the lock: what counts the reader out takes it.
  out.owner = std::shared_ptr<const void>(this, [this](const void*) {
    const MutexLock lock(mu_);
    if (--readers_ == 0) gone_.NotifyAll();
  });
  out.digest = digest_(out.parts);
  return out;
}

}  // namespace tidepool::workers
