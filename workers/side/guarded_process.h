#pragma once
// A program of somebody else's that lives no longer than whoever started it, with all that it has started.
//
// Between the two stands a guard, this same program with another command (RunGuard). It holds one end of a
// pipe. The other end closes when its owner wants no more, and when its owner was killed. Then the guard ends
// the program, its process group, and whatever has become its child by losing its own parents, and removes
// the folder. A guard that is killed takes the program itself along (PR_SET_PDEATHSIG). Neither has a
// descriptor of the owner's but where its words go; words that nobody reads there are dropped, and wait for
// nobody.

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace tidepool::workers {

// Of one thread at a time.
class GuardedProcess {
 public:
  struct Options {
    std::vector<std::string> command;  // program and arguments; a program without a '/' is looked for in PATH
    // Further variables of its environment; "{folder}" in a value stands for folder().
    std::vector<std::pair<std::string, std::string>> variables = {};
    int output = 2;          // where what it writes goes
    std::string guard = {};  // the program that knows RunGuard; empty: this process's own
  };
  // It may still turn out that there is no such program: Ended says so. kUnavailable: no process, no folder.
  static StatusOr<std::unique_ptr<GuardedProcess>> Start(const Options& options);
  ~GuardedProcess();  // ends it; waits a few seconds at most
  GuardedProcess(const GuardedProcess&) = delete;
  GuardedProcess& operator=(const GuardedProcess&) = delete;

  // Its owner's alone, and short enough for a socket's path.
  [[nodiscard]] const std::string& folder() const { return folder_; }
  // How it ended, and what it wrote last: "ended with exit status 1: no such module". Never waits.
  std::optional<std::string> Ended();

 private:
  GuardedProcess() = default;
  void ReadReport();

  std::string folder_, report_, ended_;
  pid_t guard_ = 0;
  int life_ = -1, told_ = -1;  // our ends of its pipes
};

// The guard's main: `folder` is removed at the end, `command` is what it guards. Its standard input is the
// pipe that keeps it alive, its standard output takes the report. Returns when nothing is left.
int RunGuard(const std::string& folder, const std::vector<std::string>& command);

}  // namespace tidepool::workers
