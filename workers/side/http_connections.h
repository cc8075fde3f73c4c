#pragma once
// Calls to one HTTP server from several threads, over connections that are kept for the next call: opening
// one costs more than a small call itself.
//
// A call takes a connection that nobody uses, or opens one; so there are never more than callers at a time. A
// connection is used for `life` after it was opened and closed then, also where it is idle: a server that
// serves one connection at a time, or has fewer threads than there are callers, comes to the others in turn;
// and one that has moved (each connection looks up the name) is found while the former still answers.
//
// A server may close a kept connection at any time, so also while a call is on its way. Such a call, of which
// no byte of an answer came, is made once more over a connection of its own, and this is no failure. The
// server may have begun with it: callers are those whose question may be asked twice.

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "workers/side/host_lookup.h"
#include "workers/side/http_call.h"

namespace tidepool::workers {

// Thread-safe.
class HttpConnections {
 public:
  // Opening one takes 0.1 ms on this machine, so once a second costs nothing; and it is far below the least
  // time-out that makes sense.
  static constexpr std::chrono::nanoseconds kLife = std::chrono::seconds(1);
  HttpConnections(HttpAddress address, HostLookup lookup, std::chrono::nanoseconds life = kLife);

  // Over at `deadline` or soon after `stop`. kUnavailable: nobody answers there (refused, closed, no such
  // host, no connection at `deadline`). kDeadlineExceeded: connected, but no answer. kInvalidArgument: the
  // answer is no HTTP, or has more than answer_bytes_max. kCancelled: stopped. Blocks.
  StatusOr<HttpAnswer> Post(const HttpCall& call, std::chrono::steady_clock::time_point deadline,
                            const std::stop_token& stop);

 private:
  using Clock = std::chrono::steady_clock;
  struct Kept {
    std::unique_ptr<HttpConnection> connection;  // null: none
    Clock::time_point end;
  };
  StatusOr<HttpAnswer> PostOver(Kept& kept, const HttpCall& call, Clock::time_point deadline,
                                const std::stop_token& stop);
  Kept Take();
  void Keep(Kept kept);
  void CloseOld(const std::stop_token& stop);

  const HttpAddress address_;
  const std::chrono::nanoseconds life_;
  HostLookup lookup_;
  Mutex mu_;
  Condition wake_;
  std::vector<Kept> idle_ TP_GUARDED_BY(mu_);
  // Last: it uses all of them.
  std::jthread closer_;  // waits: its stop wakes it from its one wait
};

}  // namespace tidepool::workers
