#pragma once
// The answer of `tidepool train --dry-run`: slots and roles, groups, sequences and tokens of a step, memory
// by part (workers/device/memory_plan.h).

#include <string>

#include "core/base/config.h"
#include "core/config/load.h"

namespace tidepool::workers {

// What cannot be predicted is said in a line, so it never fails.
std::string DescribePlan(const JobConfig& config);

// Says on standard error why `tidepool train` would refuse this config here for want of memory.
void WarnOfMemory(const config::LoadedConfig& loaded);
// Says on standard error why `tidepool train` would refuse this config here for want of a GPU; a config may
// be meant for another machine. `self_path`: of this program.
void WarnOfGpus(const config::LoadedConfig& loaded, const std::string& self_path);

}  // namespace tidepool::workers
