#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/config/load.h"
#include "core/config/render.h"
#include "core/observe/progress.h"
#include "core/observe/report.h"
#include "workers/cli/command.h"
#include "workers/cli/plan_text.h"
#include "workers/cli/run_status.h"
#include "workers/controller/disk_thread.h"
#include "workers/controller/job.h"

namespace tidepool::workers {
namespace {

std::atomic<int> stop_signals{0};
void OnSignal(int) { stop_signals.fetch_add(1); }

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  bool resume = false, fresh = false, dry_run = false;
  std::string run_dir, run_name;
};

void Train(CommandContext& context, const TrainOptions& options) {
  auto loaded = config::LoadConfig(options.config, options.overrides);
  if (!loaded.ok()) return Fail(context, loaded.status());
  for (const std::string& warning : loaded->warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  if (options.dry_run) {
    if (const Status inputs = CheckInputs(*loaded); !inputs.ok()) return Fail(context, inputs);
    std::printf("%s\n%s", config::ResolvedYaml(*loaded).c_str(), DescribePlan(loaded->config).c_str());
    return;
  }
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // The terminal is closed; nohup has it ignored.
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);

  const auto start = std::chrono::steady_clock::now();
  // A terminal that is held (Ctrl-S), or a pipe that nobody reads, holds up what is shown, and not the run.
  const auto progress = std::make_shared<observe::Progress>(stdout, observe::IsTerminal(stdout));
  DiskThread terminal;
  JobRequest request;
  request.loaded = std::move(*loaded);
  request.run_dir = options.run_dir;
  request.run_name = options.run_name;
  request.self_path = context.self_path;
  request.resume = options.resume;
  request.fresh = options.fresh;
  request.stop_signals = &stop_signals;
  request.say = [&](const std::string& line) {
    terminal.Do("terminal", [progress, line](const DiskThread::Say&) { progress->Say(line); });
  };
  request.on_progress = [&, name = request.loaded.config.name](const std::string& phase,
                                                               observe::StatusFile status) {
    if (terminal.Busy()) return;
    status.name = name;
    if (!phase.empty()) status.phase = phase + ", " + status.phase;
    const TimePoint now{std::chrono::steady_clock::now() - start};
    terminal.Do("terminal",
                [progress, status, now](const DiskThread::Say&) { progress->Update(status, now); });
  };
  const auto outcome = RunJob(request);
  terminal.Do("terminal", [progress](const DiskThread::Say&) { progress->Finish(); });
  (void)terminal.Drain(DiskThread::kPatience);
  if (!outcome.ok()) return Fail(context, outcome.status());
  if (!outcome->already_finished && !outcome->result.disk_hangs) {
    const Status written = observe::WriteReport(outcome->run_dir);
    if (!written.ok()) std::fprintf(stderr, "warning: report: %s\n", written.message().c_str());
  }
  const RunResult& r = outcome->result;
  if (r.held_out) {
    for (const std::string& line : observe::HeldOutLines(*r.held_out, r.steps))
      std::printf("held-out %s\n", line.c_str());
  }
  if (r.paced_note) std::printf("%s\n", r.paced_note->c_str());
  std::printf("run: %s\n", outcome->run_dir.c_str());
  if (r.stopped && r.exit == 0) {
    std::printf("stopped at step %lld (%s); go on with: %s\n", static_cast<long long>(r.steps), r.why.c_str(),
                ResumeHint(outcome->run_dir).c_str());
  }
  if (outcome->exit_code != 0) std::fprintf(stderr, "%s\n", outcome->why.c_str());
  context.exit_code = outcome->exit_code;
}

}  // namespace

void AddTrainCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Run a job");
  command->add_option("config", options->config, "YAML file of the job")->required();
  command->add_option("overrides", options->overrides, "a.b=c, last wins");
  command->add_flag("--resume", options->resume,
                    "Go on with the newest unfinished run of this name (or the one in --run-dir)");
  command->add_flag("--dry-run", options->dry_run,
                    "Print the resolved config, the placement and the predicted memory; start nothing");
  const CLI::Validator not_empty(
      [](const std::string& text) { return text.empty() ? "is empty; name one, or leave it out" : ""; }, "");
  CLI::Option* run_dir =
      command->add_option("--run-dir", options->run_dir, "Run directory; default runs/<name>-<utc time>")
          ->check(not_empty);
  command->add_flag("--fresh", options->fresh, "With --run-dir: start over, the old run is moved aside")
      ->needs(run_dir);
  command->add_option("--run-name", options->run_name, "Name instead of the config's")->check(not_empty);
  command->footer("Example: tidepool train configs/quickstart.yaml seed=2 train.steps=40");
  command->callback([options, &context] { Train(context, *options); });
}

}  // namespace tidepool::workers
