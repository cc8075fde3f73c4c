#pragma once
// One HTTP request and its answer, over a connection of its own. Beast stays behind this header.

#include <chrono>
#include <stop_token>
#include <string>

#include "core/base/status.h"
#include "workers/side/host_lookup.h"

namespace tidepool::workers {

struct HttpRequest {
  std::string host, port;  // host: a name or an address
  std::string target = "/";
  std::string body;  // JSON
  size_t answer_bytes_max = 1 << 20;
};
struct HttpAnswer {
  int status = 0;
  std::string body;
};

// POSTs `request`, to the host that `lookup` finds; over at `deadline` or soon after `stop`. kUnavailable:
// nobody answers there (refused, closed, no such host, no connection at `deadline`). kDeadlineExceeded:
// connected, but no answer. kInvalidArgument: the answer is no HTTP, or has more than answer_bytes_max.
// kCancelled: stopped. Blocks; any thread.
StatusOr<HttpAnswer> HttpPost(const HttpRequest& request, HostLookup& lookup,
                              std::chrono::steady_clock::time_point deadline, const std::stop_token& stop);

}  // namespace tidepool::workers
