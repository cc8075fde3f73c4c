#include "workers/controller/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "core/base/process_memory.h"
#include "core/base/running_call.h"
#include "core/observe/log.h"
#include "workers/worker_variables.h"

extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

extern char** environ;

namespace tidepool::workers {
namespace {

// Even after SIGKILL a process stays until the kernel has finished what it does for it (a disk that hangs).
// Whoever is left then is the system's to reap.
constexpr Duration kKilled = std::chrono::seconds(30);

// Waits of OpenMP's threads between parallel regions, in turns of a loop: about 50 microseconds, what a
// region of a small model is apart from the next one, then they sleep. The library's own choice,
// milliseconds, makes work several times slower as soon as anything else wants the cores. Read when the
// library is loaded, so set before.
constexpr char kSpin[] = "GOMP_SPINCOUNT=1000";

bool ForWorkers(std::string_view entry, Keys keys) {
  if (keys == Keys::kAll) return true;
  if (keys == Keys::kOfStore && (entry.starts_with("AWS_") || entry.starts_with("SSL_CERT_"))) return true;
  return IsForWorkers(entry);
}

std::vector<char*> EnvironmentOfWorkers(Keys keys) {
  std::vector<char*> out;
  bool chosen = false;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!ForWorkers(*entry, keys)) continue;
    chosen = chosen || std::strncmp(*entry, "GOMP_SPINCOUNT=", 15) == 0 ||
             std::strncmp(*entry, "OMP_WAIT_POLICY=", 16) == 0;
    out.push_back(*entry);
  }
  if (!chosen) out.push_back(const_cast<char*>(kSpin));
  out.push_back(nullptr);
  return out;
}

std::string HowItEnded(bool known, int status) {
  if (known && WIFEXITED(status)) return " ended with exit status " + std::to_string(WEXITSTATUS(status));
  if (!known || !WIFSIGNALED(status)) return " is gone";
  const int number = WTERMSIG(status);
  return " was killed by signal " + std::to_string(number) + " (" + SignalName(number) + ")";
}

// What was written to a log since it had `from` bytes, the last of it.
std::string EndOf(const std::string& path, int64_t from) {
  constexpr int64_t kMost = 8192;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return "";
  const int64_t size = in.tellg();
  std::string text(static_cast<size_t>(std::clamp<int64_t>(size - from, 0, kMost)), '\0');
  in.seekg(size - static_cast<int64_t>(text.size()));
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text;
}

// The last line of a file in memory.
std::string LastLine(int fd) {
  std::string text(4096, '\0');
  const off_t size = lseek(fd, 0, SEEK_END);
  const ssize_t got = size <= 0 ? 0
                                : pread(fd, text.data(), text.size(),
                                        std::max<off_t>(0, size - static_cast<off_t>(text.size())));
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

// Where a child finds that file.
constexpr int kReport = 3;

}  // namespace

std::string SignalName(int number) {
  const char* name = ::sigabbrev_np(number);
  return name == nullptr ? "signal " + std::to_string(number) : "SIG" + std::string(name);
}

Launcher::~Launcher() {
  if (!outlive_) EndAll(Duration{0}, std::chrono::milliseconds(500));
}

Status Launcher::Start(int64_t place, const std::vector<std::string>& argv, const std::string& log,
                       Keys keys) {
  if (access(argv[0].c_str(), X_OK) != 0) {
    return NotFound(argv[0] + ": cannot be started (" + std::strerror(errno) +
                    "); build it (make build) or set cluster.worker_dir to the folder that has it");
  }
  std::error_code error_of_size;
  const auto before = std::filesystem::file_size(log, error_of_size);
  const int64_t log_bytes = error_of_size ? 0 : static_cast<int64_t>(before);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const int report = memfd_create("report", MFD_CLOEXEC);
  if (report >= 0) posix_spawn_file_actions_adddup2(&actions, report, kReport);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Own process group: Ctrl-C in the terminal reaches the controller alone, which ends them in order.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  std::vector<std::string> words = argv;
  words.push_back("--parent=" + std::to_string(outlive_ ? 0 : getpid()));
  words.push_back("--report=" + std::to_string(report < 0 ? -1 : kReport));
  std::vector<char*> pointers;
  for (std::string& w : words) pointers.push_back(w.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, argv[0].c_str(), &actions, &attributes, pointers.data(),
                                EnvironmentOfWorkers(keys).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    if (report >= 0) close(report);
    return Unavailable(argv[0] + ": cannot be started (" + std::strerror(error) + ")");
  }
  children_[pid] = {place, PeakResidentBytes(), log, log_bytes, report};
  return OkStatus();
}

void Launcher::Adopt(int64_t place, pid_t pid) {
  if (pid <= 1 || pid == getpid() || children_.contains(pid) || Pid(place) != 0) return;
  const int watch = pidfd_open(pid, 0);
  if (watch >= 0) children_[pid] = {.place = place, .watch = watch};
}

std::vector<Ended> Launcher::Reap() {
  std::vector<Ended> ended;
  for (auto it = children_.begin(); it != children_.end();) {
    if (const int watch = it->second.watch; watch >= 0) {
      pollfd over{.fd = watch, .events = POLLIN, .revents = 0};
      if (poll(&over, 1, /*timeout=*/0) <= 0) {
        ++it;
        continue;
      }
      Close(it->second);
      ended.push_back({.place = it->second.place,
                       .pid = it->first,
                       .why = "process " + std::to_string(it->first) + " ended or was killed"});
      it = children_.erase(it);
      continue;
    }
    int status = 0;
    struct rusage usage {};
    const pid_t pid = wait4(it->first, &status, WNOHANG, &usage);
    if (pid == 0) {
      ++it;
      continue;
    }
    const bool in_order = pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    std::string why = "process " + std::to_string(it->first) + HowItEnded(pid > 0, status);
    // What was killed from outside had no time to say why.
    const bool killed = pid > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    std::string blames = it->second.report < 0 ? "" : LastLine(it->second.report);
    if (!killed) {
      const std::string said = WithoutHow(observe::LastWords(EndOf(it->second.log, it->second.log_bytes)));
      // A plug-in that calls _exit(0) ends it in order, too.
      if (!said.empty() && (!in_order || !blames.empty())) why += ": " + said;
    }
    // The system counts what we held when we started it: what is no more than that says nothing of the child.
    const int64_t peak = usage.ru_maxrss * 1024;
    ended.push_back(
        {.place = it->second.place,
         .pid = it->first,
         .in_order = in_order,
         .exit_status = pid > 0 && WIFEXITED(status) ? std::optional(WEXITSTATUS(status)) : std::nullopt,
         .why = std::move(why),
         .blames = std::move(blames),
         .peak_bytes = peak > it->second.ours ? peak : 0});
    Close(it->second);
    it = children_.erase(it);
  }
  return ended;
}

void Launcher::Kill(int64_t place, int signal) {
  for (const auto& [pid, at] : children_) {
    if (at.place == place) Signal(pid, at, signal);
  }
}

void Launcher::Signal(pid_t pid, const Child& child, int signal) {
  if (child.watch >= 0) {
    pidfd_send_signal(child.watch, signal, nullptr, 0);
  } else {
    kill(pid, signal);
  }
}

void Launcher::Close(const Child& child) {
  for (const int fd : {child.report, child.watch}) {
    if (fd >= 0) close(fd);
  }
}

pid_t Launcher::Pid(int64_t place) const {
  for (const auto& [pid, at] : children_) {
    if (at.place == place) return pid;
  }
  return 0;
}

std::vector<Ended> Launcher::EndAll(Duration by_themselves, Duration asked) {
  std::vector<Ended> all;
  const auto wait = [&](Duration patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!children_.empty() && std::chrono::steady_clock::now() < until) {
      for (Ended& ended : Reap()) all.push_back(std::move(ended));
      if (!children_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  wait(by_themselves);
  for (const auto& [pid, child] : children_) Signal(pid, child, SIGTERM);
  wait(asked);
  for (const auto& [pid, child] : children_) Signal(pid, child, SIGKILL);
  wait(kKilled);
  for (const auto& [pid, child] : children_) Close(child);
  children_.clear();
  return all;
}

void BeginWorker(const StartedBy& by) {
  RunningCall::TellCrashes(by.report);
  if (by.parent == 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != by.parent) _exit(0);  // it died before we asked
}

}  // namespace tidepool::workers
