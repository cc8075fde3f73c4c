// `tidepool sweep`: runs that differ in some values, on one device.
//
// Each is a run as of `tidepool train`, with a controller, a journal and a folder of its own under the
// sweep's; one more process computes for all of them (workers/device/pool_worker.h). This one starts them,
// starts again what was killed, passes signals on, and tells how they ended.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/config/render.h"
#include "core/observe/progress.h"
#include "core/observe/run_files.h"
#include "core/storage/run_directory.h"
#include "workers/cli/command.h"
#include "workers/cli/run_status.h"
#include "workers/cli/sweep_plan.h"
#include "workers/cli/table.h"
#include "workers/controller/job.h"
#include "workers/controller/launcher.h"
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
constexpr int kRestartsMost = 5;                          // of a controller that was killed
// What a controller has to end in order once it was told; it has deadlines of its own below that.
constexpr auto kStopped = std::chrono::minutes(15);

struct SweepOptions {
  std::string config;
  std::vector<std::string> words;
  std::string run_dir;
  bool resume = false, dry_run = false;
};

// SWEEP/sweep.json
struct SweepFile {
  std::string config;              // the file, absolute
  std::vector<std::string> words;  // of the command line
};

std::string SweepFilePath(const std::string& dir) { return JoinPath(dir, "sweep.json"); }

StatusOr<SweepFile> ReadSweepFile(const std::string& dir) {
  RealFileSystem disk;
  const std::string path = SweepFilePath(dir);
  auto text = disk.ReadFile(path);
  if (!text.ok())
    return NotFound(dir + ": holds no sweep (" + path + " is not there); name the folder of one");
  SweepFile out;
  try {
    const auto json = nlohmann::json::parse(*text);
    out.config = json.at("config");
    out.words = json.at("words");
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
  Sweep(std::string dir, std::string config, SweepWords words, std::vector<std::string> typed,
        std::vector<SweepRun> runs, std::string self_path, const StopSignals& signals)
      : dir_(std::move(dir)),
        config_(std::move(config)),
        words_(std::move(words)),
        typed_(std::move(typed)),
        self_path_(std::move(self_path)),
        signals_(signals) {
    for (SweepRun& run : runs) runs_.push_back({.plan = std::move(run)});
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
    TP_RETURN_IF_ERROR(Write());
    TP_ASSIGN_OR_RETURN(const bool warm, WarmStart());
    if (!warm) return stopped() ? Stopped() : 3;
    TP_ASSIGN_OR_RETURN(const JobTokens tokens, JobTokens::Random());
    pool_ = SharedBlock::FolderOf(dir_, tokens.Token(CallerRole::kDevice));
    TP_RETURN_IF_ERROR(SharedBlock::MakeFolderOf(pool_));
    TP_RETURN_IF_ERROR(StartPool());
    for (size_t i = 0; i < runs_.size(); ++i) {
      One& run = runs_[i];
      run.over = Finished(run);
      if (!run.over) TP_RETURN_IF_ERROR(StartRun(i));
    }
    while (std::ranges::any_of(runs_, [](const One& run) { return !run.over; })) {
      TP_RETURN_IF_ERROR(Look());
      std::this_thread::sleep_for(kSweepLook);
    }
    launcher_.EndAll(Duration{0}, std::chrono::seconds(5));
    TP_RETURN_IF_ERROR(Write());
    std::printf("%s", Table().c_str());
    std::printf("sweep: %s\n", dir_.c_str());
    const bool all = std::ranges::all_of(runs_, [](const One& run) { return run.exit_code == 0; });
    if (stopped()) return std::max(Stopped(), all ? 0 : 3);
    if (!all) std::printf("go on with: %s\n", Resume().c_str());
    return all ? 0 : 3;
  }

 private:
  struct One {
    SweepRun plan;
    bool over = false;
    int exit_code = 0;
    std::string why;
    int restarts = 0;
    int told = 0;  // signals passed on
  };

  [[nodiscard]] bool stopped() const { return signals_.count.load() > 0; }
  [[nodiscard]] std::string Resume() const { return "tidepool sweep " + ShellWord(dir_) + " --resume"; }
  [[nodiscard]] std::string DirOf(const One& run) const { return JoinPath(dir_, run.plan.label); }
  [[nodiscard]] std::string WarmDir() const { return JoinPath(dir_, "warm_start"); }
  [[nodiscard]] bool warms() const {
    const ModelConfig& model = runs_.front().plan.loaded.config.model;
    return model.init && !model.init->warm_start.empty();
  }

  int Stopped() const {
    std::printf("stopped by a signal; go on with: %s\n", Resume().c_str());
    return 0;
  }

  [[nodiscard]] bool Finished(const One& run) {
    const auto state = storage::ReadRunOnDisk(disk_, DirOf(run));
    const JobConfig& c = run.plan.loaded.config;
    return state.ok() && state->Finished(c.train.steps, c.eval.stop_at_accuracy);
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
    std::vector<std::string> anew = {config_};
    anew.insert(anew.end(), run.plan.overrides.begin(), run.plan.overrides.end());
    // Made once for all, and the same for all: the model that each would have made first.
    if (warms())
      anew.insert(anew.end(),
                  {"model.init=null",
                   "model.path=" + fs::absolute(storage::RunPaths(WarmDir()).final_model()).string()});
    anew.push_back("name=" + storage::FolderName(run.plan.loaded.config.name + "-" + run.plan.label));
    std::vector<std::string> argv = TrainCommand(DirOf(run), std::move(anew));
    argv.push_back("--pool=" + pool_);
    return launcher_.Start(static_cast<int64_t>(i), argv, JoinPath(dir_, "logs/" + run.plan.label + ".log"),
                           Keys::kAll);
  }

  Status StartPool() {
    return launcher_.Start(
        kPoolPlace,
        {worker_path_, "pool", "--socket=" + PoolSocket(pool_, 0), "--runs=" + std::to_string(runs_.size())},
        JoinPath(dir_, "logs/pool.log"), Keys::kOfStore);
  }

  // The model that all start from, where the config has a warm start: false: it was stopped, or failed.
  StatusOr<bool> WarmStart() {
    if (!warms()) return true;
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig warm, WarmStartOf(runs_.front().plan.loaded.config));
    const auto state = storage::ReadRunOnDisk(disk_, WarmDir());
    if (state.ok() && state->Finished(warm.config.train.steps, warm.config.eval.stop_at_accuracy))
      return true;
    std::printf("warm start: the model below all adapters is made first\n");
    std::fflush(stdout);
    const std::string yaml = JoinPath(dir_, "warm_start.yaml");
    TP_RETURN_IF_ERROR(disk_.WriteFile(yaml, config::ResolvedYaml(warm)));
    TP_RETURN_IF_ERROR(launcher_.Start(kWarmStartPlace, TrainCommand(WarmDir(), {yaml}),
                                       JoinPath(dir_, "logs/warm_start.log"), Keys::kAll));
    for (int told = 0;; std::this_thread::sleep_for(kSweepLook)) {
      PassOn(kWarmStartPlace, told);
      for (const Ended& ended : launcher_.Reap()) {
        if (stopped()) return false;
        if (ended.in_order) return true;
        std::fprintf(stderr, "warm start: %s; see %s/logs/warm_start.log\n", ended.why.c_str(), dir_.c_str());
        return false;
      }
    }
  }

  void PassOn(int64_t place, int& told) {
    for (; told < signals_.count.load(); ++told) launcher_.Kill(place, signals_.last.load());
  }

  Status Look() {
    for (const Ended& ended : launcher_.Reap()) {
      if (ended.place == kPoolPlace) {
        std::printf("pool: %s; it is started again\n", ended.why.c_str());
        pool_due_ = SweepClock::now() + pool_pause_;
        pool_pause_ = std::min(2 * pool_pause_, std::chrono::seconds(30));
        pool_runs_ = false;
        continue;
      }
      TP_RETURN_IF_ERROR(OnEnded(static_cast<size_t>(ended.place), ended));
    }
    if (!pool_runs_ && SweepClock::now() >= pool_due_) {
      TP_RETURN_IF_ERROR(StartPool());
      pool_runs_ = true;
    }
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (!runs_[i].over) PassOn(static_cast<int64_t>(i), runs_[i].told);
    }
    if (stopped()) {
      if (!stop_by_) stop_by_ = SweepClock::now() + kStopped;
      if (SweepClock::now() > *stop_by_)
        return DeadlineExceeded(dir_ +
                                ": not all runs have stopped within their deadline; they are killed. "
                                "Go on with `" +
                                Resume() + "`");
    }
    return OkStatus();
  }

  Status OnEnded(size_t i, const Ended& ended) {
    One& run = runs_[i];
    // By a signal from outside: it goes on from what it has on disk.
    if (!ended.exit_status && !stopped() && run.restarts < kRestartsMost) {
      ++run.restarts;
      std::printf("%s: %s; it goes on\n", run.plan.label.c_str(), ended.why.c_str());
      std::fflush(stdout);
      return StartRun(i);
    }
    run.over = true;
    run.exit_code = ended.exit_status.value_or(3);
    if (!ended.in_order) run.why = ended.why;
    if (!ended.in_order) {
      std::fprintf(stderr, "%s: %s\n", run.plan.label.c_str(), ended.why.c_str());
    } else if (Finished(run)) {
      const auto live = ReadOf<observe::StatusFile>(storage::RunPaths(DirOf(run)).status(), {});
      std::printf("%s: finished, %lld steps%s\n", run.plan.label.c_str(), static_cast<long long>(live.step),
                  live.reward ? (", reward " + Formatted("%.3f", *live.reward)).c_str() : "");
    }
    std::fflush(stdout);
    return OkStatus();
  }

  // --- how they ended

  struct Result {
    std::string state;
    std::optional<double> reward, loss, accuracy, seconds;
    [[nodiscard]] bool finished() const { return state == "finished"; }
  };
  Result ResultOf(const One& run) {
    const storage::RunPaths paths(DirOf(run));
    const auto live = ReadOf<observe::StatusFile>(paths.status(), {});
    const auto summary = ReadOf<observe::SummaryFile>(paths.summary(), {});
    Result out{
        .state = live.state.empty() ? "not begun" : live.state, .reward = live.reward, .loss = live.loss};
    if (const auto at = summary.accuracy.find("after"); at != summary.accuracy.end())
      out.accuracy = at->second;
    if (const auto at = summary.seconds.find("total"); at != summary.seconds.end()) out.seconds = at->second;
    return out;
  }

  // The run with the best held-out accuracy, or, where a run has none, reward, or loss: one measure for all
  // that are compared. Runs that did not end are no candidates where some did. None where nothing is known.
  static std::optional<size_t> Best(const std::vector<Result>& results) {
    const bool some_finished = std::ranges::any_of(results, &Result::finished);
    std::vector<size_t> candidates;
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].finished() || !some_finished) candidates.push_back(i);
    for (const auto& [measure, sign] :
         {std::pair(&Result::accuracy, 1), std::pair(&Result::reward, 1), std::pair(&Result::loss, -1)}) {
      if (!std::ranges::all_of(candidates, [&](size_t i) { return (results[i].*measure).has_value(); }))
        continue;
      return *std::ranges::max_element(candidates, {},
                                       [&](size_t i) { return sign * *(results[i].*measure); });
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
    for (const SweptKey& key : words_.swept) rows.front().push_back(key.key);
    rows.front().insert(rows.front().end(), {"state", "reward", "loss", "accuracy", "seconds"});
    for (size_t i = 0; i < runs_.size(); ++i) {
      Cells& row = rows.emplace_back(Cells{best == i ? "*" : "", runs_[i].plan.label});
      row.insert(row.end(), runs_[i].plan.values.begin(), runs_[i].plan.values.end());
      const Result& r = results[i];
      row.insert(row.end(), {r.state, cell("%.3f", r.reward), cell("%.4f", r.loss), cell("%.3f", r.accuracy),
                             cell("%.1f", r.seconds)});
    }
    return TableText(rows) + (best ? "* the best\n" : "");
  }

  Status Write() {
    nlohmann::json runs = nlohmann::json::array();
    const std::vector<Result> results = Results();
    for (size_t i = 0; i < runs_.size(); ++i) {
      nlohmann::json values = nlohmann::json::object();
      for (size_t k = 0; k < words_.swept.size(); ++k) values[words_.swept[k].key] = runs_[i].plan.values[k];
      nlohmann::json run = {{"run", runs_[i].plan.label}, {"values", values}, {"state", results[i].state}};
      const auto add = [&](const char* key, const std::optional<double>& v) {
        if (v) run[key] = *v;
      };
      add("reward", results[i].reward);
      add("loss", results[i].loss);
      add("accuracy", results[i].accuracy);
      add("seconds", results[i].seconds);
      runs.push_back(std::move(run));
    }
    nlohmann::json all = {{"config", config_}, {"words", typed_}, {"runs", runs}};
    if (const auto best = Best(results)) all["best"] = runs_[*best].plan.label;
    return disk_.WriteFile(SweepFilePath(dir_), all.dump(1) + "\n");
  }

  const std::string dir_, config_;
  const SweepWords words_;
  const std::vector<std::string> typed_;
  const std::string self_path_;
  const StopSignals& signals_;
  std::string worker_path_, pool_;
  RealFileSystem disk_;
  std::vector<One> runs_;
  Launcher launcher_{/*outlive=*/false};
  bool pool_runs_ = true;
  SweepClock::time_point pool_due_;
  std::chrono::seconds pool_pause_{1};
  std::optional<SweepClock::time_point> stop_by_;
};

void RunSweep(CommandContext& context, SweepOptions options) {
  std::error_code error;
  if (options.resume) {
    if (!options.words.empty() || !options.run_dir.empty())
      return Fail(context, InvalidArgument("--resume: goes on with a sweep as it was begun; give its folder "
                                           "alone: `tidepool sweep DIR --resume`"));
    options.run_dir = options.config;
    const auto begun = ReadSweepFile(options.run_dir);
    if (!begun.ok()) return Fail(context, begun.status());
    options.config = begun->config;
    options.words = begun->words;
  } else if (fs::is_directory(options.config, error)) {
    return Fail(context, InvalidArgument(options.config +
                                         ": a folder, where a config in YAML is needed; go on "
                                         "with a sweep by `tidepool sweep " +
                                         ShellWord(options.config) + " --resume`"));
  }
  auto words = ReadSweepWords(options.words);
  if (!words.ok()) return Fail(context, words.status());
  auto runs = PlanSweep(options.config, *words);
  if (!runs.ok()) return Fail(context, runs.status());
  for (const std::string& warning : runs->front().loaded.warnings)
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  for (SweepRun& run : *runs) {
    if (const Status inputs = CheckInputs(run.loaded, options.resume); !inputs.ok())
      return Fail(context, inputs.At("run " + run.label));
  }
  const int64_t needed = SweepMemory(*runs);
  std::printf("%zu runs on one device, %s\n", runs->size(),
              needed == 0
                  ? "in memory that cannot be predicted"
                  : ("about " + BytesText(needed) + " of memory: the model below the adapters once").c_str());
  if (options.dry_run) {
    std::vector<Cells> rows = {{"run"}};
    for (const SweptKey& key : words->swept) rows.front().push_back(key.key);
    for (const SweepRun& run : *runs) {
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
    where.name = runs->front().loaded.config.name + "-sweep";
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
  std::fflush(stdout);
  Sweep sweep(fs::absolute(options.run_dir).lexically_normal().string(),
              fs::absolute(options.config).lexically_normal().string(), *std::move(words), options.words,
              *std::move(runs), context.self_path, CatchStopSignals());
  const auto exit_code = sweep.Run();
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
