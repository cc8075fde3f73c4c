#pragma once
// A trainer's state that newcomers to the training group may read while it lies still.
//
// The worker's thread offers the state of a step and withdraws it before it writes to it; threads of the
// weights server read in between, several at once. What was read keeps the state offered: Withdraw waits for
// all of it. Thread-safe, except that only one thread offers and withdraws.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "workers/data/weights_service.h"

namespace tidepool::workers {

class OfferedState {
 public:
  using Parts = std::vector<device::ByteSource>;
  // `digest`: of parts, over which newcomers prove what they have read.
  explicit OfferedState(std::function<uint64_t(const Parts&)> digest) : digest_(std::move(digest)) {}

  void Offer(StepNumber step, Parts parts);
  // Nobody can begin to read it any more. False: somebody still reads it after `limit`.
  bool Withdraw(std::chrono::milliseconds limit);
  // Whose state is here; invalid: none, or it is being changed.
  [[nodiscard]] StepNumber step() const;
  // kNotFound: that is not the state which is here. The result must not outlive this.
  StatusOr<PublishedBytes> Read(StepNumber step);

 private:
  std::function<uint64_t(const Parts&)> digest_;
  mutable Mutex mu_;
  Condition gone_;
  StepNumber step_ TP_GUARDED_BY(mu_);
  Parts parts_ TP_GUARDED_BY(mu_);
  int64_t readers_ TP_GUARDED_BY(mu_) = 0;
};

}  // namespace tidepool::workers
