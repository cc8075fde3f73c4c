#include "workers/controller/program_output.h"

#include <sys/wait.h>

#include <cstdio>
#include <regex>

namespace tidepool::workers {

ProgramOutput RunProgram(const std::vector<std::string>& argv, int seconds) {
  std::string command = "exec timeout --signal=KILL " + std::to_string(seconds);
  for (const std::string& word : argv)
    command += " '" + std::regex_replace(word, std::regex("'"), R"('\'')") + "'";
  ProgramOutput out;
  // waits: `seconds` at most, then timeout ends it
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return out;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    if (out.text.size() < (64U << 10)) out.text.append(buffer, n);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) out.status = WEXITSTATUS(status);
  while (!out.text.empty() && out.text.back() == '\n') out.text.pop_back();
  return out;
}

}  // namespace tidepool::workers
