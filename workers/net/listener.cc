#include "workers/net/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/loopback.h"
#include "core/base/thread_annotations.h"
#include "workers/net/rpc_status.h"

namespace tidepool::workers {
namespace {

constexpr auto kEnd = std::chrono::milliseconds(200);  // of calls that are under way

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  [[nodiscard]] int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// Raises the soft limit of open files to the hard one; returns it.
int64_t RaiseFileLimit() {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 256;  // cannot fail; a small one is safe
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);  // refused: the old one goes on
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
}

StatusOr<Descriptor> Listen(const std::string& host, int64_t port) {
  struct addrinfo hints {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const std::string name(BareHost(host));
  struct addrinfo* found = nullptr;
  const int resolved = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (resolved != 0) return Unavailable(host + ": no such address (" + gai_strerror(resolved) + ")");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  Descriptor fd(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd.get() < 0 || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return Unavailable(JoinHostPort(host, port) + " is taken or may not be used (" + std::strerror(errno) +
                       ")");
  }
  return fd;
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

std::string PeerName(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const std::string port = ":" + std::to_string(PortOf(address));
  if (address.ss_family != AF_INET6) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
    return "ipv4:" + std::string(text) + port;
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text, sizeof(text));
    return "ipv4:" + std::string(text) + port;
  }
  inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text));
  const std::string scope = six.sin6_scope_id == 0 ? "" : "%" + std::to_string(six.sin6_scope_id);
  return "ipv6:[" + std::string(text) + scope + "]" + port;
}

std::string PeerName(const std::string& peer) {
  std::string name;
  for (size_t at = 0; at < peer.size(); ++at) {
    unsigned char escaped = 0;
    if (peer[at] == '%' && at + 2 < peer.size()) {
      const char* digits = peer.data() + at + 1;
      if (std::from_chars(digits, digits + 2, escaped, 16).ptr == digits + 2) {
        name += static_cast<char>(escaped);
        at += 2;
        continue;
      }
    }
    name += peer[at];
  }
  return name;
}

struct Listener::Impl {
  // gRPC owns the connection's descriptor. This is a second one, by which the connection can be cut as long
  // as it is a stranger's.
  struct Stranger {
    Descriptor fd;
    std::string peer;  // PeerName
    Clock::time_point since;
  };

  std::unique_ptr<grpc::Server> server;
  int64_t limit = 0;  // of open files
  size_t most = 0;    // strangers
  Descriptor listening, wake, spare;
  std::string address;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  Mutex mu;
  std::vector<Stranger> strangers TP_GUARDED_BY(mu);  // oldest first
  std::jthread thread;                                // waits: its own poll ends with the wake descriptor

  void OpenSpare() { spare = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

  static void Cut(const Stranger& s) { shutdown(s.fd.get(), SHUT_RDWR); }  // gRPC sees the end and closes it

  // Strangers that have gone, or whose time is over. Returns whether there is room for another.
  bool Tidy(Clock::time_point now) {
    const MutexLock lock(mu);
    std::vector<pollfd> look;
    for (const Stranger& s : strangers) look.push_back({s.fd.get(), 0, 0});
    if (!look.empty()) poll(look.data(), look.size(), 0);
    size_t at = 0;
    std::erase_if(strangers, [&](const Stranger& s) {
      const bool gone = (look[at++].revents & (POLLHUP | POLLERR)) != 0;
      if (!gone && now - s.since < kPatience) return false;
      if (!gone) Cut(s);
      return true;
    });
    if (strangers.size() >= most && now - strangers.front().since >= kMakeRoom) {
      Cut(strangers.front());
      strangers.erase(strangers.begin());
    }
    return strangers.size() < most;
  }

  void AcceptOne(Clock::time_point now) {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    auto* from = reinterpret_cast<sockaddr*>(&peer);
    // waits: not at all, the socket does not block
    Descriptor fd(accept4(listening.get(), from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) {
      if (errno != EMFILE && errno != ENFILE) return;  // it went away meanwhile
      spare.Close();
      fd = Descriptor(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));  // waits: not at all
      fd.Close();
      OpenSpare();
      Rest();
      return;
    }
    // Descriptors are given out from the lowest free one up, so a high number means that few are left.
    Descriptor second(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    if (second.get() < 0 || std::max(fd.get(), second.get()) >= limit - kReserve) return Rest();
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // only slower without
    {
      const MutexLock lock(mu);
      strangers.push_back({std::move(second), PeerName(peer), now});
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listening.get();
    connection.fd = fd.Release();
    acceptor->HandleNewConnection(&connection);
  }

  // Where descriptors are short, whoever waits is served a little later.
  void Rest() {
    pollfd woken{wake.get(), POLLIN, 0};
    poll(&woken, 1, 20);
  }

  void Run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const bool room = Tidy(Clock::now());
      // Without room nobody is accepted until the oldest stranger has to go, which is soon.
      pollfd fds[2] = {{wake.get(), POLLIN, 0}, {listening.get(), POLLIN, 0}};
      const int ready = poll(fds, room ? 2 : 1, room ? 500 : 50);
      if (ready > 0 && room && (fds[1].revents & POLLIN) != 0) AcceptOne(Clock::now());
    }
  }
};

Listener::Listener() : impl_(std::make_unique<Impl>()) {}

Listener::~Listener() { Stop(); }

void Listener::Stop() {
  if (!impl_->thread.joinable()) return;
  impl_->thread.request_stop();
  const uint64_t one = 1;
  (void)!write(impl_->wake.get(), &one,
               sizeof(one));  // without it the thread ends within its poll's time-out
  impl_->thread.join();       // waits: it was woken
  impl_->server->Shutdown(std::chrono::system_clock::now() + kEnd);
  impl_->server->Wait();  // waits: Shutdown cancels every call at its deadline
  impl_->server.reset();
}

const std::string& Listener::address() const { return impl_->address; }

StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& host, int64_t port) {
  SetUpGrpc();
  std::unique_ptr<Listener> listener(new Listener());
  Impl& impl = *listener->impl_;
  impl.limit = RaiseFileLimit();
  impl.most = static_cast<size_t>(std::clamp<int64_t>(impl.limit / 16, 4, kStrangers));
  TP_ASSIGN_OR_RETURN(impl.listening, Listen(host, port));
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  getsockname(impl.listening.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  impl.address = JoinHostPort(host, PortOf(bound));
  impl.wake = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  impl.OpenSpare();
  if (impl.wake.get() < 0 || impl.spare.get() < 0)
    return Unavailable(impl.address + ": too many open files; raise their limit (ulimit -n)");
  return listener;
}

Status Listener::Serve(grpc::ServerBuilder& builder,
                       const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  impl_->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             static_cast<int>(std::chrono::milliseconds(kPatience).count()));
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr) return Unavailable(impl_->address + ": the server could not be started");
  impl_->thread = std::jthread([impl = impl_.get()](const std::stop_token& stop) { impl->Run(stop); });
  return OkStatus();
}

void Listener::Authenticated(const std::string& peer) {
  const std::string name = PeerName(peer);
  const MutexLock lock(impl_->mu);
  std::erase_if(impl_->strangers, [&](const Impl::Stranger& s) { return s.peer == name; });
}

Status Listener::Admit(const grpc::ServerContext& context, const std::string& call,
                       const std::string& token) {
  const auto it = context.client_metadata().find("authorization");
  if (it == context.client_metadata().end() ||
      !ConstantTimeEqual(std::string_view(it->second.data(), it->second.size()), "Bearer " + token)) {
    return Unauthenticated(call + ": no token of a device worker of this job");
  }
  Authenticated(context.peer());
  return OkStatus();
}

}  // namespace tidepool::workers
