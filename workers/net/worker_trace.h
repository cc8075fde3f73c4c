#pragma once
// The trace file of one worker's life, on the run's time line.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/time.h"
#include "core/observe/trace_writer.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

// This process's monotonic clock as a trace wants it.
TimePoint TraceNow();

// RUN/trace/<name>-inc<inc>.json.gz, where `name` is that of the worker's place: reward-0. `rows`: the lines
// of the picture and their names. Null when it cannot be written (logged): a run does not end for want of a
// picture.
std::unique_ptr<observe::TraceWriter> OpenWorkerTrace(const JobConfig& config, const down::Welcome& welcome,
                                                      const std::vector<std::pair<int, std::string>>& rows);

}  // namespace tidepool::workers
