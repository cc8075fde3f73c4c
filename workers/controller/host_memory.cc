#include "workers/controller/host_memory.h"

#include <string>

#include "core/base/host_name.h"
#include "workers/device/disk_plan.h"
#include "workers/device/memory_plan.h"
#include "workers/device/memory_proof.h"

namespace tidepool::workers {

Status CheckMemory(const config::LoadedConfig& loaded) { return CheckMemory(loaded, MachineMemory()); }

Status CheckMemory(const config::LoadedConfig& loaded, int64_t machine_bytes) {
  if (machine_bytes <= 0 || !loaded.config.cluster.launch_workers) return OkStatus();
  const auto plan = PlanMemory(loaded.config);
  if (!plan.ok()) return OkStatus();
  int64_t least = plan->shared_memory_bytes();
  const ProcessMemory* largest = nullptr;
  for (const ProcessMemory& process : plan->processes) {
    least += process.least();
    if (largest == nullptr || process.least() > largest->least()) largest = &process;
  }
  if (least <= machine_bytes || largest == nullptr) return OkStatus();
  return FailedPrecondition("memory: host " + HostName() + " has " + BytesText(machine_bytes) +
                            " for programs, and this job needs at least about " + BytesText(least) + " in " +
                            std::to_string(plan->processes.size()) + " processes and /dev/shm; " +
                            largest->name + ": " + largest->PartsText());
}

}  // namespace tidepool::workers
