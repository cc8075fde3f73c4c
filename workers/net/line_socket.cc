#include "workers/net/line_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tidepool::workers {
namespace {

constexpr size_t kLineMost = 1 << 16;

StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return InvalidArgument(path + ": longer than a socket's name may be, " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

LineSocket::~LineSocket() {
  if (fd_ >= 0) close(fd_);
}
LineSocket::LineSocket(LineSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), line_(std::move(other.line_)) {}
LineSocket& LineSocket::operator=(LineSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(line_, other.line_);
  return *this;
}

StatusOr<LineSocket> LineSocket::Listen(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  LineSocket out(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  (void)unlink(path.c_str());  // of one that died
  if (out.fd() < 0 || bind(out.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(out.fd(), SOMAXCONN) != 0)
    return Unavailable(path + ": cannot be made (" + std::strerror(errno) + ")");
  return out;
}

StatusOr<LineSocket> LineSocket::Connect(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  LineSocket out(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (out.fd() < 0 || connect(out.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return Unavailable(path + ": nobody is there (" + std::strerror(errno) + ")");
  return out;
}

bool LineSocket::Send(const nlohmann::json& json) const {
  const std::string line = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return send(fd_, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(line.size());
}

StatusOr<std::optional<nlohmann::json>> LineSocket::Take() {
  size_t end = line_.find('\n');
  for (char some[4096]; end == std::string::npos; end = line_.find('\n')) {
    if (line_.size() > kLineMost) return InvalidArgument("a line without an end");
    const ssize_t got = recv(fd_, some, sizeof(some), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<nlohmann::json>();
    if (got <= 0) return Unavailable("the other end is gone");
    line_.append(some, static_cast<size_t>(got));
  }
  auto json = nlohmann::json::parse(line_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  line_.erase(0, end + 1);
  if (!json.is_object()) return InvalidArgument("something else than an object");
  return std::optional(std::move(json));
}

bool LineSocket::WaitForInput(std::chrono::milliseconds patience) const {
  pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
  return poll(&one, 1, static_cast<int>(patience.count())) > 0;
}

}  // namespace tidepool::workers
