#include "workers/device/pool_worker.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/observe/log.h"
#include "workers/device/device_pool.h"
#include "workers/net/worker_log.h"

namespace tidepool::workers {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kComes = std::chrono::seconds(60);  // for a pool that is being started, again perhaps
constexpr auto kSays = std::chrono::seconds(5);    // for a line that was begun
// A session sees between two pieces of its work that nobody wants it any more. Where no turn ends for so
// long, it holds up all others.
constexpr auto kUnwanted = std::chrono::seconds(120);

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

  // False: whoever is at the other end is gone.
  [[nodiscard]] bool Send(const nlohmann::json& json) const {
    const std::string line = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    return send(fd_, line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size());
  }
  // What has come by now: an object once its line is whole; an error once the other end is gone, or has said
  // something else.
  StatusOr<std::optional<nlohmann::json>> Take() {
    for (char some[4096];;) {
      const ssize_t got = recv(fd_, some, sizeof(some), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<nlohmann::json>();
      if (got <= 0) return Unavailable("the other end is gone");
      line_.append(some, static_cast<size_t>(got));
      if (line_.size() > (1 << 16)) return InvalidArgument("a line without an end");
      if (!line_.ends_with('\n')) continue;
      auto json = nlohmann::json::parse(std::exchange(line_, {}), nullptr, /*allow_exceptions=*/false);
      if (!json.is_object()) return InvalidArgument("something else than an object");
      return std::optional(std::move(json));
    }
  }

 private:
  int fd_;
  std::string line_;
};

StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return InvalidArgument(path + ": longer than a socket's name may be, " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool WaitForInput(int fd, std::chrono::milliseconds patience) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&one, 1, static_cast<int>(patience.count())) > 0;
}

nlohmann::json ToJson(const DeviceWorkerOptions& o) {
  return {{"address", o.address}, {"token_file", o.token_file},
          {"run_id", o.run_id},   {"control_file", o.control_file},
          {"place", o.place},     {"gpu", o.gpu},
          {"pid", o.pid}};
}

StatusOr<DeviceWorkerOptions> OptionsOf(const nlohmann::json& json) {
  DeviceWorkerOptions o;
  try {
    o.address = json.at("address");
    o.token_file = json.at("token_file");
    o.run_id = json.at("run_id");
    o.control_file = json.at("control_file");
    o.place = json.at("place");
    o.gpu = json.at("gpu");
    o.pid = json.at("pid");
  } catch (const nlohmann::json::exception& e) {
    return InvalidArgument(e.what());
  }
  return o;
}

class Pool {
 public:
  Pool(int listens, int64_t runs) : listens_(listens), shared_(runs) {}

  [[noreturn]] void Run() {
    for (;;) {
      std::vector<pollfd> all = {{.fd = listens_.fd(), .events = POLLIN, .revents = 0}};
      for (const Session& s : sessions_) {
        if (!s.unwanted) all.push_back({.fd = s.stands.fd(), .events = POLLIN, .revents = 0});
      }
      (void)poll(all.data(), all.size(), /*timeout=*/50);
      if ((all.front().revents & POLLIN) != 0) {
        // waits: polled above, and non-blocking
        const int fd = accept4(listens_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) sessions_.emplace_back(fd);
      }
      sessions_.remove_if([this](Session& s) { return Look(s); });
    }
  }

 private:
  struct Session {
    explicit Session(int fd) : stands(fd) {}
    Socket stands;  // the process that stands for it
    SteadyClock::time_point since = SteadyClock::now();
    uint64_t turns = 0;  // of the pool, when they were last seen to move
    std::atomic<bool> unwanted = false, over = false;
    std::string run_id;
    DeviceEnd end;
    std::thread thread;  // waits: ends soon after it is unwanted, or by itself
  };

  // True: nothing is left of it.
  bool Look(Session& s) {
    if (s.over) {
      s.thread.join();  // waits: it has nothing left to do
      (void)s.stands.Send({{"exit", s.end.exit_code}, {"event", s.end.event}, {"why", s.end.why}});
      observe::Log(LogLevel::kInfo, "session_ends", {{"run_id", s.run_id}, {"exit", s.end.exit_code}});
      return true;
    }
    const auto now = SteadyClock::now();
    if (s.unwanted) {
      if (const uint64_t turns = shared_.turns(); turns != s.turns) s.turns = turns, s.since = now;
      if (now - s.since < kUnwanted) return false;
      LogWorkerFailure("session_hangs", "the session of run " + s.run_id +
                                            ", which nobody wants any more, has not ended within its "
                                            "deadline; this process ends, so that the others go on");
      observe::FlushLogs();
      _exit(3);
    }
    auto came = s.stands.Take();
    if (!s.thread.joinable()) {
      if (!came.ok()) return true;
      if (!*came) return now - s.since > kSays;
      auto options = OptionsOf(**came);
      if (!options.ok()) return true;
      Begin(s, *std::move(options));
      return false;
    }
    if (came.ok()) return false;
    s.unwanted = true;
    s.since = now;
    return false;
  }

  void Begin(Session& s, DeviceWorkerOptions options) {
    s.run_id = options.run_id;
    observe::Log(LogLevel::kInfo, "session_begins",
                 {{"run_id", s.run_id}, {"controller", options.address}, {"for_pid", options.pid}});
    options.pool = &shared_;
    options.unwanted = &s.unwanted;
    s.thread = std::thread([&s, options = std::move(options)] {
      s.end = RunDeviceWorker(options);
      s.over = true;
    });
  }

  Socket listens_;
  DevicePool shared_;
  std::list<Session> sessions_;
};

}  // namespace

int RunPoolWorker(const std::string& path, int64_t runs) {
  LogWorkerStart("pool", path);
  const auto address = AddressOf(path);
  if (!address.ok()) {
    LogWorkerFailure("pool_failed", address.status().message());
    return 2;
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  (void)unlink(path.c_str());  // of one that died
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    LogWorkerFailure("pool_failed", path + ": cannot be made (" + std::strerror(errno) + ")");
    return 2;
  }
  Pool(fd, runs).Run();
}

int StandForSession(const std::string& path, const DeviceWorkerOptions& options) {
  LogWorkerStart("device", options.address);
  const auto failed = [](const std::string& event, const std::string& why, int exit_code) {
    LogWorkerFailure(event, why);
    return exit_code;
  };
  const auto address = AddressOf(path);
  if (!address.ok()) return failed("pool_failed", address.status().message(), 2);
  Socket pool(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto until = SteadyClock::now() + kComes;
  while (connect(pool.fd(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    if (SteadyClock::now() >= until)
      return failed("pool_missing", path + ": nobody is there (" + std::strerror(errno) + ")", 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  DeviceWorkerOptions mine = options;
  mine.pid = getpid();
  if (!pool.Send(ToJson(mine))) return failed("pool_lost", "the process of the pool has ended", 3);
  for (;;) {
    if (!WaitForInput(pool.fd(), std::chrono::seconds(1))) continue;
    const auto came = pool.Take();
    if (!came.ok()) return failed("pool_lost", "the process of the pool has ended", 3);
    if (!*came) continue;
    const nlohmann::json& end = **came;
    const int exit_code = end.value("exit", 3);
    if (const std::string event = end.value("event", ""); !event.empty())
      return failed(event, end.value("why", ""), exit_code);
    LogWorkerEnd(exit_code);
    return exit_code;
  }
}

}  // namespace tidepool::workers
