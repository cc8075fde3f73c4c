#include "workers/cli/own_process.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "core/base/running_call.h"

namespace tidepool::workers {
namespace {

// The last line of what the part's end wrote.
std::string WordsIn(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(text.size()))) > 0;)
    text.append(buffer.data(), static_cast<size_t>(n));
  while (text.ends_with('\n')) text.pop_back();
  text.erase(0, text.rfind('\n') + 1);
  constexpr std::string_view kError = "error: ";
  return text.starts_with(kError) ? text.substr(kError.size()) : text;
}

}  // namespace

PartEnd InOwnProcess(const std::function<int()>& part) {
  std::fflush(nullptr);  // or the child would have it too
  const int words = ::memfd_create("last_words", MFD_CLOEXEC);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) {  // the part is done all the same; what ends it ends the command, too
    if (words >= 0) ::close(words);
    return {.code = part(), .signal = {}, .words = {}};
  }
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    RunningCall::TellCrashes();  // of this process, too
    if (words >= 0) RunningCall::TellIn("", "/proc/self/fd/" + std::to_string(words));
    const int code = part();
    std::fflush(nullptr);
    ::_exit(code);
  }
  int status = 0;
  // waits: the calls of plug-ins in it have limits, and whoever ends this process ends it
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  PartEnd end;
  if (words >= 0) {
    end.words = WordsIn(words);
    ::close(words);
  }
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
    end.code = 3;
    if (end.words.empty()) end.words = "its process was killed by signal " + std::to_string(*end.signal);
  } else {
    end.code = WEXITSTATUS(status);
  }
  return end;
}

}  // namespace tidepool::workers
