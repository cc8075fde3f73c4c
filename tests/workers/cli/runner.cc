#include "tests/workers/cli/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "workers/cli/command.h"
#include "workers/cli/usage.h"

namespace tidepool::workers {

// main.cc has it in the program.
void Fail(CommandContext& context, const Status& status, int exit_code) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  context.exit_code = exit_code;
}

CliResult RunCli(const std::vector<std::string>& words) {
  CLI::App app("tidepool");
  app.require_subcommand(1);
  CommandContext context;
  context.self_path = std::filesystem::read_symlink("/proc/self/exe").string();
  AddConfigCommands(app, context);
  AddInspectCommands(app, context);
  AddTopCommand(app, context);
  AddJournalCommand(app, context);
  AddModelCommands(app, context);
  AddEvalCommand(app, context);
  AddRunsCommand(app, context);
  AddSamplesCommand(app, context);
  AddPruneCommand(app, context);
  AddCompareCommand(app, context);
  AddSimulateCommand(app, context);
  AddPlanCommand(app, context);
  AddRegistryCommands(app, context);
  AddDoctorCommand(app, context);
  AddHostCommands(app, context);
  CliResult result;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them in reverse
    result.exit_code = context.exit_code;
  } catch (const CLI::ParseError& e) {
    result.exit_code = e.get_exit_code() == 0 ? app.exit(e) : 2;
    if (result.exit_code != 0) std::fprintf(stderr, "%s\n", UsageError(app, e).c_str());
  }
  std::fflush(stdout);
  result.out = testing::internal::GetCapturedStdout();
  result.err = testing::internal::GetCapturedStderr();
  return result;
}

ScratchFolder::ScratchFolder() : before_(std::filesystem::current_path().string()) {
  std::string pattern = testing::TempDir() + "tidepool-cli-XXXXXX";
  path_ = mkdtemp(pattern.data());
  std::filesystem::current_path(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  std::filesystem::current_path(before_, error);
  std::filesystem::remove_all(path_, error);
}

void ScratchFolder::Write(const std::string& name, const std::string& text) const {
  const std::filesystem::path to = std::filesystem::path(path_) / name;
  std::filesystem::create_directories(to.parent_path());
  std::ofstream(to) << text;
}

}  // namespace tidepool::workers
