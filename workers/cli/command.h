#pragma once
// One file a group of commands; main.cc lists them. A command parses its options with CLI11 and sets
// the exit code (0 done, 1 internal, 2 usage or input, 3 ended abnormally, 4 check failed).

#include <CLI/CLI.hpp>
#include <string>

#include "core/base/status.h"

namespace tidepool::config {
struct LoadedConfig;
}

namespace tidepool::workers {

struct CommandContext {
  std::string self_path;  // of the running program
  int exit_code = 0;
};

// Prints the message on stderr as it is and sets the exit code.
void Fail(CommandContext& context, const Status& status, int exit_code = 2);
// The options of a command that takes a run or, with a token file, an address (SourceOf in run_status.h).
void AddRunOrAddress(CLI::App& command, std::string& run, std::string& token_file);
// config::TryGames. What it warns of goes to stderr.
Status CheckGames(config::LoadedConfig& loaded);

// From now on signals that ask the program to end are counted here, and do nothing else: SIGINT, SIGTERM, and
// SIGHUP unless it is ignored (nohup).
struct StopSignals;
const StopSignals& CatchStopSignals();

void AddTrainCommand(CLI::App& app, CommandContext& context);
void AddSweepCommand(CLI::App& app, CommandContext& context);
void AddConfigCommands(CLI::App& app, CommandContext& context);   // validate, config schema, config show
void AddInspectCommands(CLI::App& app, CommandContext& context);  // status, report, check
void AddTopCommand(CLI::App& app, CommandContext& context);
void AddJournalCommand(CLI::App& app, CommandContext& context);
void AddSamplesCommand(CLI::App& app, CommandContext& context);
void AddRunsCommand(CLI::App& app, CommandContext& context);
void AddPruneCommand(CLI::App& app, CommandContext& context);
void AddCompareCommand(CLI::App& app, CommandContext& context);
void AddDashboardCommand(CLI::App& app, CommandContext& context);
void AddModelCommands(CLI::App& app, CommandContext& context);  // generate, import, export
void AddServeCommand(CLI::App& app, CommandContext& context);
void AddEvalCommand(CLI::App& app, CommandContext& context);
void AddSimulateCommand(CLI::App& app, CommandContext& context);
void AddPlanCommand(CLI::App& app, CommandContext& context);
// models, tasks, algorithms, rewards, environments
void AddRegistryCommands(CLI::App& app, CommandContext& context);
void AddNewCommand(CLI::App& app, CommandContext& context);
void AddDoctorCommand(CLI::App& app, CommandContext& context);
void AddHostCommands(CLI::App& app, CommandContext& context);  // host, join-token, join, slurm, k8s
// Hidden: reward-worker and environment-worker, started by the launcher, or by hand, and the guard of
// services that those start.
void AddSideWorkerCommands(CLI::App& app, CommandContext& context);

}  // namespace tidepool::workers
