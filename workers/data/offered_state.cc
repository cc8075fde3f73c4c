#include "workers/data/offered_state.h"

#include <string>
#include <utility>

namespace tidepool::workers {

void OfferedState::Offer(StepNumber step, Parts parts) {
  const std::lock_guard lock(mu_);
  step_ = step;
  parts_ = std::move(parts);
}

bool OfferedState::Withdraw(std::chrono::milliseconds limit) {
  std::unique_lock lock(mu_);
  step_ = {};
  parts_.clear();
  return gone_.wait_for(lock, limit, [&] { return readers_ == 0; });
}

StepNumber OfferedState::step() const {
  const std::lock_guard lock(mu_);
  return step_;
}

StatusOr<PublishedBytes> OfferedState::Read(StepNumber step) {
  PublishedBytes out;
  {
    const std::lock_guard lock(mu_);
    if (!step_.valid() || step_ != step)
      return NotFound("the state of step " + std::to_string(step.value) + " is not here");
    out.parts = parts_;
    ++readers_;
  }
  // Not under the lock: what counts the reader out takes it.
  out.owner = std::shared_ptr<const void>(this, [this](const void*) {
    const std::lock_guard lock(mu_);
    if (--readers_ == 0) gone_.notify_all();
  });
  out.digest = digest_(out.parts);
  return out;
}

}  // namespace tidepool::workers
