#pragma once
// Names of this host that no other can reach.

#include <string_view>

namespace tidepool {

// "127.0.0.1" and the like, "localhost", "::1", "[::1]".
inline bool IsLoopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos);
}
// Every address of this host: "0.0.0.0", "::", "[::]".
inline bool IsAnyAddress(std::string_view host) {
  return host == "0.0.0.0" || host == "::" || host == "[::]";
}
// Of "host:port".
inline std::string_view HostOf(std::string_view address) { return address.substr(0, address.rfind(':')); }

// Without the brackets of an IPv6 address.
inline std::string_view BareHost(std::string_view host) {
  return host.size() > 2 && host.front() == '[' ? host.substr(1, host.size() - 2) : host;
}

}  // namespace tidepool
