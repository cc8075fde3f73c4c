#include "workers/net/addresses.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace tidepool::workers {

StatusOr<std::string> AddressTowards(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return InvalidArgument(address + ": host:port is expected");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
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
  char name[NI_MAXHOST] = "";
  if (getnameinfo(reinterpret_cast<sockaddr*>(&mine), length, name, sizeof(name), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return Unavailable(address + ": this host's address towards it has no text");
  return mine.ss_family == AF_INET6 ? "[" + std::string(name) + "]" : std::string(name);
}

}  // namespace tidepool::workers
