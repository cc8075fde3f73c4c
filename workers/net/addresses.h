#pragma once
// The address of this host on the way to another one: what a worker can be reached at by the processes of its
// run.

#include <ifaddrs.h>

#include <string>

#include "core/base/status.h"

namespace tidepool::workers {

// address: "host:port" or "[::1]:port". "10.0.0.7", or "[fd00::7]" in brackets. kUnavailable: no such host,
// or no way to it. Nothing is sent.
StatusOr<std::string> AddressTowards(const std::string& address);

// The same for a job whose processes may be on other hosts. Where the name leads to loopback on this host
// alone, as Debian's /etc/hosts has it for the host's own name, it is the address of another interface, and
// the log says which. kFailedPrecondition: there is none.
StatusOr<std::string> AddressForOthers(const std::string& address);

// The first IPv4 address of an interface that is up and not loopback, else such an IPv6 address that is not
// of one link alone, in brackets; empty: there is none.
std::string OutsideAddress(const ifaddrs* interfaces);

}  // namespace tidepool::workers
