#pragma once
// From a name to addresses. The library's call takes as long as the name servers do, tens of seconds where
// one is away, and cannot be called off; so it has a thread of its own, which whoever waits may leave behind.

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tidepool::workers {

// Thread-safe. One lookup is under way at a time, for all who ask meanwhile; nothing is kept of it, because a
// server may move. One that is left behind ends by itself, also after this object.
class HostLookup {
 public:
  using Find = std::function<StatusOr<std::vector<std::string>>()>;  // blocks; called by another thread
  explicit HostLookup(const std::string& host);                      // a name or an address
  HostLookup(std::string host, Find find);
  // Numeric addresses, at least one. kUnavailable: there is no such host, or it is not known at `deadline`.
  // kCancelled: stopped.
  StatusOr<std::vector<std::string>> Addresses(std::chrono::steady_clock::time_point deadline,
                                               const std::stop_token& stop);

 private:
  struct Shared;
  const std::string host_;
  const Find find_;
  const std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
};

}  // namespace tidepool::workers
