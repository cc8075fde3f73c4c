#pragma once
// The answer of `tidepool train --dry-run`: slots and roles, groups, sequences and tokens of a step, memory
// by part (workers/device/memory_plan.h).

#include <string>

#include "core/base/config.h"

namespace tidepool::workers {

// What cannot be predicted is said in a line, so it never fails.
std::string DescribePlan(const JobConfig& config);

}  // namespace tidepool::workers
