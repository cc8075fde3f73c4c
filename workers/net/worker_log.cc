#include "workers/net/worker_log.h"

#include <unistd.h>

#include "core/base/places.h"
#include "core/observe/log.h"
#include "workers/build_info.h"

namespace tidepool::workers {

// Setting up a log of stderr does not fail.
void LogWorkerStart(const std::string& kind, const std::string& controller) {
  (void)observe::SetUpLogging({.path = "", .host = observe::HostName(), .role = kind});
  observe::Log(LogLevel::kInfo, "start",
               {{"version", BuildVersion()},
                {"commit", BuildCommit()},
                {"pid", getpid()},
                {"controller", controller}});
}

void LogWorkerJoined(const std::string& kind, const down::Welcome& welcome, const JobConfig& config,
                     int64_t ctl_epoch, bool anew) {
  (void)observe::SetUpLogging({.path = "",
                               .level = config.observe.log_level,
                               .run = welcome.run_id,
                               .host = observe::HostName(),
                               .role = kind,
                               .worker = WorkerName(PlaceName(config, welcome.place), welcome.inc),
                               .epoch = ctl_epoch});
  if (!anew) return;
  observe::Log(LogLevel::kInfo, "joined", {{"run_id", welcome.run_id}, {"dir", welcome.run_dir}});
}

void LogWorkerFailure(const std::string& event, const std::string& why) {
  observe::Log(LogLevel::kError, event, {{"text", why}});
}

void LogWorkerEnd(int exit_code) { observe::Log(LogLevel::kInfo, "end", {{"exit", exit_code}}); }

}  // namespace tidepool::workers
