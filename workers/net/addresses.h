#pragma once
// The address of this host on the way to another one: what a worker can be reached at by the processes of its
// run.

#include <string>

#include "core/base/status.h"

namespace tidepool::workers {

// address: "host:port" or "[::1]:port". "10.0.0.7", or "[fd00::7]" in brackets. kUnavailable: no such host,
// or no way to it. Nothing is sent.
StatusOr<std::string> AddressTowards(const std::string& address);

}  // namespace tidepool::workers
