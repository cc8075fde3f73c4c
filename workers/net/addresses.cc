#include "workers/net/addresses.h"

#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/base/loopback.h"
#include "core/observe/log.h"

namespace tidepool::workers {
namespace {

// "10.0.0.7", "[fd00::7]"; empty: it has no text.
std::string HostText(const sockaddr* address, socklen_t length) {
  char name[NI_MAXHOST] = "";
  if (getnameinfo(address, length, name, sizeof(name), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return address->sa_family == AF_INET6 ? "[" + std::string(name) + "]" : std::string(name);
}

}  // namespace

StatusOr<std::string> AddressTowards(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return InvalidArgument(address + ": host:port is expected");
  const std::string host(BareHost(HostOf(address)));
  struct addrinfo hints {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  struct addrinfo* found = nullptr;
  const int resolved = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (resolved != 0) return Unavailable(address + ": no such host (" + gai_strerror(resolved) + ")");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage mine{};
  socklen_t length = sizeof(mine);
  // Of a datagram socket this chooses the way and sends nothing.
  const bool known = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0;
  const std::string error = std::strerror(errno);
  if (fd >= 0) close(fd);
  if (!known) return Unavailable(address + ": this host has no way to it (" + error + ")");
  std::string text = HostText(reinterpret_cast<sockaddr*>(&mine), length);
  if (text.empty()) return Unavailable(address + ": this host's address towards it has no text");
  return text;
}

StatusOr<std::string> AddressForOthers(const std::string& address) {
  TP_ASSIGN_OR_RETURN(std::string host, AddressTowards(address));
  if (!IsLoopback(host) || IsLoopback(HostOf(address))) return host;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0)
    return Unavailable(std::string("the interfaces of this host cannot be listed: ") + std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(interfaces, &freeifaddrs);
  std::string outside = OutsideAddress(interfaces);
  const std::string found = address + " leads to " + host + " on this host";
  if (outside.empty())
    return FailedPrecondition(
        found +
        ", where no worker of another host can fetch weights, and no other interface is up; write an "
        "address that others reach to cluster.advertise, or correct the name's line in /etc/hosts");
  observe::Log(LogLevel::kInfo, "address_chosen",
               {{"address", outside},
                {"text", found + "; others are told " + outside +
                             ". If they cannot reach it, write an address that they can to "
                             "cluster.advertise, or correct the name's line in /etc/hosts"}});
  return outside;
}

std::string OutsideAddress(const ifaddrs* interfaces) {
  std::string six;
  for (const ifaddrs* i = interfaces; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    if (i->ifa_addr->sa_family == AF_INET) return HostText(i->ifa_addr, sizeof(sockaddr_in));
    if (i->ifa_addr->sa_family != AF_INET6 || !six.empty()) continue;
    const auto* address = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
    if (!IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) six = HostText(i->ifa_addr, sizeof(sockaddr_in6));
  }
  return six;
}

}  // namespace tidepool::workers
