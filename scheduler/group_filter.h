#pragma once
// Which groups are left out of training (algorithm.filter, algorithm.keep_groups). Pure.

#include <string>

#include "scheduler/controller_options.h"
#include "scheduler/ledger.h"

namespace tidepool::scheduler {

// Why a group whose samples are all graded is left out; empty: it is not. Dropped samples do not count, and a
// value that no sample of the group has is no hindrance.
[[nodiscard]] std::string WhyLeftOut(const Group& group, const BatchOptions& options);

}  // namespace tidepool::scheduler
