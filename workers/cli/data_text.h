#pragma once
// What `tidepool validate` and `tidepool train --dry-run` say of a job's data.

#include <string>
#include <utility>
#include <vector>

#include "core/config/load.h"
#include "workers/data/data_summary.h"

namespace tidepool::workers {

// Of the job, and of its warm start, which has a name.
using JobData = std::vector<std::pair<std::string, DataSummary>>;
StatusOr<JobData> DataOf(const JobConfig& config);
void PrintData(const JobData& data);

}  // namespace tidepool::workers
