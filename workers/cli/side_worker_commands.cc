#include <memory>
#include <string>
#include <vector>

#include "workers/cli/command.h"
#include "workers/controller/launcher.h"
#include "workers/serve/agent_endpoint.h"
#include "workers/side/environment_worker.h"
#include "workers/side/guarded_process.h"
#include "workers/side/reward_worker.h"

namespace tidepool::workers {

void AddSideWorkerCommands(CLI::App& app, CommandContext& context) {
  struct Options : EnvironmentWorkerOptions {
    StartedBy by;
  };
  for (const bool environment : {false, true}) {
    const std::string role = environment ? "environment" : "reward";
    auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand(role + "-worker", "Attach to a run as a worker: " + role)->group("");
    command->add_option("--connect", options->address)->required();
    command->add_option("--token-file", options->token_file)->required();
    command->add_option("--run-id", options->run_id)->required();
    command->add_option("--place", options->place);
    command->add_option("--control-file", options->control_file);
    command->add_option("--parent", options->by.parent);
    command->add_option("--report", options->by.report);
    if (environment)
      command->add_flag("--vector", options->vector, "host the vectorised environments of a control task");
    command->callback([options, environment, &context] {
      BeginWorker(options->by);
      options->open_agents = OpenAgentEndpoint;
      context.exit_code = environment ? RunEnvironmentWorker(*options)
                                      : RunRewardWorker({static_cast<const SideWorkerOptions&>(*options)});
    });
  }
  struct Guarded {
    std::string folder;
    std::vector<std::string> command;
  };
  auto guarded = std::make_shared<Guarded>();
  CLI::App* guard =
      app.add_subcommand("guard-service", "Runs a program as long as standard input is open")->group("");
  guard->add_option("folder", guarded->folder)->required();
  guard->add_option("command", guarded->command)->required();
  guard->callback([guarded, &context] { context.exit_code = RunGuard(guarded->folder, guarded->command); });
}

}  // namespace tidepool::workers
