#include "workers/controller/host_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <string>

#include "core/base/host_name.h"
#include "workers/device/disk_plan.h"
#include "workers/device/memory_plan.h"
#include "workers/device/memory_proof.h"

namespace tidepool::workers {

namespace {

// A slot that changes its role proves to have what the next one needs, keys and values among it. Another one
// fills those as requests come, and may never; what trains is written in each step.
int64_t Taken(const ProcessMemory& p) {
  if (p.on_gpu) return 0;
  if (p.need(Role::kRollout) > 0 && p.need(Role::kActor) > 0) return p.least();
  return std::max(p.rollout.weights, p.actor.weights) + p.actor.optimizer + p.actor.gradients;
}

int64_t Swap() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalswap) * info.mem_unit : 0;
}

}  // namespace

Status CheckMemory(const config::LoadedConfig& loaded) {
  const int64_t memory = MachineMemory();
  return memory > 0 ? CheckMemory(loaded, memory + Swap()) : OkStatus();
}

Status CheckMemory(const config::LoadedConfig& loaded, int64_t machine_bytes) {
  if (machine_bytes <= 0 || !loaded.config.cluster.launch_workers) return OkStatus();
  const auto plan = PlanMemory(loaded.config);
  if (!plan.ok()) return OkStatus();
  int64_t least = 0;
  const ProcessMemory* largest = nullptr;
  for (const ProcessMemory& process : plan->processes) {
    least += Taken(process);
    if (largest == nullptr || Taken(process) > Taken(*largest)) largest = &process;
  }
  if (least <= machine_bytes || largest == nullptr) return OkStatus();
  return FailedPrecondition("memory: host " + HostName() + " has " + BytesText(machine_bytes) +
                            " for programs, and this job needs at least about " + BytesText(least) +
                            " in all its processes; " + largest->name + ": " + largest->PartsText());
}

}  // namespace tidepool::workers
