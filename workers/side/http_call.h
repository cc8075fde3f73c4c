#pragma once
// HTTP calls over one connection, one after the other. Beast stays behind this header. Who decides when a
// connection is opened and how long it is kept: http_connections.h.

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>

#include "core/base/status.h"
#include "workers/side/host_lookup.h"

namespace tidepool::workers {

struct HttpAddress {
  std::string host, port;  // host: a name or an address
};
struct HttpCall {
  std::string target = "/";
  std::string body;  // JSON
  size_t answer_bytes_max = 1 << 20;
};
struct HttpAnswer {
  int status = 0;
  std::string body;
};

// One thread at a time. What it does is over at `deadline` or soon after `stop`, with kCancelled. It may
// throw where no descriptor is left.
class HttpConnection {
 public:
  // To the host that `lookup` finds. kUnavailable: nobody answers there (refused, no such host, no connection
  // at `deadline`).
  static StatusOr<std::unique_ptr<HttpConnection>> Open(const HttpAddress& address, HostLookup& lookup,
                                                        std::chrono::steady_clock::time_point deadline,
                                                        const std::stop_token& stop);
  ~HttpConnection();  // closes it

  // POSTs `call`. kUnavailable: closed before the answer. kDeadlineExceeded: no answer. kInvalidArgument: the
  // answer is no HTTP, or has more than answer_bytes_max.
  StatusOr<HttpAnswer> Post(const HttpCall& call, std::chrono::steady_clock::time_point deadline,
                            const std::stop_token& stop);
  // Of the last Post: another one may follow. Not after an error, `Connection: close`, or an answer of
  // HTTP/1.0.
  [[nodiscard]] bool reusable() const;
  // Of the last Post: not one byte of an answer came.
  [[nodiscard]] bool silent() const;
  // Between two calls: the server neither closed it nor said something that nobody asked for.
  [[nodiscard]] bool IsQuiet();

 private:
  struct Impl;
  explicit HttpConnection(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
