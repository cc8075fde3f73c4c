#pragma once
// The process that owns one device: hosts the rollout engine and the trainer, over one set of weights.
//
// One thread (the caller of Run) owns all tensors: it takes commands in order, runs engine steps while
// it holds the rollout role, and optimizer steps while it holds the actor role. A second thread sends
// heartbeats, a third writes checkpoints while generation goes on (weights are read-only until the
// next optimizer step, which waits for it). Commands of another incarnation or an older epoch of the slot
// are refused and counted. Libraries' exceptions stop here: a failed operation is an answer.

#include <atomic>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace tidepool::workers {

class DevicePool;

struct DeviceWorkerOptions {
  std::string address;  // of the controller
  std::string token_file;
  std::string run_id;
  std::string control_file;  // RUN/control.json
  int64_t place = -1;
  int64_t gpu = -1;  // of those that the driver shows; negative: that of the place's number
  // Of a session of a process that serves several runs (pool_worker.h).
  DevicePool* pool = nullptr;                   // outlives it; null: the process is this worker
  const std::atomic<bool>* unwanted = nullptr;  // true: it is to end
  std::atomic<uint64_t>* waits = nullptr;       // grows while it waits for others that compute
  int64_t pid = 0;                              // of the process that stands for it; 0: this one
};

struct DeviceEnd {
  int exit_code = 0;
  std::string event, why;  // as logged; empty: it ended in order
};

// Runs until the controller says Shutdown or is gone. Returns the exit code: 0 after Shutdown, 3 when
// the controller was lost, 2 when it could not attach (the reason is logged).
DeviceEnd RunDeviceWorker(const DeviceWorkerOptions& options);

}  // namespace tidepool::workers
