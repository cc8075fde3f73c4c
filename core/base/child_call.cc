#include "core/base/child_call.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/call_watch.h"

namespace tidepool {
namespace {

using Clock = std::chrono::steady_clock;

// A message of the child: its kind, a number (the limit of a note) and a text.
enum class Kind : uint8_t { kNote, kResult, kThrew };
struct Header {
  Kind kind = Kind::kNote;
  double limit_s = 0;
  uint64_t bytes = 0;
};

void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ::_exit(1);  // nobody reads: the parent is gone
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}
void Send(int fd, Kind kind, double limit_s, const std::string& text) {
  const Header header{kind, limit_s, text.size()};
  WriteAll(fd, {reinterpret_cast<const char*>(&header), sizeof(header)});
  WriteAll(fd, text);
}

[[noreturn]] void RunChild(int fd, pid_t parent, const std::function<std::string(const ChildNote&)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_DFL);
  try {
    Send(fd, Kind::kResult, 0, body([fd](const std::string& what, std::chrono::duration<double> limit) {
           Send(fd, Kind::kNote, limit.count(), what);
         }));
  } catch (const std::exception& e) {
    Send(fd, Kind::kThrew, 0, std::string("threw an exception: ") + e.what());
  } catch (...) {
    Send(fd, Kind::kThrew, 0, "threw something that is no std::exception");
  }
  ::_exit(0);
}

// It is still to be waited for: HowItEnded does.
bool HasEnded(pid_t child) {
  siginfo_t ended{};
  return ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == child;
}

// Reads what a child writes, for as long as that may take.
class Reading {
 public:
  Reading(int fd, pid_t child) : fd_(fd), child_(child) {}
  void Limit(double seconds) {
    due_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  [[nodiscard]] bool late() const { return late_; }

  // Until `size` bytes are there. False: the child is gone, or it is late. A child of its own may hold the
  // pipe open when it is gone.
  bool Until(size_t size, std::string& out) {
    out.clear();
    while (out.size() < size) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(due_ - Look()).count();
      if (left <= 0) {
        late_ = true;
        return false;
      }
      const bool ended = HasEnded(child_);  // before the look at the pipe: what it wrote is there now
      pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
      const int n = ::poll(&ready, 1, ended ? 0 : static_cast<int>(std::min<int64_t>(left, 200)));
      if (n < 0 && errno != EINTR) return false;
      if (n == 0 && ended) return false;
      if (n <= 0) continue;
      std::array<char, 4096> buffer;
      // waits: poll said that there is something, or that the other end is closed
      const ssize_t got = ::read(fd_, buffer.data(), std::min(buffer.size(), size - out.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      out.append(buffer.data(), static_cast<size_t>(got));
    }
    return true;
  }

 private:
  // The time. Where the last look was long ago, this process was stopped, and the child with it.
  Clock::time_point Look() {
    const auto now = Clock::now(), last = std::exchange(looked_, now);
    if (now - last > CallWatch::kAbsence) due_ += now - last;
    return now;
  }
  const int fd_;
  const pid_t child_;
  Clock::time_point due_, looked_ = Clock::now();
  bool late_ = false;
};

// How a child that has closed its pipe, or was killed just now, ended.
std::string HowItEnded(pid_t child, ChildEnd& end) {
  constexpr auto kPatience = std::chrono::seconds(30);  // the kernel's, for a process that is killed
  int status = 0;
  for (const auto until = Clock::now() + kPatience; Clock::now() < until;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) {
      if (!WIFSIGNALED(status)) {
        end.exit_status = WEXITSTATUS(status);
        return "ended its process with exit status " + std::to_string(*end.exit_status);
      }
      end.signal = WTERMSIG(status);
      const char* name = ::sigabbrev_np(WTERMSIG(status));
      return "was killed by signal " + std::to_string(WTERMSIG(status)) +
             (name == nullptr ? "" : std::string(" (SIG") + name + ")");
    }
    if (ended < 0 && errno != EINTR) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "is gone";
}

}  // namespace

StatusOr<std::string> InChild(const std::function<std::string(const ChildNote&)>& body, ChildEnd* end) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Unavailable(std::string("no child process: pipe2: ") + std::strerror(errno));
  std::fflush(nullptr);  // or the child would have it too
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    RunChild(ends[1], parent, body);
  }
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    return Unavailable(std::string("no child process: fork: ") + std::strerror(errno));
  }
  std::string note = "its first call", bytes, result;
  double limit_s = 10;  // until the first note
  Reading reading(ends[0], child);
  reading.Limit(limit_s);
  bool done = false, threw = false;
  while (!done) {
    if (!reading.Until(sizeof(Header), bytes)) break;
    Header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (!reading.Until(header.bytes, bytes)) break;
    if (header.kind == Kind::kNote) {
      note = bytes;
      limit_s = header.limit_s;
      reading.Limit(limit_s);
      continue;
    }
    threw = header.kind == Kind::kThrew;
    result = std::move(bytes);
    done = true;
  }
  ::close(ends[0]);
  if (reading.late() || done) ::kill(child, SIGKILL);  // its end is of no interest
  ChildEnd how;
  const std::string ended = HowItEnded(child, how);
  if (threw) return Internal(note + ": " + result);
  if (done) return result;
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%g", limit_s);
  if (reading.late()) return DeadlineExceeded(note + ": did not end within " + limit + " s");
  if (end != nullptr) *end = how;
  return Aborted(note + ": " + ended);
}

}  // namespace tidepool
