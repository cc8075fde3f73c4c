#pragma once
// What another program says, for commands that look at the machine.

#include <string>
#include <vector>

namespace tidepool::workers {

struct ProgramOutput {
  int status = -1;   // exit status; -1: not started, killed or timed out
  std::string text;  // stdout and stderr, at most 64 KiB
};

// Runs it to its end; coreutils' timeout kills it after `seconds`.
ProgramOutput RunProgram(const std::vector<std::string>& argv, int seconds);

}  // namespace tidepool::workers
