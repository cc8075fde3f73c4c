#pragma once
// Whether the workers that a job starts on this host have memory enough, before any is started.

#include "core/config/load.h"

namespace tidepool::workers {

// kFailedPrecondition where the processes of the job surely take more (workers/device/memory_plan.h) than the
// machine, or its control group, has with its swap: both numbers, the parts of the largest process, and what
// makes it smaller. OK where the workers are started by others, or where nothing can be predicted (a worker
// says what is wrong).
Status CheckMemory(const config::LoadedConfig& loaded);
// The same of this much memory.
Status CheckMemory(const config::LoadedConfig& loaded, int64_t machine_bytes);

}  // namespace tidepool::workers
