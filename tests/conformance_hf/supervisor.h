#pragma once
// Keeps a line-by-line program answering whatever happens inside it: the answers are made in a child process,
// and a child that dies, hangs or runs out of memory costs one request. The child is forked, so call this
// before any thread or library that does not outlive a fork.

#include <functional>
#include <string>

namespace tidepool::conformance_hf {

struct SupervisorOptions {
  double first_deadline_s = 170;  // of the first request of a child, which loads libraries
  double deadline_s = 110;
};

// Reads lines from standard input until its end, answers each on standard output, in order, flushed.
// `answer`: one line to one line (no newline inside), called in the child; whatever the child prints goes to
// standard error. `lost`: the answer to a line whose child was lost, called in the parent with the reason.
// Returns an exit code.
int Supervise(const SupervisorOptions& options, const std::function<std::string(const std::string&)>& answer,
              const std::function<std::string(const std::string& line, const std::string& why)>& lost);

}  // namespace tidepool::conformance_hf
