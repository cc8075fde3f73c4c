// tidepool-worker: a process that owns one device. Started by `tidepool train`, or by hand to join a run; for
// rewards that are models, a process that grades; and by `tidepool eval` to play a policy.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "workers/build_info.h"
#include "workers/controller/launcher.h"
#include "workers/device/device_worker.h"
#include "workers/device/gpus.h"
#include "workers/device/play_policy.h"
#include "workers/device/pool_worker.h"
#include "workers/side/judge_model.h"
#include "workers/side/reward_worker.h"

int main(int argc, char** argv) {
  using namespace tidepool::workers;
  CLI::App app("tidepool-worker: owns one device of a run (rollout and actor roles)");
  app.set_version_flag("--version", BuildInfo());
  app.require_subcommand(1);
  DeviceWorkerOptions options;
  StartedBy by;
  CLI::App* run = app.add_subcommand("run", "Attach to a run and serve it until it is over");
  run->add_option("--connect", options.address, "Address of the controller, host:port (see RUN/control.json)")
      ->required();
  run->add_option("--token-file", options.token_file, "RUN/security/device.token")->required();
  run->add_option("--run-id", options.run_id, "The run to join (see RUN/control.json)")->required();
  run->add_option("--place", options.place, "Worker place, 0 .. cluster.slots - 1; -1: any free one");
  run->add_option("--gpu", options.gpu,
                  "Which GPU of this host, from 0, where cluster.device is cuda; -1: the one of the place's "
                  "number");
  run->add_option("--control-file", options.control_file,
                  "RUN/control.json, to find the controller again after its restart");
  std::string pool;
  run->add_option("--pool", pool, "Socket of the process that computes for this one")->group("");
  run->footer(
      "Example: tidepool-worker run --connect 127.0.0.1:40123 --token-file runs/x/security/device.token "
      "--run-id x");
  RewardWorkerOptions reward_options;
  reward_options.open_model = OpenModelRewardHere;
  CLI::App* reward = app.add_subcommand("reward", "Attach to a run as a worker: reward")->group("");
  reward->add_option("--connect", reward_options.address)->required();
  reward->add_option("--token-file", reward_options.token_file)->required();
  reward->add_option("--run-id", reward_options.run_id)->required();
  reward->add_option("--place", reward_options.place);
  reward->add_option("--control-file", reward_options.control_file);
  PlayOptions play_options;
  CLI::App* play =
      app.add_subcommand("play", "Play episodes of a control task with a policy (`tidepool eval`)");
  play->add_option("--policy", play_options.policy, "Folder of the policy")->required();
  play->add_option("--environment", play_options.environment.name)->required();
  play->add_option("--option", play_options.environment.options, "Option of the environment: NAME VALUE");
  play->add_option("--max-episode-steps", play_options.environment.max_episode_steps, "0: the environment's");
  play->add_option("--seed", play_options.environment.seed);
  play->add_option("--step-timeout", play_options.step_timeout_s, "Seconds for a call of the environment");
  play->add_option("--address", play_options.address, "Where the instances of a service are served");
  play->add_option("--token-file", play_options.token_file, "That is shown there");
  play->add_option("--episodes", play_options.episodes);
  play->add_flag("--sampled", play_options.sampled, "Draw actions; else the most likely one");
  play->add_option("--actions-of", play_options.actions_of, "Episode whose actions are written");
  play->add_option("--out", play_options.out, "JSONL to write")->required();
  CLI::App* pools = app.add_subcommand("pool", "Compute for the runs of a sweep (`tidepool sweep`)");
  pools->add_option("--socket", pool, "Where they come, made by this process")->required();
  int64_t runs = 1;
  pools->add_option("--runs", runs, "How many there are")->required();
  CLI::App* gpus = app.add_subcommand("gpus", "Say as JSON which GPUs a job can use (`tidepool` asks)");
  for (CLI::App* command : {run, reward, play, pools}) {
    command->add_option("--parent", by.parent, "Process whose death ends this one; 0: none");
    command->add_option("--report", by.report,
                        "Open file for the plug-in that ends this process; negative: none");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (gpus->parsed()) {
    std::printf("%s\n", DescribeGpus().c_str());
    return 0;
  }
  BeginWorker(by);
  if (play->parsed()) {
    const tidepool::Status status = PlayPolicy(play_options);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
    return status.ok() ? 0 : status.code() == tidepool::StatusCode::kUnavailable ? 3 : 2;
  }
  if (reward->parsed()) return RunRewardWorker(reward_options);
  if (pools->parsed()) return RunPoolWorker(pool, runs);
  return pool.empty() ? RunDeviceWorker(options).exit_code : StandForSession(pool, options);
}
