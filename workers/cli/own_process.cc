#include "workers/cli/own_process.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/base/child_call.h"
#include "core/base/limited_call.h"
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
  const int words = ::memfd_create("last_words", MFD_CLOEXEC);
  ChildEnd how;
  const auto code = InChild(
      [&](const ChildNote& note) {
        note("it", kNoLimit);
        RunningCall::TellCrashes();  // of this process, too
        if (words >= 0) RunningCall::TellOnlyIn("/proc/self/fd/" + std::to_string(words));
        LimitedCall::WatchThisProcess();
        const int returned = part();
        std::fflush(nullptr);
        return std::to_string(returned);
      },
      &how);
  PartEnd end;
  if (words >= 0) {
    end.words = WordsIn(words);
    ::close(words);
  }
  if (code.ok()) {
    end.code = std::atoi(code->c_str());
  } else if (code.status().code() == StatusCode::kUnavailable) {  // what ends it ends the command, too
    end.code = part();
  } else {
    end.code = 3;
    end.signal = how.signal;
    if (!end.words.empty()) return end;
    if (how.signal) {
      end.words = "its process was killed by signal " + std::to_string(*how.signal);
    } else if (how.exit_status) {
      end.words = "a plug-in that it names ended the process with exit status " +
                  std::to_string(*how.exit_status) + "; correct it and build again";
    } else {
      end.words = code.status().message();
    }
  }
  return end;
}

}  // namespace tidepool::workers
