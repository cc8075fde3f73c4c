// `tidepool sweep`: runs that differ in some values, on one device.
//
// Each is a run as of `tidepool train`, with a controller, a journal and a folder of its own under the
// sweep's; one more process computes for all of them (workers/device/pool_worker.h). This one starts them,
// starts again what was killed, passes signals on, and tells how they ended.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/disk_thread.h"
#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/config/render.h"
#include "core/config/resume.h"
#include "core/observe/progress.h"
#include "core/observe/run_files.h"
#include "core/storage/run_directory.h"
#include "workers/cli/command.h"
#include "workers/cli/pool_pulse.h"
#include "workers/cli/run_status.h"
#include "workers/cli/sweep_plan.h"
#include "workers/cli/table.h"
#include "workers/controller/job.h"
#include "workers/controller/launcher.h"
#include "workers/controller/process.h"
#include "workers/controller/worker_command.h"
#include "workers/data/shared_arena.h"
#include "workers/device/disk_plan.h"
#include "workers/device/memory_proof.h"
#include "workers/net/auth.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using SweepClock = std::chrono::steady_clock;

constexpr auto kSweepLook = std::chrono::milliseconds(100);
constexpr int64_t kPoolPlace = -1, kWarmStartPlace = -2;  // of the launcher; runs count from 0
constexpr int kRestartsMost = 5;                          // of a controller that was killed, in a row
// Who has lived so long since does not count as killed in a row.
constexpr auto kSettled = std::chrono::minutes(10);
// What a controller has to end in order once it was told; it has deadlines of its own below that.
constexpr auto kStopped = std::chrono::minutes(15);
constexpr int kHurried = 3;  // signals: the third one ends what has not ended
// A pool that answers nobody for so long is killed.
constexpr auto kPoolSilent = std::chrono::seconds(60);

struct SweepOptions {
  std::string config;
  std::vector<std::string> words;
  std::string run_dir;
  bool resume = false, dry_run = false;
};

// SWEEP/sweep.json, as far as going on needs it; configs/LABEL.yaml has a run's config.
struct SweepFile {
  std::vector<std::string> keys;                                       // that were swept
  std::vector<std::pair<std::string, std::vector<std::string>>> runs;  // label, values
};

std::string SweepFilePath(const std::string& dir) { return JoinPath(dir, "sweep.json"); }
std::string ConfigPath(const std::string& dir, const std::string& label) {
  return JoinPath(dir, "configs/" + label + ".yaml");
}

StatusOr<SweepFile> ReadSweepFile(const std::string& dir) {
  RealFileSystem disk;
  const std::string path = SweepFilePath(dir);
  auto text = disk.ReadFile(path);
  if (!text.ok())
    return NotFound(dir + ": holds no sweep (" + path + " is not there); name the folder of one");
  SweepFile out;
  try {
    const auto json = nlohmann::json::parse(*text);
    out.keys = json.at("keys");
    for (const auto& run : json.at("runs")) {
      auto& [label, values] = out.runs.emplace_back(run.at("run"), std::vector<std::string>());
      for (const std::string& key : out.keys) values.push_back(run.at("values").at(key));
    }
    if (out.runs.empty()) return DataLoss(path + ": has no run; it is written by this program alone");
  } catch (const nlohmann::json::exception& e) {
    return DataLoss(path + ": " + e.what() + "; it is written by this program alone");
  }
  return out;
}

template <typename File>
File ReadOf(const std::string& path, File otherwise) {
  RealFileSystem disk;
  if (const auto text = disk.ReadFile(path, 1 << 20); text.ok()) {
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) FromJson(json, otherwise);
  }
  return otherwise;
}

class Sweep {
 public:
  Sweep(std::string dir, std::vector<std::string> keys, std::vector<SweepRun> runs, std::string self_path,
        const StopSignals& signals)
      : dir_(std::move(dir)), keys_(std::move(keys)), self_path_(std::move(self_path)), signals_(signals) {
    for (SweepRun& run : runs) {
      runs_.push_back({.label = run.label, .dir = JoinPath(dir_, run.label)});
      runs_.back().plan = std::move(run);
    }
  }
  ~Sweep() {
    if (!pool_.empty()) SharedBlock::RemoveAll(pool_);
  }
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  // The exit code.
  StatusOr<int> Run() {
    TP_ASSIGN_OR_RETURN(worker_path_, FindWorker(runs_.front().plan.loaded.config.cluster, self_path_));
    TP_RETURN_IF_ERROR(disk_.MakeDirectories(JoinPath(dir_, "logs")));
    TP_RETURN_IF_ERROR(disk_.MakeDirectories(JoinPath(dir_, "configs")));
    for (const One& run : runs_) {
      if (const std::string path = ConfigPath(dir_, run.label); !disk_.Exists(path))
        TP_RETURN_IF_ERROR(disk_.WriteFile(path, config::ResolvedYaml(run.plan.loaded)));
    }
    TP_RETURN_IF_ERROR(Write());
    Status ended = RunAll();
    launcher_.EndAll(Duration{0}, std::chrono::seconds(5));
    if (const Status written = Write(); !written.ok()) Warn(written.message());
    Tell(Table() + "sweep: " + dir_ + "\n");
    const bool all = std::ranges::all_of(runs_, [this](const One& run) { return Succeeded(run); });
    if (!all) Tell(std::string(stopped() ? "stopped by a signal; " : "") + "go on with: " + Resume() + "\n");
    (void)terminal_.Drain(DiskThread::kPatience);
    TP_RETURN_IF_ERROR(ended);
    if (all) return 0;
    const bool as_told = std::ranges::all_of(runs_, [](const One& run) { return run.exit_code == 0; });
    return stopped() && as_told ? 0 : 3;
  }

 private:
  // A controller: of a run, or of the warm start before them.
  struct One {
    std::string label, dir;
    SweepRun plan = {};
    bool over = false;
    int exit_code = 0;
    int restarts = 0;
    int told = 0;  // signals passed on
    SweepClock::time_point since = {};
  };

  [[nodiscard]] bool stopped() const { return signals_.count.load() > 0; }
  [[nodiscard]] std::string Resume() const { return "tidepool sweep " + ShellWord(dir_) + " --resume"; }
  [[nodiscard]] std::string WarmDir() const { return JoinPath(dir_, "warm_start"); }
  [[nodiscard]] bool warms() const {
    const ModelConfig& model = runs_.front().plan.loaded.config.model;
    return model.init && !model.init->warm_start.empty();
  }

  // A terminal that is held (Ctrl-S), or a pipe that nobody reads, holds up what is told, and not the sweep.
  void Tell(const std::string& text) {
    terminal_.Do("terminal", [text](const DiskThread::Say&) {
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);
    });
  }
  void Warn(const std::string& text) {
    terminal_.Do("terminal", [text](const DiskThread::Say&) { std::fprintf(stderr, "%s\n", text.c_str()); });
  }

  // By its own config, which may have got other steps by `train --resume`.
  [[nodiscard]] bool Finished(const One& run) {
    const auto state = storage::ReadRunOnDisk(disk_, run.dir);
    return state.ok() && state->complete;
  }
  // A run that another controller took over is finished by that one.
  [[nodiscard]] bool Succeeded(const One& run) {
    return (run.exit_code == 0 || run.exit_code == kTakenOver) && Finished(run);
  }

  // All runs, until each is over.
  Status RunAll() {
    TP_ASSIGN_OR_RETURN(const bool warm, WarmStart());
    if (!warm) return OkStatus();
    TP_ASSIGN_OR_RETURN(const JobTokens tokens, JobTokens::Random());
    pool_ = SharedBlock::FolderOf(dir_, tokens.Token(CallerRole::kDevice));
    TP_RETURN_IF_ERROR(SharedBlock::MakeFolderOf(pool_));
    TP_RETURN_IF_ERROR(StartPool());
    for (size_t i = 0; i < runs_.size(); ++i) {
      runs_[i].over = Finished(runs_[i]);
      if (!runs_[i].over) TP_RETURN_IF_ERROR(StartRun(i));
    }
    while (std::ranges::any_of(runs_, [](const One& run) { return !run.over; })) {
      TP_RETURN_IF_ERROR(Look());
      std::this_thread::sleep_for(kSweepLook);
    }
    return OkStatus();
  }

  // `train` with what begins the run in `dir`, or goes on with it.
  std::vector<std::string> TrainCommand(const std::string& dir, std::vector<std::string> anew) {
    std::vector<std::string> argv = {self_path_, "train"};
    if (disk_.Exists(storage::RunPaths(dir).config())) {
      argv.insert(argv.end(), {dir, "--resume"});
    } else {
      argv.insert(argv.end(), anew.begin(), anew.end());
      argv.insert(argv.end(), {"--run-dir", dir});
    }
    return argv;
  }

  Status StartRun(size_t i) {
    One& run = runs_[i];
    std::vector<std::string> anew = {ConfigPath(dir_, run.label)};
    if (warms()) anew.push_back("model.init=null");
    anew.push_back("name=" + storage::FolderName(run.plan.loaded.config.name + "-" + run.label));
    std::vector<std::string> argv = TrainCommand(run.dir, std::move(anew));
    // Made once for all, and the same for all: the model that each would have made first. The sweep may have
    // been moved since.
    if (warms()) argv.push_back("model.path=" + storage::RunPaths(WarmDir()).final_model());
    argv.push_back("--pool=" + pool_);
    return Start(run, static_cast<int64_t>(i), argv);
  }
  Status Start(One& one, int64_t place, const std::vector<std::string>& argv) {
    one.since = SweepClock::now();
    one.told = 0;  // signals go to processes
    return launcher_.Start(place, argv, JoinPath(dir_, "logs/" + one.label + ".log"), Keys::kAll);
  }

  Status StartPool() {
    pool_since_ = SweepClock::now();
    pool_pulse_.emplace(PoolSocket(pool_, 0));
    pool_runs_ = true;
    return launcher_.Start(
        kPoolPlace,
        {worker_path_, "pool", "--socket=" + PoolSocket(pool_, 0), "--runs=" + std::to_string(runs_.size())},
        JoinPath(dir_, "logs/pool.log"), Keys::kOfStore);
  }

  // The model that all start from, where the config has a warm start: false: it was stopped, or failed.
  StatusOr<bool> WarmStart() {
    if (!warms()) return true;
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig warm, WarmStartOf(runs_.front().plan.loaded.config));
    warm_ = {.label = "warm_start", .dir = WarmDir()};
    if (Finished(warm_)) return true;
    Tell("warm start: the model below all adapters is made first\n");
    TP_RETURN_IF_ERROR(disk_.WriteFile(WarmYaml(), config::ResolvedYaml(warm)));
    TP_RETURN_IF_ERROR(StartWarm());
    while (!warm_.over) {
      TP_RETURN_IF_ERROR(Look());
      std::this_thread::sleep_for(kSweepLook);
    }
    if (Succeeded(warm_)) return true;
    for (One& run : runs_) run.exit_code = stopped() ? 0 : 3;
    Warn("warm start: it has not finished; see " + dir_ + "/logs/warm_start.log");
    return false;
  }
  [[nodiscard]] std::string WarmYaml() const { return JoinPath(dir_, "warm_start.yaml"); }
  Status StartWarm() { return Start(warm_, kWarmStartPlace, TrainCommand(warm_.dir, {WarmYaml()})); }

  void PassOn(int64_t place, One& one) {
    for (; !one.over && one.told < signals_.count.load(); ++one.told)
      launcher_.Kill(place, signals_.last.load());
  }

  Status Look() {
    for (const Ended& ended : launcher_.Reap()) {
      if (ended.place == kPoolPlace) {
        const auto now = SweepClock::now();
        if (now - pool_since_ > kSettled) pool_pause_ = std::chrono::seconds(1);
        Tell("pool: " + ended.why + "; it is started again\n");
        pool_due_ = now + pool_pause_;
        pool_pause_ = std::min(2 * pool_pause_, std::chrono::seconds(30));
        pool_runs_ = false;
        continue;
      }
      TP_RETURN_IF_ERROR(OnEnded(ended));
    }
    if (!pool_.empty()) TP_RETURN_IF_ERROR(LookAtPool());
    PassOn(kWarmStartPlace, warm_);
    for (size_t i = 0; i < runs_.size(); ++i) PassOn(static_cast<int64_t>(i), runs_[i]);
    if (!stopped()) return OkStatus();
    if (signals_.count.load() >= kHurried)
      return Aborted(dir_ + ": what had not ended was killed at the third signal");
    if (!stop_by_) stop_by_ = SweepClock::now() + kStopped;
    if (SweepClock::now() > *stop_by_)
      return DeadlineExceeded(dir_ +
                              ": not all runs have stopped within their deadline; they are killed. Go on "
                              "with `" +
                              Resume() + "`");
    return OkStatus();
  }

  Status LookAtPool() {
    if (!pool_runs_) return SweepClock::now() >= pool_due_ ? StartPool() : OkStatus();
    if (pool_pulse_->SilentFor() > kPoolSilent) {
      Tell("pool: it has not answered within its deadline, and is killed\n");
      launcher_.Kill(kPoolPlace, SIGKILL);
      pool_pulse_.emplace(PoolSocket(pool_, 0));
    }
    return OkStatus();
  }

  Status OnEnded(const Ended& ended) {
    const bool is_warm = ended.place == kWarmStartPlace;
    One& one = is_warm ? warm_ : runs_[static_cast<size_t>(ended.place)];
    if (SweepClock::now() - one.since > kSettled) one.restarts = 0;
    // By a signal from outside: it goes on from what it has on disk.
    if (!ended.exit_status && !stopped() && one.restarts < kRestartsMost) {
      ++one.restarts;
      Tell(one.label + ": " + ended.why + "; it goes on\n");
      return is_warm ? StartWarm() : StartRun(static_cast<size_t>(ended.place));
    }
    one.over = true;
    one.exit_code = ended.exit_status.value_or(3);
    if (!ended.in_order) {
      Warn(one.label + ": " + ended.why);
    } else if (!is_warm && Finished(one)) {
      const auto live = ReadOf<observe::StatusFile>(storage::RunPaths(one.dir).status(), {});
      Tell(one.label + ": finished, " + std::to_string(live.step) + " steps" +
           (live.reward ? ", reward " + Formatted("%.3f", *live.reward) : "") + "\n");
    } else if (!is_warm) {
      Tell(one.label + ": stopped\n");
    }
    return OkStatus();
  }

  // --- how they ended

  struct Result {
    std::string state;
    std::string measure;  // of what is held out: accuracy, reward, return, loss
    std::optional<double> held_out, reward, loss, seconds;
    [[nodiscard]] bool finished() const { return state == "finished"; }
  };
  Result ResultOf(const One& run) {
    const storage::RunPaths paths(run.dir);
    const auto live = ReadOf<observe::StatusFile>(paths.status(), {});
    const auto summary = ReadOf<observe::SummaryFile>(paths.summary(), {});
    Result out{
        .state = live.state.empty() ? "not begun" : live.state, .reward = live.reward, .loss = live.loss};
    // This is asked while no controller lives: that one was killed, and told nobody.
    if (out.state == "running") out.state = "killed";
    if (summary.held_out && summary.held_out->last) {
      out.measure = summary.held_out->measure;
      out.held_out = summary.held_out->last->value;
    }
    if (const auto at = summary.seconds.find("total"); at != summary.seconds.end()) out.seconds = at->second;
    return out;
  }

  // Of the runs that finished the one that did best on held-out rows, or, where one has not been judged on
  // them or all did as well, by its reward, or its loss: one measure for all that are compared.
  static std::optional<size_t> Best(const std::vector<Result>& results) {
    std::vector<size_t> candidates;
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].finished()) candidates.push_back(i);
    if (candidates.empty()) return std::nullopt;
    const std::string& measure = results[candidates.front()].measure;
    for (const auto& [value, sign] : {std::pair(&Result::held_out, measure == "loss" ? -1 : 1),
                                      std::pair(&Result::reward, 1), std::pair(&Result::loss, -1)}) {
      const auto known = [&](size_t i) {
        return (results[i].*value).has_value() &&
               (value != &Result::held_out || results[i].measure == measure);
      };
      if (!std::ranges::all_of(candidates, known)) continue;
      const auto [least, most] =
          std::ranges::minmax_element(candidates, {}, [&](size_t i) { return sign * *(results[i].*value); });
      if (*(results[*least].*value) != *(results[*most].*value)) return *most;
    }
    return std::nullopt;
  }

  std::vector<Result> Results() {
    std::vector<Result> results;
    for (const One& run : runs_) results.push_back(ResultOf(run));
    return results;
  }

  std::string Table() {
    const std::vector<Result> results = Results();
    const auto best = Best(results);
    const auto cell = [](const char* format, const std::optional<double>& v) {
      return v ? Formatted(format, *v) : std::string("-");
    };
    std::vector<Cells> rows = {{"", "run"}};
    rows.front().insert(rows.front().end(), keys_.begin(), keys_.end());
    const auto judged = std::ranges::find_if(results, [](const Result& r) { return !r.measure.empty(); });
    rows.front().insert(rows.front().end(),
                        {"state", "reward", "loss",
                         "held-out" + (judged == results.end() ? "" : " " + judged->measure), "seconds"});
    for (size_t i = 0; i < runs_.size(); ++i) {
      Cells& row = rows.emplace_back(Cells{best == i ? "*" : "", runs_[i].label});
      row.insert(row.end(), runs_[i].plan.values.begin(), runs_[i].plan.values.end());
      const Result& r = results[i];
      row.insert(row.end(), {r.state, cell("%.3f", r.reward), cell("%.4f", r.loss), cell("%.4f", r.held_out),
                             cell("%.1f", r.seconds)});
    }
    return TableText(rows) + (best ? "* the best\n" : "");
  }

  Status Write() {
    nlohmann::json runs = nlohmann::json::array();
    const std::vector<Result> results = Results();
    for (size_t i = 0; i < runs_.size(); ++i) {
      nlohmann::json values = nlohmann::json::object();
      for (size_t k = 0; k < keys_.size(); ++k) values[keys_[k]] = runs_[i].plan.values[k];
      nlohmann::json run = {{"run", runs_[i].label}, {"values", values}, {"state", results[i].state}};
      const auto add = [&](const char* key, const std::optional<double>& v) {
        if (v) run[key] = *v;
      };
      add("reward", results[i].reward);
      add("loss", results[i].loss);
      if (results[i].held_out)
        run["held_out"] = {{"measure", results[i].measure}, {"value", *results[i].held_out}};
      add("seconds", results[i].seconds);
      runs.push_back(std::move(run));
    }
    nlohmann::json all = {{"keys", keys_}, {"runs", runs}};
    if (const auto best = Best(results)) all["best"] = runs_[*best].label;
    return disk_.WriteFile(SweepFilePath(dir_), all.dump(1) + "\n");
  }

  const std::string dir_;
  const std::vector<std::string> keys_;  // swept
  const std::string self_path_;
  const StopSignals& signals_;
  std::string worker_path_, pool_;
  RealFileSystem disk_;
  std::vector<One> runs_;
  One warm_ = {.over = true};
  Launcher launcher_{/*outlive=*/false};
  bool pool_runs_ = false;
  std::optional<PoolPulse> pool_pulse_;
  SweepClock::time_point pool_since_, pool_due_;
  std::chrono::seconds pool_pause_{1};
  std::optional<SweepClock::time_point> stop_by_;
  DiskThread terminal_;
};

// Whether the files that are right for one run are so for the other: nothing of the model and the data
// depends on how an optimizer is set.
bool ReadsTheSame(const SweepRun& one, const SweepRun& other) {
  return std::ranges::all_of(config::Differences(one.loaded.config, other.loaded.config),
                             [](const config::Difference& d) {
                               return d.key.starts_with("train.") && !d.key.starts_with("train.mesh.");
                             });
}

void RunSweep(CommandContext& context, SweepOptions options) {
  std::error_code error;
  std::vector<std::string> keys;  // swept
  std::vector<SweepRun> runs;
  if (options.resume) {
    if (!options.words.empty() || !options.run_dir.empty())
      return Fail(context, InvalidArgument("--resume: goes on with a sweep as it was begun; give its folder "
                                           "alone: `tidepool sweep DIR --resume`"));
    options.run_dir = fs::absolute(options.config).lexically_normal().string();
    const auto begun = ReadSweepFile(options.run_dir);
    if (!begun.ok()) return Fail(context, begun.status());
    keys = begun->keys;
    for (const auto& [label, values] : begun->runs) {
      auto loaded = config::LoadConfig(ConfigPath(options.run_dir, label));
      if (!loaded.ok()) return Fail(context, loaded.status());
      runs.push_back({.label = label, .values = values, .overrides = {}, .loaded = *std::move(loaded)});
    }
  } else if (fs::is_directory(options.config, error)) {
    return Fail(context, InvalidArgument(options.config +
                                         ": a folder, where a config in YAML is needed; go on "
                                         "with a sweep by `tidepool sweep " +
                                         ShellWord(options.config) + " --resume`"));
  }
  if (!options.resume) {
    const auto words = ReadSweepWords(options.words);
    if (!words.ok()) return Fail(context, words.status());
    auto planned = PlanSweep(options.config, *words);
    if (!planned.ok()) return Fail(context, planned.status());
    runs = *std::move(planned);
    for (const SweptKey& swept : words->swept) keys.push_back(swept.key);
  }
  for (const std::string& warning : runs.front().loaded.warnings)
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  for (const SweepRun& run : runs) {
    if (&run != &runs.front() && ReadsTheSame(run, runs.front())) continue;
    if (const Status inputs = CheckInputs(run.loaded, options.resume); !inputs.ok())
      return Fail(context, inputs.At("run " + run.label));
  }
  const int64_t needed = SweepMemory(runs);
  std::printf("%zu runs on one device, %s\n", runs.size(),
              needed == 0
                  ? "in memory that cannot be predicted"
                  : ("about " + BytesText(needed) + " of memory: the model below the adapters once").c_str());
  if (options.dry_run) {
    std::vector<Cells> rows = {{"run"}};
    rows.front().insert(rows.front().end(), keys.begin(), keys.end());
    for (const SweepRun& run : runs) {
      Cells& row = rows.emplace_back(Cells{run.label});
      row.insert(row.end(), run.values.begin(), run.values.end());
    }
    std::printf("%s", TableText(rows).c_str());
    return;
  }
  if (const int64_t memory = MachineMemory(); memory > 0 && needed > memory)
    return Fail(context, FailedPrecondition("memory: this host has " + BytesText(memory) +
                                            " for programs; give fewer values, or lower "
                                            "rollout.kv_cache_tokens and train.micro_batch_tokens"));
  RealFileSystem disk;
  if (!options.resume) {
    if (!options.run_dir.empty() && disk.Exists(SweepFilePath(options.run_dir)))
      return Fail(context,
                  AlreadyExists(options.run_dir + ": holds a sweep; go on with it by `tidepool sweep " +
                                ShellWord(options.run_dir) + " --resume`, or name another --run-dir"));
    storage::RunDirectoryOptions where;
    where.name = runs.front().loaded.config.name + "-sweep";
    where.run_dir = options.run_dir;
    where.unix_seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    auto made = storage::CreateRunDirectory(disk, where);
    if (!made.ok()) return Fail(context, made.status());
    options.run_dir = *made;
  }
  const auto lock = storage::LockRun(disk, options.run_dir, "sweep");
  if (!lock.ok()) return Fail(context, lock.status());
  signal(SIGPIPE, SIG_IGN);
  std::fflush(stdout);
  Sweep sweep(fs::absolute(options.run_dir).lexically_normal().string(), std::move(keys), std::move(runs),
              context.self_path, CatchStopSignals());
  const auto exit_code = sweep.Run();
  // What is left is for people to look at, on a terminal that may be held: a signal ends the program.
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  if (!exit_code.ok()) return Fail(context, exit_code.status(), 3);
  context.exit_code = *exit_code;
}

}  // namespace

void AddSweepCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<SweepOptions>();
  CLI::App* command =
      app.add_subcommand("sweep", "Run a job for several values of its keys, as adapters on one device");
  command->add_option("config", options->config, "YAML file of the job; with --resume the folder of a sweep")
      ->required();
  command->add_option("overrides", options->words, "a.b=c,d,e: a run for each value; a.b=c: for all of them");
  command->add_option(
      "--run-dir", options->run_dir,
      "Folder of the sweep, with that of each run in it; default runs/<name>-sweep-<utc time>");
  command->add_flag("--resume", options->resume, "Go on with the runs of a sweep that are not finished");
  command->add_flag("--dry-run", options->dry_run, "Print the runs and predicted memory; start nothing");
  command->footer("Example: tidepool sweep configs/lora/tiny.yaml train.learning_rate=1e-2,2e-2");
  command->callback([options, &context] { RunSweep(context, *options); });
}

}  // namespace tidepool::workers
