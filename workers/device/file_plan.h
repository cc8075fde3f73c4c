#pragma once
// How many files the processes of a job have open at the fullest, connections among them, and whether they
// may: for `train`, which does not begin what would end for want of one, and for `doctor`. Any thread.

#include <cstdint>

#include "core/base/config.h"
#include "core/base/status.h"

namespace tidepool::workers {

// Of the process that needs most, with the reserve of its listener. tests/runs/operations_test.py runs a job
// with no more than this.
int64_t PlanFiles(const JobConfig& config);
// kFailedPrecondition: fewer are allowed than that and what is open now (the hard limit: processes raise the
// soft one to it). Says both numbers and what to do. Before the job opens anything.
Status CheckFileLimit(const JobConfig& config);

}  // namespace tidepool::workers
