#pragma once
// What a process of a run shows over HTTP of itself, where observe.metrics_bind asks for it:
//
//   /metrics  for Prometheus (core/observe/exposition.h; docs/metrics.md has the names)
//   /healthz  200 while its loop turns, else 503 and for how long it has not: whoever restarts processes
//             that hang may go by it
//   /readyz   200 where it can do its work, else 503 and what is missing, a line each
//   /status   of the controller: {age_s, run, job, live: RUN/status.json}, for `tidepool status` and
//   `tidepool top` from elsewhere
//
// Where the job's calls are encrypted, so are these, and a caller shows the operator's certificate. Then
// every page needs the operator's token; on loopback without encryption /status alone. The process says how
// it is by Show, a few times a second; whoever asks waits for nobody.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/observe/exposition.h"
#include "workers/net/http_server.h"

namespace tidepool::workers {

struct WatchPagesOptions {
  std::string host;                  // an address of this machine, or 0.0.0.0
  std::string advertise;             // host of address(); empty: the same
  uint16_t port = 0;                 // 0: any free one
  std::string token_digest;          // SHA-256 of the operator's token
  std::optional<Identity> identity;  // of this process
  std::chrono::seconds turns_within{10};
};

// Thread-safe.
class WatchPages {
 public:
  // As HttpServer::Start.
  static StatusOr<std::unique_ptr<WatchPages>> Start(const WatchPagesOptions& options);

  // The loop came round.
  void Turned() { turned_.store(Clock::now().time_since_epoch().count()); }
  // unready: what is missing for it to do its work. status: a JSON object with something in it; empty: it has
  // no such page.
  void Show(observe::Exposition metrics, std::vector<std::string> unready, std::string status = "");
  [[nodiscard]] std::string address() const;  // "127.0.0.1:9100"
  [[nodiscard]] bool encrypted() const { return options_.identity.has_value(); }

 private:
  using Clock = std::chrono::steady_clock;
  explicit WatchPages(WatchPagesOptions options) : options_(std::move(options)) {}
  HttpResponse Answer(const HttpRequest& request);

  const WatchPagesOptions options_;
  std::atomic<Clock::rep> turned_{Clock::now().time_since_epoch().count()};
  Mutex mu_;
  observe::Exposition metrics_ TP_GUARDED_BY(mu_);
  std::vector<std::string> unready_ TP_GUARDED_BY(mu_) = {"it has just begun"};
  std::string status_ TP_GUARDED_BY(mu_);
  Clock::time_point shown_ TP_GUARDED_BY(mu_);
  std::unique_ptr<HttpServer> server_;  // last: it calls Answer
};

}  // namespace tidepool::workers
