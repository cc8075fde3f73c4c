#pragma once
// The cores of this host that a process may use, and whether the slots of a run have more threads than these.

#include <cstdint>
#include <string>

#include "core/config/load.h"

namespace tidepool::workers {

struct HostCores {
  int64_t machine = 0;                  // that are online
  int64_t usable = 0;                   // of these, by this process's affinity
  double quota = 0;                     // that the control group allows; 0: no limit
  [[nodiscard]] int64_t whole() const;  // that can be busy at a time, rounded up; at least 1
};
HostCores CoresHere();

// "file:line: key: what": the threads of all slots on this host are more than `cores`. Empty: they are not,
// or hosts are not known yet (cluster.launch_workers: false), or slots compute little (GPUs, cluster.pace).
std::string ThreadsWarning(const config::LoadedConfig& loaded, int64_t cores);
// The same on standard error, of this host.
void WarnOfThreads(const config::LoadedConfig& loaded);

}  // namespace tidepool::workers
