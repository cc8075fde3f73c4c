#pragma once
// The rows of the step under way, for FetchRows: the members of its training group read them, each its own
// list, and nobody else. There is one lease at a time. Thread-safe.

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
  struct Member {
    Incarnation reader;
    Rows rows;
  };

  // `members`: by rank.
  void Open(int64_t lease, StepNumber step, std::vector<Member> members) TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    lease_ = lease;
    step_ = step;
    members_ = std::move(members);
  }
  void Drop() TP_EXCLUDES(mu_) { Open(-1, {}, {}); }
  // kNotFound: the lease is not open. kPermissionDenied: `reader` does not have this rank in it, as a process
  // that was given up and has a successor.
  StatusOr<Rows> Read(int64_t lease, StepNumber step, Incarnation reader, int64_t rank) const
      TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    if (members_.empty() || lease_ != lease || step_ != step) {
      return NotFound("lease " + std::to_string(lease) + " of step " + std::to_string(step.value) +
                      " is not open");
    }
    if (rank < 0 || rank >= static_cast<int64_t>(members_.size()) ||
        members_[static_cast<size_t>(rank)].reader != reader) {
      return PermissionDenied("incarnation " + std::to_string(reader.value) + " does not train rank " +
                              std::to_string(rank) + " of step " + std::to_string(step.value));
    }
    return members_[static_cast<size_t>(rank)].rows;
  }

 private:
  mutable Mutex mu_;
  int64_t lease_ TP_GUARDED_BY(mu_) = -1;
  StepNumber step_ TP_GUARDED_BY(mu_);
  std::vector<Member> members_ TP_GUARDED_BY(mu_);
};

}  // namespace tidepool::workers
