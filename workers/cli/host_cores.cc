#include "workers/cli/host_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace tidepool::workers {
namespace {

std::string FirstLine(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

double CpuQuota() {
  std::istringstream two(FirstLine("/sys/fs/cgroup/cpu.max"));
  std::string quota;
  double period = 0;
  if (two >> quota >> period && quota != "max" && period > 0)
    return std::strtod(quota.c_str(), nullptr) / period;
  const double one = std::strtod(FirstLine("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").c_str(), nullptr);
  const double of = std::strtod(FirstLine("/sys/fs/cgroup/cpu/cpu.cfs_period_us").c_str(), nullptr);
  return one > 0 && of > 0 ? one / of : 0;
}

}  // namespace

int64_t HostCores::whole() const {
  const int64_t cores = quota > 0 ? std::min(usable, static_cast<int64_t>(std::ceil(quota))) : usable;
  return std::max<int64_t>(1, cores);
}

HostCores CoresHere() {
  HostCores cores{.machine = sysconf(_SC_NPROCESSORS_ONLN), .usable = 0, .quota = CpuQuota()};
  cpu_set_t set;
  CPU_ZERO(&set);
  cores.usable = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : cores.machine;
  return cores;
}

std::string ThreadsWarning(const config::LoadedConfig& loaded, int64_t cores) {
  const ClusterConfig& c = loaded.config.cluster;
  if (!c.launch_workers || c.device != DeviceKind::kCpu || !c.pace.empty()) return "";
  const int64_t threads = c.slots * c.threads_per_slot;
  if (threads <= cores) return "";
  const auto written = [&](const char* key) {
    return loaded.OriginOf(key).kind != config::Origin::Kind::kDefault;
  };
  const char* key = !written("cluster.threads_per_slot") && written("cluster.slots")
                        ? "cluster.slots"
                        : "cluster.threads_per_slot";
  const auto text = [](int64_t n, const char* of) {
    return std::to_string(n) + " " + of + (n == 1 ? "" : "s");
  };
  return loaded.OriginOf(key).Where() + ": " + key + ": " + text(c.slots, "slot") + " of " +
         text(c.threads_per_slot, "thread") + " are " + text(threads, "thread") + ", and this host has " +
         text(cores, "core") + ", so they wait for each other and take longer; write " +
         (c.slots > cores ? "cluster.threads_per_slot: 1, with fewer slots where the job can do with them"
                          : "cluster.threads_per_slot: " + std::to_string(cores / c.slots)) +
         ", or expect that";
}

void WarnOfThreads(const config::LoadedConfig& loaded) {
  const std::string warning = ThreadsWarning(loaded, CoresHere().whole());
  if (!warning.empty()) std::fprintf(stderr, "warning: %s\n", warning.c_str());
}

}  // namespace tidepool::workers
