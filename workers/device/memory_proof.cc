#include "workers/device/memory_proof.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace tidepool::workers {
namespace {

// A limit in a file of the cgroup; 0: there is none ("max", no file, or a number beyond any machine).
int64_t Limit(const std::string& path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes && bytes > 0 && bytes < (int64_t{1} << 60) ? bytes : 0;
}

}  // namespace

int64_t ProvenFree(int64_t capacity, const ProcessMemory& plan, const HeldMemory& held) {
  const int64_t resident = held.roles.resident() + held.further;
  const int64_t counted = plan.process + resident + held.roles.passing();
  return capacity - std::max(counted, held.resident_private) -
         std::max<int64_t>(0, plan.resident() - resident) + held.of_next;
}

int64_t ProvenFreeOnGpu(int64_t free, const ProcessMemory& plan, const HeldMemory& held) {
  return free - std::max<int64_t>(0, plan.resident() - held.roles.resident() - held.further) + held.of_next;
}

int64_t MachineMemory() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const auto take = [&](int64_t limit) {
    if (limit > 0) bytes = std::min(bytes, limit);
  };
  std::ifstream groups("/proc/self/cgroup");  // "0::/a/b" (v2), "9:memory:/a" (v1)
  for (std::string line; std::getline(groups, line);) {
    const bool two = line.starts_with("0::");
    const size_t path_at = two ? 3 : line.find(":/");
    if (path_at == std::string::npos || (!two && line.find(":memory:") == std::string::npos)) continue;
    std::string path = line.substr(two ? path_at : path_at + 1);
    for (;; path = path.substr(0, path.rfind('/'))) {
      const std::string root = two ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
      if (path == "/") path.clear();
      take(Limit(root + path + (two ? "/memory.max" : "/memory.limit_in_bytes")));
      if (path.empty()) break;
    }
  }
  return bytes;
}

void TrimHeap() { ::malloc_trim(0); }

}  // namespace tidepool::workers
