#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/disk_thread.h"
#include "core/base/limited_call.h"
#include "core/base/real_file_system.h"
#include "core/config/load.h"
#include "core/config/render.h"
#include "core/config/resume.h"
#include "core/config/schema.h"
#include "core/device/cpu/kernels.h"
#include "core/observe/progress.h"
#include "core/observe/report.h"
#include "core/storage/checkpoint.h"
#include "core/storage/run_directory.h"
#include "workers/cli/command.h"
#include "workers/cli/data_text.h"
#include "workers/cli/host_cores.h"
#include "workers/cli/plan_text.h"
#include "workers/cli/run_lookup.h"
#include "workers/cli/run_status.h"
#include "workers/controller/job.h"
#include "workers/controller/launcher.h"
#include "workers/device/disk_plan.h"
#include "workers/device/file_plan.h"

namespace tidepool::workers {
namespace {

StopSignals stop_signals;
void OnSignal(int number) {
  stop_signals.last.store(number);
  stop_signals.count.fetch_add(1);
}

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::vector<std::string> typed;  // the overrides as they were given
  bool resume = false, take_over = false, fresh = false, dry_run = false;
  std::string run_dir, run_name, certificates, pool;
  StartedBy by;
};

namespace fs = std::filesystem;

// "start over with `tidepool train CONFIG --run-dir DIR --fresh`", by the config that was given, or the
// run's.
std::string StartOver(const TrainOptions& options) {
  std::error_code error;
  const bool of_run = !options.run_dir.empty() && !fs::is_regular_file(options.config, error);
  return "start over with `" +
         StartOverHint(of_run ? storage::RunPaths(options.run_dir).config() : options.config, options.run_dir,
                       options.typed) +
         "`";
}

constexpr const char* kNeedsConfig = "its config.yaml is needed to go on";

// The run that `config` of the command line means, if it means one: a run directory, its config.yaml, or,
// with --resume, the name of a run. Empty: a config.
StatusOr<std::string> RunMeant(const TrainOptions& options) {
  if (options.take_over && !options.resume)
    return InvalidArgument(
        "--take-over: goes on with a run that another controller holds; give --resume too");
  const fs::path path = options.config;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (!options.resume && options.fresh) {
      const std::string dir = options.run_dir.empty() ? options.config : options.run_dir;
      return InvalidArgument(options.config + ": a folder, where --fresh needs a config in YAML; `" +
                             StartOverHint(storage::RunPaths(options.config).config(), dir, options.typed) +
                             "` starts its run over");
    }
    if (!options.resume) {
      return InvalidArgument(options.config + ": a folder; go on with a run by `" +
                             ResumeHint(options.config) + "`, or name a config in YAML");
    }
    return FindRunToResume(options.config, kNeedsConfig);
  }
  if (!options.resume) {
    const auto run = fs::exists(path, error) || path.has_extension() ? NotFound("") : FindRun(options.config);
    if (!run.ok() || run->dir.empty()) return std::string();
    return InvalidArgument(options.config + ": no config of this name; the run " + run->dir +
                           " goes on with `" + ResumeHint(run->dir) + "`");
  }
  if (fs::exists(path, error)) {
    const std::string parent = path.parent_path().empty() ? "." : path.parent_path().string();
    const bool of_run =
        path.filename() == "config.yaml" && fs::exists(storage::RunPaths(parent).lock(), error);
    return of_run ? parent : std::string();
  }
  if (path.extension() == ".yaml" || path.extension() == ".yml") return std::string();
  return FindRunToResume(options.config, kNeedsConfig);
}

// The job, and in `options.run_dir` the folder of the run that it goes on with.
StatusOr<config::LoadedConfig> LoadJob(TrainOptions& options) {
  options.typed = options.overrides;
  TP_ASSIGN_OR_RETURN(const std::string run, RunMeant(options));
  if (options.fresh && options.run_dir.empty()) {
    return InvalidArgument("--fresh: requires --run-dir, the folder of the run that is moved aside: `" +
                           StartOverHint(options.config, "DIR", options.typed) + "`");
  }
  if (run.empty()) {
    if (!options.run_name.empty())
      options.overrides.push_back("name=" + config::TextAsYaml(options.run_name));
    TP_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::LoadConfig(options.config, options.overrides));
    if (options.resume && options.run_dir.empty()) {
      TP_ASSIGN_OR_RETURN(options.run_dir, FindRunOfConfig(loaded.config.name));
    }
    return loaded;
  }
  if (!options.run_dir.empty() && !IsSameFolder(options.run_dir, run)) {
    return InvalidArgument("--run-dir: " + options.run_dir + " is not " + run +
                           ", the run to go on with; leave --run-dir out");
  }
  if (!options.run_name.empty())
    return InvalidArgument("--run-name: names a new run, but " + run + " goes on; leave it out");
  options.run_dir = run;
  return config::LoadRunConfig(storage::RunPaths(run).config(), options.overrides);
}

// The disk that the run's folder will be on, and whether the run fits there.
void DescribeDisk(const TrainOptions& options, const JobConfig& config) {
  RealFileSystem real;
  std::string dir = options.run_dir.empty() ? storage::RunDirectoryOptions().root : options.run_dir;
  for (std::error_code error; !dir.empty() && !fs::exists(dir, error);) dir = fs::path(dir).parent_path();
  if (dir.empty()) dir = ".";
  const auto free = real.FreeBytes(dir);
  const auto plan = PlanDisk(config);
  if (!free.ok() || !plan.ok()) return;
  std::printf("disk free    %s where %s is\n", BytesText(*free).c_str(), dir.c_str());
  const storage::SpaceNeed need = RoomFor(*plan, config, options.resume ? options.run_dir : "");
  std::string warning;
  if (const Status fits = storage::CheckSpace(real, dir, need); !fits.ok()) {
    warning = "this run would be refused: " + fits.message();
  } else if (!options.resume) {
    warning = SpaceWarning(*plan, dir, *free);
  }
  if (!warning.empty()) std::fprintf(stderr, "warning: %s\n", warning.c_str());
}

void DryRun(CommandContext& context, const TrainOptions& options, const config::LoadedConfig& loaded) {
  if (const Status inputs = CheckInputs(loaded, options.resume && HasCheckpoint(options.run_dir));
      !inputs.ok())
    return Fail(context, inputs);
  const std::string before = storage::RunPaths(options.run_dir).config();
  std::error_code error;
  if (options.resume && fs::exists(before, error)) {
    RealFileSystem real;
    const auto state = storage::ReadRunOnDisk(real, options.run_dir);
    if (!state.ok()) return Fail(context, state.status());
    const auto old = config::ReadRunConfig(before);
    if (!old.ok()) return Fail(context, old.status());
    const auto changes = config::ChangesOnResume(*old, loaded, state->complete ? 0 : state->last_step.value,
                                                 StartOver(options));
    if (!changes.ok()) return Fail(context, changes.status().At(options.run_dir));
    const bool over = state->Finished(loaded.config.train.steps, loaded.config.eval.stop_at_accuracy);
    std::printf("# %s %s; %s\n", over ? "No step is left of" : "Goes on with", options.run_dir.c_str(),
                changes->empty() ? "nothing in its config changes" : "its config changes:");
    for (const config::Difference& d : *changes) std::printf("#   %s\n", d.Told().c_str());
  }
  std::printf("%s\n%s", config::SetYaml(loaded).c_str(), DescribePlan(loaded.config).c_str());
  DescribeDisk(options, loaded.config);
  if (const Status files = CheckFileLimit(loaded.config); !files.ok())
    std::fprintf(stderr, "warning: this run would be refused: %s\n", files.message().c_str());
  (void)device::BestIsa();  // ends the program here if TIDEPOOL_CPU_ISA is misspelt
  WarnOfMemory(loaded);
  WarnOfGpus(loaded, context.self_path);
  const auto data = DataOf(loaded.config);
  if (!data.ok()) return Fail(context, data.status());
  PrintData(*data);
}

// "checkpoint: runs/x/checkpoints/step_7", and what becomes of steps behind it.
std::string CheckpointNote(const std::string& dir, const RunResult& r) {
  if (!r.checkpoint_step) return "no checkpoint, so it begins anew";
  const std::string at = std::to_string(*r.checkpoint_step);
  const std::string path =
      storage::RunPaths(dir).checkpoints() + "/" + storage::CheckpointName(StepNumber{*r.checkpoint_step});
  if (*r.checkpoint_step >= r.steps) return "checkpoint: " + path;
  return "newest checkpoint: " + path + ", so it goes back to step " + at;
}

// The report reads the whole run, which takes a while after a long one. A signal leaves it out, and so does a
// disk that has not given all of it after `patience`: then false, and `reader` is still at it.
bool WriteReport(DiskThread& reader, const std::string& dir, std::chrono::seconds patience) {
  const int before = stop_signals.count.load();
  const auto start = std::chrono::steady_clock::now();
  const auto written = std::make_shared<Status>();
  reader.Do("report", [dir, written](const DiskThread::Say&) { *written = observe::WriteReport(dir); });
  for (bool told = false; !reader.Drain(std::chrono::milliseconds(50));) {
    if (stop_signals.count.load() > before) {
      std::fprintf(stderr, "report.html is left out; `tidepool report %s` writes it\n", dir.c_str());
      return false;
    }
    if (std::chrono::steady_clock::now() - start > patience) {
      std::fprintf(stderr,
                   "warning: report.html is left out: %s has not been read within %lld s; `tidepool report "
                   "%s` writes it\n",
                   dir.c_str(), static_cast<long long>(patience.count()), dir.c_str());
      return false;
    }
    if (told || std::chrono::steady_clock::now() - start < std::chrono::seconds(1)) continue;
    told = true;
    std::printf("writing report.html of the whole run; a signal (Ctrl-C) leaves it out\n");
    std::fflush(stdout);
  }
  if (!written->ok()) std::fprintf(stderr, "warning: report: %s\n", written->message().c_str());
  return true;
}

void Train(CommandContext& context, TrainOptions& options) {
  if (options.by.parent != 0) BeginWorker(options.by);
  auto loaded = LoadJob(options);
  if (!loaded.ok()) return Fail(context, loaded.status());
  for (const std::string& warning : loaded->warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  WarnOfThreads(*loaded);
  if (const Status games = CheckGames(*loaded); !games.ok()) return Fail(context, games);
  if (options.dry_run) return DryRun(context, options, *loaded);
  (void)CatchStopSignals();
  signal(SIGPIPE, SIG_IGN);
  // While a call of a plug-in holds the controller's thread, which hears signals: the first one is told and
  // waited for, the second one ends the process.
  LimitedCall::StopAt({.signals = [] { return stop_signals.count.load(); }});

  const auto start = std::chrono::steady_clock::now();
  // A terminal that is held (Ctrl-S), or a pipe that nobody reads, holds up what is shown, and not the run.
  const auto progress = std::make_shared<observe::Progress>(stdout, observe::IsTerminal(stdout));
  DiskThread terminal;
  JobRequest request;
  request.loaded = std::move(*loaded);
  request.run_dir = options.run_dir;
  request.self_path = context.self_path;
  request.certificates = options.certificates;
  request.pool = options.pool;
  request.resume = options.resume;
  request.take_over = options.take_over;
  request.fresh = options.fresh;
  request.start_over = StartOver(options);
  request.go_on = ResumeHint;
  request.stop_signals = &stop_signals;
  request.say = [&](const std::string& line) {
    terminal.Do("terminal", [progress, line](const DiskThread::Say&) { progress->Say(line); });
  };
  request.on_progress = [&, name = request.loaded.config.name](const std::string& phase,
                                                               observe::StatusFile status) {
    if (status.state == "running" && terminal.Busy()) return;  // how it ended is said once
    status.name = name;
    if (!phase.empty()) status.phase = phase + ", " + status.phase;
    const TimePoint now{std::chrono::steady_clock::now() - start};
    terminal.Do("terminal",
                [progress, status, now](const DiskThread::Say&) { progress->Update(status, now); });
  };
  const auto outcome = RunJob(request);
  terminal.Do("terminal", [progress](const DiskThread::Say&) { progress->Finish(); });
  (void)terminal.Drain(DiskThread::kPatience);
  DiskThread reader;
  const bool report = outcome.ok() && !outcome->already_finished && !outcome->result.disk_hangs;
  // A run that failed may have failed by its disk.
  const bool report_left_out =
      report &&
      !WriteReport(reader, outcome->run_dir, std::chrono::seconds(outcome->result.exit == 0 ? 600 : 20));
  // What is left is for people to look at: a signal ends the program.
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler == OnSignal) signal(SIGHUP, SIG_DFL);
  if (!outcome.ok()) return Fail(context, outcome.status());
  const RunResult& r = outcome->result;
  if (r.held_out) {
    for (const std::string& line : observe::HeldOutLines(*r.held_out, r.steps))
      std::printf("held-out %s\n", line.c_str());
  }
  for (const std::string& line : observe::LossLines(r)) std::printf("%s\n", line.c_str());
  if (r.paced_note) std::printf("%s\n", r.paced_note->c_str());
  std::printf("run: %s\n", outcome->run_dir.c_str());
  if (r.stopped && r.exit == 0) {
    std::printf("stopped by a signal %sat step %lld of %lld; %s\ngo on with: %s\n",
                outcome->part_dir == outcome->run_dir ? "" : "in the warm start, ",
                static_cast<long long>(r.steps), static_cast<long long>(r.steps_wanted),
                CheckpointNote(outcome->part_dir, r).c_str(), ResumeHint(outcome->run_dir).c_str());
  }
  if (outcome->exit_code != 0) {
    // A controller whose run another one has taken over writes no summary.
    const bool gone = r.moved_to && r.moved_to->empty();
    if (!r.job.empty() && !gone) std::printf("go on with: %s\n", ResumeHint(outcome->run_dir).c_str());
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", outcome->why.c_str());
  }
  context.exit_code = outcome->exit_code;
  if (report_left_out) {  // without what an exit does in order: the reader uses what that takes away
    std::fflush(nullptr);
    std::_Exit(context.exit_code);
  }
}

}  // namespace

const StopSignals& CatchStopSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // The terminal is closed; nohup has it ignored.
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  return stop_signals;
}

void AddTrainCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Run a job");
  command
      ->add_option("config", options->config,
                   "YAML file of the job; with --resume also a run's folder or name")
      ->required();
  command->add_option("overrides", options->overrides, "a.b=c, last wins");
  command->add_flag(
      "--take-over", options->take_over,
      "With --resume: although another controller holds the run. For one that is frozen, or whose host "
      "cannot be reached: it can write nothing any more from then on");
  command->add_flag("--resume", options->resume,
                    "Go on with a run: the folder that is named, or of a name (a config has one) the newest "
                    "run under runs/ that is not finished, else the newest. By its own config, or by the "
                    "one that is given; what changes is told");
  command->add_flag("--dry-run", options->dry_run,
                    "Print what is set, placement, predicted memory and what the data hold; start nothing");
  const CLI::Validator not_empty(
      [](const std::string& text) { return text.empty() ? "is empty; name one, or leave it out" : ""; }, "");
  command->add_option("--run-dir", options->run_dir, "Run directory; default runs/<name>-<utc time>")
      ->check(not_empty);
  command->add_option(
      "--certificates", options->certificates,
      "Folder with the certificates of all roles where calls are encrypted, made elsewhere: "
      "authority.crt, controller.crt, controller.key and so on; default: the run makes its own");
  command->add_option("--pool", options->pool, "Folder of `tidepool sweep`, whose processes compute")
      ->group("");
  command->add_option("--parent", options->by.parent, "Process whose death ends this one; 0: none")
      ->group("");
  command->add_option("--report", options->by.report, "Open file for the plug-in that ends this process")
      ->group("");
  command->add_flag("--fresh", options->fresh, "With --run-dir: start over, the old run is moved aside");
  command->add_option("--run-name", options->run_name, "Name instead of the config's: name=N")
      ->check(not_empty);
  command->footer(
      "Example: tidepool train configs/quickstart.yaml seed=2 train.steps=40\n"
      "         tidepool train runs/quickstart-20261121T115502Z --resume train.steps=80");
  command->callback([options, &context] { Train(context, *options); });
}

}  // namespace tidepool::workers
