// tidepool: the command line, the controller, and the reward workers. Links no LibTorch.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/limited_call.h"
#include "core/base/names.h"
#include "core/tasks/task.h"
#include "workers/build_info.h"
#include "workers/cli/command.h"
#include "workers/cli/usage.h"

namespace tidepool::workers {

void Fail(CommandContext& context, const Status& status, int exit_code) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  context.exit_code = exit_code;
}

namespace {

// CLI11 says of a word that is no command that a command is missing.
bool IsNoCommand(const CLI::App& app, const std::string& word) {
  if (word.empty() || word.front() == '-') return false;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == word) return false;
    if (!command->get_group().empty()) names.push_back(command->get_name());  // no group: hidden
  }
  const std::string near = tidepool::Nearest(word, names);
  std::fprintf(
      stderr, "%s: no such command; %s\n", word.c_str(),
      near.empty() ? "`tidepool --help` lists them" : ("did you mean `tidepool " + near + "`?").c_str());
  return true;
}

}  // namespace
}  // namespace tidepool::workers

int main(int argc, char** argv) {
  using namespace tidepool::workers;
  tidepool::RunningCall::TellCrashes();  // commands call plug-ins in this process
  CLI::App app("Tidepool: reinforcement-learning post-training of language models, agents and policies");
  app.set_version_flag("--version", BuildInfo());
  app.require_subcommand(1);
  app.footer("Example: tidepool train configs/quickstart.yaml train.steps=40");
  CommandContext context;
  std::error_code error;
  context.self_path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  AddTrainCommand(app, context);
  AddSweepCommand(app, context);
  AddConfigCommands(app, context);
  AddModelCommands(app, context);
  AddEvalCommand(app, context);
  AddServeCommand(app, context);
  AddInspectCommands(app, context);
  AddTopCommand(app, context);
  AddJournalCommand(app, context);
  AddRunsCommand(app, context);
  AddSamplesCommand(app, context);
  AddPruneCommand(app, context);
  AddCompareCommand(app, context);
  AddDashboardCommand(app, context);
  AddSimulateCommand(app, context);
  AddPlanCommand(app, context);
  AddRegistryCommands(app, context);
  AddNewCommand(app, context);
  AddDoctorCommand(app, context);
  AddHostCommands(app, context);
  AddSideWorkerCommands(app, context);
  if (argc > 1 && IsNoCommand(app, argv[1])) return 2;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // CLI11 prints help and version on request (0) and usage errors; ours are exit code 2.
    if (e.get_exit_code() == 0) return app.exit(e);
    std::fprintf(stderr, "%s\n", UsageError(app, e).c_str());
    return 2;
  } catch (const tidepool::PluginThrew& threw) {
    std::fprintf(stderr, "error: %s; correct it and build again\n", threw.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "internal error: %s; please report it\n", e.what());
    return 1;
  }
  return context.exit_code;
}
