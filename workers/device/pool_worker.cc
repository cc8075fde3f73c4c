#include "workers/device/pool_worker.h"

#include <poll.h>
#include <sys/socket.h>
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
#include "workers/net/line_socket.h"
#include "workers/net/worker_log.h"

namespace tidepool::workers {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kComes = std::chrono::seconds(60);  // for a pool that is being started, again perhaps
constexpr auto kSays = std::chrono::seconds(5);    // for a line that was begun
// A session sees between two pieces of its work that nobody wants it any more. One that neither waits nor
// ends a turn for so long holds up all others.
constexpr auto kUnwanted = std::chrono::seconds(120);

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
  Pool(LineSocket listens, int64_t runs) : listens_(std::move(listens)), shared_(runs) {}

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
        if (fd < 0) OnNoFile();
      }
      sessions_.remove_if([this](Session& s) { return Look(s); });
    }
  }

 private:
  struct Session {
    explicit Session(int fd) : stands(fd) {}
    LineSocket stands;  // the process that stands for it
    SteadyClock::time_point since = SteadyClock::now();
    uint64_t moved = 0;  // turns of the pool and waits of its own, as they were last seen to grow
    std::atomic<uint64_t> waits = 0;
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
      if (const uint64_t moved = shared_.turns() + s.waits; moved != s.moved) s.moved = moved, s.since = now;
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
      if ((*came)->contains(kPoolPulse)) {
        (void)s.stands.Send(**came);
        return true;
      }
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

  // A caller waits until a descriptor is free.
  void OnNoFile() {
    if (!std::exchange(told_no_file_, true))
      LogWorkerFailure("pool_full", std::string("nobody else can be let in (") + std::strerror(errno) + ")");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

  void Begin(Session& s, DeviceWorkerOptions options) {
    s.run_id = options.run_id;
    observe::Log(LogLevel::kInfo, "session_begins",
                 {{"run_id", s.run_id}, {"controller", options.address}, {"for_pid", options.pid}});
    options.pool = &shared_;
    options.unwanted = &s.unwanted;
    options.waits = &s.waits;
    s.thread = std::thread([&s, options = std::move(options)] {
      s.end = RunDeviceWorker(options);
      s.over = true;
    });
  }

  LineSocket listens_;
  DevicePool shared_;
  bool told_no_file_ = false;
  std::list<Session> sessions_;
};

}  // namespace

int RunPoolWorker(const std::string& path, int64_t runs) {
  LogWorkerStart("pool", path);
  auto listens = LineSocket::Listen(path);
  if (!listens.ok()) {
    LogWorkerFailure("pool_failed", listens.status().message());
    return 2;
  }
  Pool(*std::move(listens), runs).Run();
}

int StandForSession(const std::string& path, const DeviceWorkerOptions& options) {
  LogWorkerStart("device", options.address);
  const auto failed = [](const std::string& event, const std::string& why, int exit_code) {
    LogWorkerFailure(event, why);
    return exit_code;
  };
  const auto until = SteadyClock::now() + kComes;
  auto pool = LineSocket::Connect(path);
  for (; !pool.ok(); pool = LineSocket::Connect(path)) {
    if (pool.status().code() == StatusCode::kInvalidArgument)
      return failed("pool_failed", pool.status().message(), 2);
    if (SteadyClock::now() >= until) return failed("pool_missing", pool.status().message(), 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  DeviceWorkerOptions mine = options;
  mine.pid = getpid();
  if (!pool->Send(ToJson(mine))) return failed("pool_lost", "the process of the pool has ended", 3);
  for (;;) {
    if (!pool->WaitForInput(std::chrono::seconds(1))) continue;
    const auto came = pool->Take();
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
