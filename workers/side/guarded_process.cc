#include "workers/side/guarded_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "core/observe/log.h"
#include "workers/worker_variables.h"

extern char** environ;

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// To end in order, once the owner wants no more; then it is killed.
constexpr seconds kOrderlyEnd{2};
// The kernel's, for processes that are killed.
constexpr seconds kKillPatience{3};
constexpr size_t kLastWordsBytes = 8192;
// Of what the program wrote and nobody has read yet; more is dropped.
constexpr size_t kMostUnread = 1 << 16;
// For whoever reads that, once the program has ended.
constexpr seconds kReadPatience{1};

std::string HowProgramEnded(int status) {
  if (!WIFSIGNALED(status)) return "ended with exit status " + std::to_string(WEXITSTATUS(status));
  const char* name = ::sigabbrev_np(WTERMSIG(status));
  return "was killed by signal " + std::to_string(WTERMSIG(status)) +
         (name == nullptr ? "" : std::string(" (SIG") + name + ")");
}

void WriteTextTo(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nobody reads: its words are lost, which ends nothing
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// Processes whose parent this one is.
std::vector<pid_t> ChildrenOfThis() {
  std::vector<pid_t> children;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(it->path() / "stat");
    std::string line;
    std::getline(in, line);
    const size_t after = line.rfind(')');  // a program's name may hold anything
    if (after == std::string::npos) continue;
    char state = 0;
    int parent = 0;
    if (std::sscanf(line.c_str() + after + 1, " %c %d", &state, &parent) == 2 && parent == ::getpid())
      children.push_back(static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10)));
  }
  return children;
}

[[noreturn]] void BecomeProgram(const std::vector<std::string>& command, pid_t guard, int output, int error) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != guard) ::_exit(127);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(nothing, 0);
  ::dup2(output, 1);
  ::dup2(output, 2);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  const int why = errno;
  (void)!::write(error, &why, sizeof(why));
  ::_exit(127);
}

// What the guard knows of the program.
struct GuardedProgram {
  pid_t pid = 0;
  int output = -1, exec_error = -1;
  std::string last;    // of what it wrote
  std::string unread;  // of what it wrote: is to go on to standard error
  std::optional<int> status;

  // Takes what is there now. False: nobody will write any more.
  bool Copy() {
    std::array<char, 4096> buffer;
    // waits: it is non-blocking
    const ssize_t n = ::read(output, buffer.data(), buffer.size());
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    if (n == 0) return false;
    const std::string_view text(buffer.data(), static_cast<size_t>(n));
    if (unread.size() + text.size() <= kMostUnread) unread.append(text);
    last.append(text);
    if (last.size() > kLastWordsBytes) last.erase(0, last.size() - kLastWordsBytes);
    return true;
  }
  // Hands on what standard error takes now: a guard that waited for a reader would not see its owner go. That
  // is a description of others, too, so it is not made non-blocking.
  void HandOn() {
    pollfd end{.fd = 2, .events = POLLOUT, .revents = 0};
    if (unread.empty() || ::poll(&end, 1, /*timeout=*/0) <= 0) return;
    const size_t most = std::min<size_t>(unread.size(), PIPE_BUF);  // there is room for that
    ssize_t n = ::send(2, unread.data(), most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == ENOTSOCK) n = ::write(2, unread.data(), most);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    unread.erase(0, n > 0 ? static_cast<size_t>(n) : unread.size());  // nobody is there: which ends nothing
  }
  void Reap() {
    int how = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &how, WNOHANG)) > 0;) {
      if (ended == pid) status = how;
    }
  }
  [[nodiscard]] std::string Report() const {
    int why = 0;
    if (::read(exec_error, &why, sizeof(why)) == static_cast<ssize_t>(sizeof(why)))
      return std::string("cannot be started (") + std::strerror(why) + ")";
    const int how = status.value_or(0);
    // What was killed from outside had no time to say why.
    const bool killed = WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL;
    const std::string said = killed ? "" : observe::LastWords(last);
    return HowProgramEnded(how) + (said.empty() ? "" : ": " + said);
  }
};

void KillAllOf(GuardedProgram& program) {
  const auto until = Clock::now() + kKillPatience;
  do {
    ::kill(-program.pid, SIGKILL);
    for (const pid_t child : ChildrenOfThis()) ::kill(child, SIGKILL);
    program.Reap();
    if (ChildrenOfThis().empty()) return;
    std::this_thread::sleep_for(milliseconds(2));
  } while (Clock::now() < until);
}

}  // namespace

StatusOr<std::unique_ptr<GuardedProcess>> GuardedProcess::Start(const Options& options) {
  std::unique_ptr<GuardedProcess> process(new GuardedProcess());
  const char* temporary = std::getenv("TMPDIR");
  // A socket's path has 107 bytes at most.
  std::string pattern =
      temporary != nullptr && *temporary == '/' && std::strlen(temporary) < 60 ? temporary : "/tmp";
  pattern += "/tidepool-service-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr)
    return Unavailable(pattern + ": no folder for a service's socket: " + std::strerror(errno));
  process->folder_ = pattern;
  std::array<int, 2> life{}, told{};
  const auto failed = [&](const char* what, int error) {
    std::error_code ignored;  // an empty folder that stays harms nobody
    std::filesystem::remove_all(process->folder_, ignored);
    process->folder_.clear();
    return Unavailable(std::string("no process for a service: ") + what + ": " + std::strerror(error));
  };
  if (::pipe2(life.data(), O_CLOEXEC) != 0) return failed("pipe2", errno);
  if (::pipe2(told.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    const int error = errno;
    ::close(life[0]), ::close(life[1]);
    return failed("pipe2", error);
  }
  process->life_ = life[1];
  process->told_ = told[0];
  std::vector<std::string> words = {options.guard, "guard-service", process->folder_, "--"};
  if (words[0].empty()) {
    std::error_code error;
    words[0] = std::filesystem::read_symlink("/proc/self/exe", error).string();
  }
  words.insert(words.end(), options.command.begin(), options.command.end());
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {  // in a trial it is the caller's
    if (IsForWorkers(*entry)) variables.emplace_back(*entry);
  }
  for (auto [name, value] : options.variables) {
    if (const size_t at = value.find("{folder}"); at != std::string::npos)
      value.replace(at, 8, process->folder_);
    std::erase_if(variables, [&](const std::string& v) { return v.starts_with(name + "="); });
    variables.push_back(name + "=" + value);
  }
  std::vector<char*> argv, env;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) env.push_back(variable.data());
  argv.push_back(nullptr);
  env.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, life[0], 0);
  posix_spawn_file_actions_adddup2(&actions, told[1], 1);
  posix_spawn_file_actions_adddup2(&actions, options.output, 2);
  // Logs, and pipes of whoever has started its owner, are no business of the two.
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Own process group: Ctrl-C in a terminal reaches its owner, which ends it in order.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  const int error =
      posix_spawn(&process->guard_, words[0].c_str(), &actions, &attributes, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  ::close(life[0]);
  ::close(told[1]);
  if (error != 0) {
    process->guard_ = 0;
    return failed(words[0].c_str(), error);
  }
  return process;
}

GuardedProcess::~GuardedProcess() {
  if (life_ >= 0) ::close(life_);
  if (guard_ > 0) {
    // Longer than the guard's own.
    const auto until = Clock::now() + kOrderlyEnd + kKillPatience + kReadPatience + seconds(1);
    const auto last = until + seconds(1);
    for (bool killed = false; ::waitpid(guard_, nullptr, WNOHANG) == 0 && Clock::now() < last;) {
      if (!killed && Clock::now() > until) {
        ::kill(guard_, SIGKILL);  // and the kernel its program
        killed = true;
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
  if (told_ >= 0) ::close(told_);
  std::error_code ignored;  // of a guard that was killed; one that stays harms nobody
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

void GuardedProcess::ReadReport() {
  std::array<char, 1024> buffer;
  // waits: it is non-blocking
  for (ssize_t n = 0; (n = ::read(told_, buffer.data(), buffer.size())) > 0;)
    report_.append(buffer.data(), static_cast<size_t>(n));
}

std::optional<std::string> GuardedProcess::Ended() {
  if (!ended_.empty()) return ended_;
  int status = 0;
  if (guard_ <= 0 || ::waitpid(guard_, &status, WNOHANG) == 0) return std::nullopt;
  guard_ = 0;
  ReadReport();
  ended_ = report_.empty() ? "is gone, as its guard " + HowProgramEnded(status) : report_;
  return ended_;
}

int RunGuard(const std::string& folder, const std::vector<std::string>& command) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_IGN);
  std::array<int, 2> output{}, error{};
  const pid_t me = ::getpid();
  GuardedProgram program;
  const bool piped = ::pipe2(output.data(), O_CLOEXEC) == 0 && ::pipe2(error.data(), O_CLOEXEC) == 0;
  program.pid = piped ? ::fork() : -1;
  if (program.pid == 0) BecomeProgram(command, me, output[1], error[1]);
  const auto end = [&folder](const std::string& report) {
    std::error_code ignored;  // a folder that stays harms nobody
    std::filesystem::remove_all(folder, ignored);
    WriteTextTo(1, report);
    return 0;
  };
  if (program.pid < 0) return end(std::string("cannot be started (") + std::strerror(errno) + ")");
  ::setpgid(program.pid, program.pid);
  ::close(output[1]);
  ::close(error[1]);
  program.output = output[0];
  program.exec_error = error[0];
  ::fcntl(program.output, F_SETFL, O_NONBLOCK);
  ::fcntl(program.exec_error, F_SETFL, O_NONBLOCK);
  bool wanted = true, writes = true;
  Clock::time_point until{};
  while (!program.status) {
    std::array<pollfd, 2> ends{pollfd{.fd = wanted ? 0 : -1, .events = POLLIN, .revents = 0},
                               pollfd{.fd = writes ? program.output : -1, .events = POLLIN, .revents = 0}};
    const int n = ::poll(ends.data(), ends.size(), /*timeout=*/program.unread.empty() ? 20 : 1);
    if (n > 0 && ends[0].revents != 0) {  // nothing is ever written there: it is closed
      wanted = false;
      until = Clock::now() + kOrderlyEnd;
      ::kill(-program.pid, SIGTERM);
    }
    if (n > 0 && ends[1].revents != 0) writes = program.Copy();
    program.HandOn();
    program.Reap();
    if (!wanted && Clock::now() > until) break;
  }
  KillAllOf(program);
  if (writes) {
    for (int more = 0; more < 64 && program.Copy(); ++more) {
      pollfd rest{.fd = program.output, .events = POLLIN, .revents = 0};
      if (::poll(&rest, 1, /*timeout=*/0) <= 0) break;
    }
  }
  for (const auto last = Clock::now() + kReadPatience; !program.unread.empty() && Clock::now() < last;) {
    program.HandOn();
    pollfd rest{.fd = 2, .events = POLLOUT, .revents = 0};
    if (!program.unread.empty()) (void)::poll(&rest, 1, /*timeout=*/20);
  }
  return end(program.Report());
}

}  // namespace tidepool::workers
