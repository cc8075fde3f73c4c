#include "workers/net/worker_pages.h"

#include <algorithm>
#include <cmath>

#include "core/base/loopback.h"
#include "core/base/places.h"
#include "core/observe/log.h"
#include "workers/net/addresses.h"

namespace tidepool::workers {
namespace {

StatusOr<std::unique_ptr<WatchPages>> Open(const JobConfig& config, const down::Welcome& welcome,
                                           const Credentials& credentials, const std::string& controller) {
  WatchPagesOptions options{.host = config.observe.metrics_bind,
                            .token_digest = welcome.operator_digest,
                            .identity = credentials.identity,
                            // A training step is one turn; the run ends where nothing moves for so long.
                            .turns_within = std::chrono::seconds(
                                std::max<int64_t>(10, std::llround(config.cluster.stall_timeout_s)))};
  if (!IsLoopback(options.host)) {
    TP_ASSIGN_OR_RETURN(options.host, AddressForOthers(controller));
  }
  return WatchPages::Start(options);
}

}  // namespace

void WorkerPages::Welcomed(const std::string& kind, const JobConfig& config, const down::Welcome& welcome,
                           const Credentials& credentials, const std::string& controller) {
  if (config.observe.metrics_bind.empty()) return;
  const MutexLock lock(mu_);
  info_ = {{"role", kind},
           {"name", PlaceName(config, welcome.place)},
           {"incarnation", std::to_string(welcome.inc.value)},
           {"node", observe::HostName()}};
  if (pages_ != nullptr) return;
  auto opened = Open(config, welcome, credentials, controller);
  if (opened.ok()) {
    pages_ = *std::move(opened);
  } else {
    observe::Log(LogLevel::kWarn, "no_pages",
                 {{"text", "observe.metrics_bind: " + opened.status().message()}});
  }
}

void WorkerPages::Turned() {
  const MutexLock lock(mu_);
  if (pages_ != nullptr) pages_->Turned();
}

void WorkerPages::Show(up::Heartbeat& beat, bool may_serve, const std::optional<DeviceFacts>& device) {
  const MutexLock lock(mu_);
  if (pages_ == nullptr) return;
  beat.pages = pages_->address();
  const auto now = std::chrono::steady_clock::now();
  if (beat.op_seq != op_seq_) moved_ = now;
  op_seq_ = beat.op_seq;
  observe::Exposition m;
  m.Gauge("tidepool_worker_info", 1, info_);
  m.Gauge("tidepool_worker_permitted", may_serve ? 1 : 0);
  m.Counter("tidepool_worker_operations_total", static_cast<double>(beat.op_seq));
  m.Gauge("tidepool_worker_operation_seconds", std::chrono::duration<double>(now - moved_).count(),
          {{"operation", beat.op.empty() ? "none" : beat.op}});
  m.Gauge("tidepool_worker_memory_peak_bytes", static_cast<double>(beat.rss_bytes));
  if (device) {
    m.Counter("tidepool_worker_generated_tokens_total", static_cast<double>(device->generated_tokens));
    if (device->free_bytes) m.Gauge("tidepool_device_free_bytes", static_cast<double>(*device->free_bytes));
    int64_t running = 0, waiting = 0;
    double kv = 0;
    for (const scheduler::event::EngineSample& engine : beat.engines) {
      running += engine.running;
      waiting += engine.waiting;
      kv = std::max(kv, engine.kv_usage);
    }
    m.Gauge("tidepool_engine_requests", static_cast<double>(running), {{"state", "running"}});
    m.Gauge("tidepool_engine_requests", static_cast<double>(waiting), {{"state", "waiting"}});
    m.Gauge("tidepool_engine_kv_usage_ratio", kv);
  } else {
    m.Gauge("tidepool_worker_unreachable_servers", static_cast<double>(beat.waits_for.size()));
  }
  std::vector<std::string> unready;
  if (!may_serve) unready.emplace_back("no controller permits it to work");
  for (const up::Unreachable& server : beat.waits_for)
    unready.push_back("a server of reward " + std::to_string(server.reward) +
                      " cannot be reached: " + server.cause);
  pages_->Show(std::move(m), std::move(unready));
}

}  // namespace tidepool::workers
