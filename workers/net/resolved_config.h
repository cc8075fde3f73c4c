#pragma once
// The job as a worker gets it with its Welcome.

#include <string>

#include "core/base/config.h"
#include "core/base/status.h"

namespace tidepool::workers {
StatusOr<JobConfig> ParseResolved(const std::string& yaml);
}  // namespace tidepool::workers
