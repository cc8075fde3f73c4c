#pragma once
// One process whose device serves several runs: a sweep's (workers/cli/sweep_command.cc).
//
// Each run starts, watches and ends a device worker of its own, as ever; with --pool that process computes
// nothing. It hands its options over a Unix socket to the pool's process, which computes for it in a session,
// and ends with the session's exit code. If the run ends it, or its controller dies, the session ends; if the
// pool's process dies, all that stand for its sessions end with exit code 3, and each run recovers as from
// any worker that died.

#include <cstdint>
#include <string>

#include "workers/device/device_worker.h"

namespace tidepool::workers {

// Serves sessions of so many runs until it is killed. 2: `socket` cannot be made (the reason is logged).
int RunPoolWorker(const std::string& socket, int64_t runs);

// Stands for a session: returns with its exit code. 3: the pool is not there, or not any more.
int StandForSession(const std::string& socket, const DeviceWorkerOptions& options);

}  // namespace tidepool::workers
