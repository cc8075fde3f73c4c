#include "workers/net/watch_pages.h"

#include <utility>

#include "core/base/loopback.h"
#include "workers/build_info.h"
#include "workers/net/auth.h"

namespace tidepool::workers {

StatusOr<std::unique_ptr<WatchPages>> WatchPages::Start(const WatchPagesOptions& options) {
  std::unique_ptr<WatchPages> pages(new WatchPages(options));
  HttpServerOptions server{.host = options.host,
                           .port = options.port,
                           .key_digest = options.token_digest,
                           .identity = options.identity,
                           .callers = Name(CallerRole::kOperator),
                           .threads = 1,
                           .connections_max = 16};
  if (!options.identity) server.open_paths = {"/metrics", "/healthz", "/readyz"};
  TP_ASSIGN_OR_RETURN(pages->server_,
                      HttpServer::Start(server, [of = pages.get()](const HttpRequest& request) {
                        return of->Answer(request);
                      }));
  return pages;
}

void WatchPages::Show(observe::Exposition metrics, std::vector<std::string> unready, std::string status) {
  metrics.Gauge("tidepool_build_info", 1, {{"version", BuildVersion()}, {"commit", BuildCommit()}});
  metrics.Gauge("tidepool_ready", unready.empty() ? 1 : 0);
  const MutexLock lock(mu_);
  metrics_ = std::move(metrics);
  unready_ = std::move(unready);
  status_ = std::move(status);
  shown_ = Clock::now();
}

std::string WatchPages::address() const {
  return JoinHostPort(options_.advertise.empty() ? options_.host : options_.advertise, server_->port());
}

HttpResponse WatchPages::Answer(const HttpRequest& request) {
  const auto still = Clock::now() - Clock::time_point(Clock::duration(turned_.load()));
  const double still_s = std::chrono::duration<double>(still).count();
  const bool healthy = still <= options_.turns_within;
  if (request.path == "/healthz") {
    if (healthy) return {.body = "ok\n"};
    return {.status = 503,
            .body = "its loop has not come round for " + std::to_string(static_cast<int64_t>(still_s)) +
                    " s, and has " + std::to_string(options_.turns_within.count()) + " s for it\n"};
  }
  const MutexLock lock(mu_);
  if (request.path == "/metrics") {
    observe::Exposition metrics = metrics_;
    metrics.Gauge("tidepool_loop_still_seconds", still_s);
    metrics.Process();
    return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics.Text()};
  }
  if (request.path == "/readyz") {
    std::string missing = healthy ? "" : "its loop stands still (/healthz)\n";
    for (const std::string& line : unready_) missing += line + "\n";
    if (missing.empty()) return {.body = "ok\n"};
    return {.status = 503, .body = missing};
  }
  if (request.path == "/status" && !status_.empty()) {
    const double age_s = std::chrono::duration<double>(Clock::now() - shown_).count();
    return {.type = "application/json",
            .body = "{\"age_s\":" + std::to_string(age_s) + "," + status_.substr(1)};
  }
  return {.status = 404, .body = "there are /metrics, /healthz, /readyz, and of a controller /status\n"};
}

}  // namespace tidepool::workers
