#pragma once
// The rows of the step under way, for FetchRows: the members of its training group read them, and nobody
// else. There is one lease at a time. Thread-safe.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class OpenLease {
 public:
  using Rows = std::shared_ptr<const std::vector<BatchRow>>;

  void Open(int64_t lease, StepNumber step, Rows rows, std::vector<Incarnation> members) TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    lease_ = lease;
    step_ = step;
    rows_ = std::move(rows);
    members_ = std::move(members);
  }
  void Drop() TP_EXCLUDES(mu_) { Open(-1, {}, nullptr, {}); }
  // kNotFound: the lease is not open. kPermissionDenied: `reader` has no part in it, as a process that was
  // given up and has a successor.
  StatusOr<Rows> Read(int64_t lease, StepNumber step, Incarnation reader) const TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    if (rows_ == nullptr || lease_ != lease || step_ != step) {
      return NotFound("lease " + std::to_string(lease) + " of step " + std::to_string(step.value) +
                      " is not open");
    }
    if (std::ranges::find(members_, reader) == members_.end()) {
      return PermissionDenied("incarnation " + std::to_string(reader.value) + " does not train step " +
                              std::to_string(step.value));
    }
    return rows_;
  }

 private:
  mutable Mutex mu_;
  int64_t lease_ TP_GUARDED_BY(mu_) = -1;
  StepNumber step_ TP_GUARDED_BY(mu_);
  Rows rows_ TP_GUARDED_BY(mu_);
  std::vector<Incarnation> members_ TP_GUARDED_BY(mu_);
};

}  // namespace tidepool::workers
