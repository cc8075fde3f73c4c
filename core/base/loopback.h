#pragma once
// Names of this host that no other can reach, and the text of addresses.

#include <cstdint>
#include <string>
#include <string_view>

namespace tidepool {

// "127.0.0.1" and the like, "localhost", "::1", "[::1]".
inline bool IsLoopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos);
}
// Every address of this host: "0.0.0.0", its short form "0", "::", "[::]".
inline bool IsAnyAddress(std::string_view host) {
  return !host.empty() && host.find_first_not_of("0.:[]") == std::string_view::npos;
}
// Of "host:port".
inline std::string_view HostOf(std::string_view address) { return address.substr(0, address.rfind(':')); }

// "10.0.0.1:80", and "[::1]:80" of an IPv6 address with or without its brackets.
inline std::string JoinHostPort(std::string_view host, int64_t port) {
  const bool bare = host.find(':') != std::string_view::npos && host.front() != '[';
  return (bare ? "[" + std::string(host) + "]" : std::string(host)) + ":" + std::to_string(port);
}

// Without the brackets of an IPv6 address.
inline std::string_view BareHost(std::string_view host) {
  return host.size() > 2 && host.front() == '[' ? host.substr(1, host.size() - 2) : host;
}

}  // namespace tidepool
