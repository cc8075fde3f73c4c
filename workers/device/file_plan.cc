#include "workers/device/file_plan.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "workers/net/listener.h"

namespace tidepool::workers {
namespace {

// Libraries, logs, pipes, journal, payload, a checkpoint that is being written: 23 were seen at once in a
// controller and 15 in a worker; then one for each process on the other side.
constexpr int64_t kController = 26, kWorker = 18;

}  // namespace

int64_t PlanFiles(const JobConfig& c) {
  const int64_t side = c.environment() != nullptr ? c.environment()->workers : c.reward.workers;
  const int64_t controller = kController + c.cluster.slots + side + Listener::kReserve;
  const int64_t device = kWorker + c.cluster.slots + Listener::kReserve;
  const auto servers =
      std::ranges::count_if(c.reward.functions, [](const RewardFunction& f) { return !f.endpoint.empty(); });
  return std::max({controller, device, kWorker + c.reward.concurrency * static_cast<int64_t>(servers)});
}

Status CheckFileLimit(const JobConfig& config) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return OkStatus();
  const int64_t need = PlanFiles(config),
                may = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_max, INT32_MAX));
  if (may >= need) return OkStatus();
  return FailedPrecondition("a process may have only " + std::to_string(may) +
                            " files open here (ulimit -Hn), and this job needs " + std::to_string(need) +
                            ": raise the limit to that (`ulimit -Hn " + std::to_string(need) +
                            "`, which root alone may; else LimitNOFILE= of systemd, --ulimit nofile= of a "
                            "container, /etc/security/limits.conf)");
}

}  // namespace tidepool::workers
