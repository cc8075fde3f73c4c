#include "tests/conformance_hf/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>

namespace tidepool::conformance_hf {
namespace {

using Clock = std::chrono::steady_clock;

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Lines of a descriptor. The last one may lack its newline.
class Lines {
 public:
  explicit Lines(int fd) : fd_(fd) {}
  enum class Result { kLine, kEnd, kLate };
  Result Next(std::optional<Clock::time_point> until, std::string& line) {
    while (true) {
      if (const size_t end = buffer_.find('\n', seen_); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        seen_ = 0;
        return Result::kLine;
      }
      seen_ = buffer_.size();
      if (until.has_value()) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(*until - Clock::now()).count();
        if (left <= 0) return Result::kLate;
        pollfd p{fd_, POLLIN, 0};
        if (poll(&p, 1, static_cast<int>(left)) <= 0) continue;
      }
      char piece[1 << 16];
      // waits: with a deadline poll saw bytes; without one it serves whoever asks, and ends when they close
      // the pipe
      const ssize_t n = read(fd_, piece, sizeof(piece));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        if (buffer_.empty()) return Result::kEnd;
        line = std::move(buffer_);
        buffer_.clear();
        seen_ = 0;
        return Result::kLine;
      }
      buffer_.append(piece, static_cast<size_t>(n));
    }
  }

 private:
  int fd_;
  std::string buffer_;
  size_t seen_ = 0;
};

struct Child {
  pid_t pid = -1;
  int fd = -1;
  bool fresh = true;
};

[[noreturn]] void Serve(int fd, const std::function<std::string(const std::string&)>& answer) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(STDERR_FILENO, STDOUT_FILENO);  // answers go through fd alone
  // Where memory runs out, this process is the one to end.
  if (const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0) {
    WriteAll(score, "1000");
    close(score);
  }
  Lines lines(fd);
  std::string line;
  while (lines.Next(std::nullopt, line) == Lines::Result::kLine) {
    if (!WriteAll(fd, answer(line) + "\n")) break;
  }
  _exit(0);
}

// A descriptor pair and a child that serves the other end; pid -1: it could not be made.
Child Start(const std::function<std::string(const std::string&)>& answer) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return {};
  const pid_t pid = fork();
  if (pid == 0) {
    close(pair[0]);
    Serve(pair[1], answer);
  }
  close(pair[1]);
  if (pid < 0) {
    close(pair[0]);
    return {};
  }
  return {pid, pair[0], true};
}

// Ends the child; says how it went.
std::string End(Child& child) {
  kill(child.pid, SIGKILL);
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {  // waits: it was killed above
  }
  close(child.fd);
  child = {};
  if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
    return "the process that answered ended with signal " + std::to_string(WTERMSIG(status));
  if (WIFSIGNALED(status)) return "the process that answered was killed (out of memory?)";
  return "the process that answered ended with code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

int Supervise(const SupervisorOptions& options, const std::function<std::string(const std::string&)>& answer,
              const std::function<std::string(const std::string&, const std::string&)>& lost) {
  signal(SIGPIPE, SIG_IGN);
  Lines in(STDIN_FILENO);
  Child child;
  std::string line;
  while (in.Next(std::nullopt, line) == Lines::Result::kLine) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (child.pid < 0) child = Start(answer);
    std::string reply;
    if (child.pid < 0) {
      reply = lost(line, std::string("no process could be started: ") + std::strerror(errno));
    } else {
      const double limit = child.fresh ? options.first_deadline_s : options.deadline_s;
      child.fresh = false;
      const auto until = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(limit * 1000));
      Lines from_child(child.fd);
      const bool sent = WriteAll(child.fd, line + "\n");
      const Lines::Result result = sent ? from_child.Next(until, reply) : Lines::Result::kEnd;
      if (result == Lines::Result::kLate) {
        (void)End(child);
        reply = lost(line, "no answer within " + std::to_string(static_cast<int64_t>(limit)) + " s");
      } else if (result == Lines::Result::kEnd) {
        reply = lost(line, End(child));
      }
    }
    if (!WriteAll(STDOUT_FILENO, reply + "\n")) break;
  }
  if (child.pid >= 0) {
    shutdown(child.fd, SHUT_WR);
    (void)End(child);
  }
  return 0;
}

}  // namespace tidepool::conformance_hf
