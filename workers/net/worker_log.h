#pragma once
// The log of a worker process goes to stderr, which the controller that started it sends to logs/<place>.log.
// These are the lines that every kind of worker writes ("device", "reward", "environment"), in the format of
// all logs of a run (core/observe/log.h). One process is one worker.

#include <string>

#include "core/base/config.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

void LogWorkerStart(const std::string& kind, const std::string& controller);
// From here on lines have the run, the host, the controller's epoch and the worker's name ("reward-0/inc3"),
// and the level of the config counts. anew: as another incarnation, which is said.
void LogWorkerJoined(const std::string& kind, const down::Welcome& welcome, const JobConfig& config,
                     int64_t ctl_epoch, bool anew);
// Why it is about to end: the controller that started this process tells it (observe::LastWords).
void LogWorkerFailure(const std::string& event, const std::string& why);
void LogWorkerEnd(int exit_code);

}  // namespace tidepool::workers
