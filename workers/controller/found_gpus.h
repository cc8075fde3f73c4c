#pragma once
// What `tidepool-worker gpus` says of the GPUs of this machine. Asked by processes that have no tensors: the
// worker loads LibTorch's CUDA libraries and makes contexts, and both are gone with it.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/config/load.h"
#include "workers/device/memory_plan.h"

namespace tidepool::workers {

struct FoundGpu {
  std::string name;
  std::string capability;  // compute capability, "9.0"
  int64_t free_bytes = 0;  // beside the context of a process
  int64_t total_bytes = 0;
  std::string problem;  // why no job can use it; empty: one can
};
struct FoundGpus {
  std::vector<FoundGpu> gpus;  // in the driver's order
  std::string problem;         // why there are none
  bool sums = false;           // several of them add up without the host (NCCL)
};
std::string ToJson(const FoundGpus& found);  // one line

// Runs `worker_path gpus`. Never fails: what goes wrong is the problem.
FoundGpus FindGpus(const std::string& worker_path);

// Whether this machine has what cluster.device asks for: a GPU for each slot, with enough memory. Errors
// begin with the place of the key. kFailedPrecondition.
Status CheckGpus(const config::LoadedConfig& loaded, const std::string& worker_path,
                 SlotUse use = SlotUse::kJob);
// The same of a host of several, for the `slots` slots from `first` on, that begin here. kFailedPrecondition:
// it has fewer GPUs. kUnavailable: what may pass (one that is off the bus, a driver that is not up, memory
// that others have); each worker says so, too, and is started again.
Status CheckHostGpus(const config::LoadedConfig& loaded, const std::string& worker_path, int64_t first,
                     int64_t slots);

}  // namespace tidepool::workers
