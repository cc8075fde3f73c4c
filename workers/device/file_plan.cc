#include "workers/device/file_plan.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "workers/net/listener.h"

namespace tidepool::workers {
namespace {

// Libraries, logs, pipes, journal, payload, a checkpoint that is being written: 23 were seen at once in a
// controller and 15 in a worker; then those for each process on the other side.
constexpr int64_t kController = 26, kWorker = 18;
// The controller's: its connection, and the file in which the worker leaves its last words (launcher.cc).
constexpr int64_t kPerWorker = 2;

// What this process was started with beside the three of its terminal; its workers are given it, too.
int64_t OpenBefore() {
  std::error_code error;
  int64_t open = -4;  // those three, and the folder that is read
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error))
    ++open;
  return std::max<int64_t>(open, 0);
}

}  // namespace

int64_t PlanFiles(const JobConfig& c) {
  const int64_t side = c.environment() != nullptr ? c.environment()->workers : c.reward.workers;
  const int64_t controller = kController + kPerWorker * (c.cluster.slots + side) + Listener::kReserve;
  const int64_t device = kWorker + c.cluster.slots + Listener::kReserve;
  const auto servers =
      std::ranges::count_if(c.reward.functions, [](const RewardFunction& f) { return !f.endpoint.empty(); });
  return std::max({controller, device, kWorker + c.reward.concurrency * static_cast<int64_t>(servers)});
}

Status CheckFileLimit(const JobConfig& config) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return OkStatus();
  const int64_t before = OpenBefore(), need = PlanFiles(config) + before,
                may = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_max, INT32_MAX));
  if (may >= need) return OkStatus();
  return FailedPrecondition(
      "a process may have only " + std::to_string(may) +
      " files open here (ulimit -Hn), and this job needs " + std::to_string(need) +
      (before == 0 ? "" : ", with " + std::to_string(before) + " that were open before it began") +
      ": raise the limit to that (`ulimit -Hn " + std::to_string(need) +
      "`, which root alone may; else LimitNOFILE= of systemd, --ulimit nofile= of a "
      "container, /etc/security/limits.conf)");
}

}  // namespace tidepool::workers
