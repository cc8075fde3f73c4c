#include "workers/controller/job.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "core/base/hash.h"
#include "core/base/real_file_system.h"
#include "core/config/render.h"
#include "core/environments/episode.h"
#include "core/model/hugging_face.h"
#include "core/policy/spec.h"
#include "core/storage/run_directory.h"
#include "core/tasks/data_source.h"
#include "workers/data/model_folder.h"
#include "workers/device/memory_plan.h"
#include "workers/net/hub.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

// What the controller compares on resume: the digest of what may not change is core/config's business,
// this one only names the exact text.
std::string DigestOf(const std::string& yaml) { return Sha256Hex(yaml).substr(0, 16); }

// The run's own name for shared memory and tokens: unique on this machine, short, a plain file name. It stays
// when the folder is moved, because the journal has it.
StatusOr<std::string> RunId(FileSystem& files, const std::string& run_dir) {
  TP_ASSIGN_OR_RETURN(const storage::RunOnDisk state, storage::ReadRunOnDisk(files, run_dir));
  if (!state.run_id.empty()) return state.run_id;
  std::error_code error;
  const fs::path dir = fs::canonical(run_dir, error);
  if (error) return NotFound(run_dir + ": " + error.message());
  std::string id;
  for (const char c : dir.filename().string()) {
    id.push_back(
        (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.') ? c : '_');
  }
  return id + "-" + Sha256Hex(dir.string()).substr(0, 8);
}

class Job {
 public:
  explicit Job(const JobRequest& request) : request_(request) {}

  StatusOr<JobOutcome> Run() {
    const JobConfig& config = request_.loaded.config;
    TP_ASSIGN_OR_RETURN(worker_path_, FindWorker(config.cluster, request_.self_path));
    TP_RETURN_IF_ERROR(CheckInputs(request_.loaded));
    TP_RETURN_IF_ERROR(OpenRunDirectory());
    if (already_finished_) {
      Say(outcome_.run_dir + ": this run is finished; give another --run-dir, or --fresh to start over");
      outcome_.already_finished = true;
      return outcome_;
    }
    std::string model_dir = config.model.path;
    if (config.model.init) {
      model_dir = storage::RunPaths(outcome_.run_dir).model();
      if (!config.model.init->warm_start.empty()) {
        TP_ASSIGN_OR_RETURN(const bool goes_on, WarmStart());
        if (!goes_on) return outcome_;
        model_dir = storage::RunPaths(storage::RunPaths(outcome_.run_dir).warm_start()).final_model();
      } else {
        TP_RETURN_IF_ERROR(WriteInitFolder(*config.model.init, config.model.dtype, model_dir));
      }
    }
    if (config.model.is_policy()) {
      model_dir = storage::RunPaths(outcome_.run_dir).model();
      TP_RETURN_IF_ERROR(fs_.MakeDirectories(model_dir));
      TP_ASSIGN_OR_RETURN(const policy::PolicySpec spec, policy::SpecOfJob(config));
      TP_RETURN_IF_ERROR(policy::WritePolicySpec(spec, model_dir));
    }
    Say("run " + outcome_.run_dir);
    TP_ASSIGN_OR_RETURN(outcome_.result, Start("", request_.loaded, outcome_.run_dir, model_dir));
    outcome_.exit_code = outcome_.result.exit;
    outcome_.why = outcome_.result.why;
    return outcome_;
  }

 private:
  void Say(const std::string& line) const {
    if (request_.say) request_.say(line);
  }

  // Whoever works on a run holds the lock of its folder, and takes it before anything there is read or moved.
  Status OpenRunDirectory() {
    const JobConfig& config = request_.loaded.config;
    if (request_.resume && request_.fresh)
      return InvalidArgument("--resume goes on with a run, --fresh starts it over; give one of them");
    storage::RunDirectoryOptions wanted;
    wanted.name = request_.run_name.empty() ? config.name : request_.run_name;
    wanted.run_dir = request_.run_dir;
    wanted.unix_seconds = static_cast<int64_t>(std::time(nullptr));
    if (const auto plan = PlanMemory(config); plan.ok())  // else a worker says what is wrong
      wanted.need_bytes = 2 * plan->checkpoint_bytes;     // the last one, and the one being written
    // Without a slash at its end: names are made by adding to it.
    while (wanted.run_dir.size() > 1 && wanted.run_dir.ends_with('/')) wanted.run_dir.pop_back();
    std::string dir = wanted.run_dir;
    if (dir.empty() && request_.resume) {
      TP_ASSIGN_OR_RETURN(const storage::RunOnDisk newest,
                          storage::FindUnfinishedRun(fs_, wanted.root, wanted.name, config.train.steps,
                                                     config.eval.stop_at_accuracy));
      dir = newest.dir;
    }
    std::error_code error;  // a folder that cannot be read is reported by who writes to it
    bool goes_on = !dir.empty() && fs::exists(storage::RunPaths(dir).config(), error);
    if (goes_on) {
      TP_ASSIGN_OR_RETURN(lock_, storage::LockRun(fs_, dir));
      TP_ASSIGN_OR_RETURN(const storage::RunOnDisk state, storage::ReadRunOnDisk(fs_, dir));
      if (!request_.fresh && state.Finished(config.train.steps, config.eval.stop_at_accuracy)) {
        already_finished_ = true;
        outcome_.run_dir = dir;
        return OkStatus();
      }
      if (!request_.fresh && !request_.resume) {
        return AlreadyExists("--run-dir: " + dir + " holds a run " +
                             (state.complete ? "that ended" : "that is not finished") + " (step " +
                             std::to_string(std::max<int64_t>(state.last_step.value, 0)) +
                             "); go on with --resume, or start over with --fresh");
      }
      if (request_.resume) {
        TP_ASSIGN_OR_RETURN(const config::LoadedConfig old,
                            config::LoadConfig(storage::RunPaths(dir).config()));
        TP_RETURN_IF_ERROR(config::CheckResume(old.config, config));
      }
    } else if (request_.resume && !fs::exists(storage::RunPaths(dir).lock(), error) && !error) {
      // With a lock file it is a run that was ended before it began.
      return NotFound("--resume: " + dir + " holds no run" +
                      (fs::exists(dir, error) ? "" : " (there is no such folder)") +
                      "; check --run-dir, or start a run there without --resume");
    }
    // Before anything is made or moved.
    if (goes_on && request_.fresh) TP_RETURN_IF_ERROR(storage::CheckSpace(fs_, dir, wanted.need_bytes));
    TP_RETURN_IF_ERROR(Hub::CanListen(config.cluster.bind, config.cluster.port));
    if (goes_on && request_.fresh) {
      const std::string aside = dir + ".old-" + storage::UtcStamp(wanted.unix_seconds);
      TP_RETURN_IF_ERROR(fs_.Rename(dir, aside));
      Say("the old run is now " + aside);
      goes_on = false;
    }
    outcome_.run_dir = dir;
    if (!goes_on) {
      TP_ASSIGN_OR_RETURN(outcome_.run_dir, storage::CreateRunDirectory(fs_, wanted));
      TP_ASSIGN_OR_RETURN(lock_, storage::LockRun(fs_, outcome_.run_dir));
    }
    return Furnish(outcome_.run_dir, request_.loaded);
  }

  Status Furnish(const std::string& dir, const config::LoadedConfig& loaded) {
    // First: with it a folder is that of a run, and without it nothing has begun.
    TP_RETURN_IF_ERROR(fs_.WriteFile(storage::RunPaths(dir).config(), config::ResolvedYaml(loaded)));
    const storage::RunPaths paths(dir);
    for (const std::string& folder : {paths.logs(), paths.samples(), paths.trace(), paths.security()})
      TP_RETURN_IF_ERROR(fs_.MakeDirectories(folder));
    return OkStatus();
  }

  // The warm start is an sft job like any other, in RUN/warm_start, with this run's model and seed.
  StatusOr<bool> WarmStart() {
    const JobConfig& main = request_.loaded.config;
    const std::string dir = storage::RunPaths(outcome_.run_dir).warm_start();
    TP_ASSIGN_OR_RETURN(config::LoadedConfig warm, config::LoadWarmStart(main));
    if (warm.config.kind() != JobKind::kSft) {
      return InvalidArgument(main.model.init->warm_start +
                             ": model.init.warm_start needs a job of kind sft, this is " +
                             Name(warm.config.kind()));
    }
    warm.config.model = main.model;
    warm.config.model.init->warm_start.clear();
    warm.config.cluster.device = main.cluster.device;
    warm.config.deterministic = main.deterministic;
    TP_RETURN_IF_ERROR(fs_.MakeDirectories(dir));
    TP_ASSIGN_OR_RETURN(const storage::RunOnDisk state, storage::ReadRunOnDisk(fs_, dir));
    if (state.Finished(warm.config.train.steps, warm.config.eval.stop_at_accuracy)) return true;
    TP_RETURN_IF_ERROR(Furnish(dir, warm));
    TP_RETURN_IF_ERROR(
        WriteInitFolder(*warm.config.model.init, warm.config.model.dtype, storage::RunPaths(dir).model()));
    TP_ASSIGN_OR_RETURN(outcome_.result, Start("warm start", warm, dir, storage::RunPaths(dir).model()));
    const RunResult& result = outcome_.result;
    if (result.exit == 0 && !result.stopped) return true;
    outcome_.exit_code = result.exit;
    outcome_.why = result.exit == 0 ? "" : "warm start: " + result.why;
    return false;
  }

  StatusOr<RunResult> Start(const std::string& phase, const config::LoadedConfig& loaded,
                            const std::string& run_dir, const std::string& model_dir) {
    RunRequest run;
    run.config = loaded.config;
    run.config_yaml = config::ResolvedYaml(loaded);
    run.config_digest = DigestOf(run.config_yaml);
    run.run_dir = fs::absolute(run_dir).string();
    TP_ASSIGN_OR_RETURN(run.run_id, RunId(fs_, run_dir));
    run.model_dir = fs::absolute(model_dir).string();
    run.self_path = request_.self_path;
    run.worker_path = worker_path_;
    run.stop_signals = request_.stop_signals;
    run.say = [this](const std::string& line) { Say(line); };
    run.on_progress = [this, phase](const observe::StatusFile& p) {
      if (request_.on_progress) request_.on_progress(phase, p);
    };
    return RunController(run);
  }

  const JobRequest& request_;
  RealFileSystem fs_;
  std::unique_ptr<FileLock> lock_;
  std::string worker_path_;
  JobOutcome outcome_;
  bool already_finished_ = false;
};

}  // namespace

StatusOr<std::string> FindWorker(const ClusterConfig& cluster, const std::string& self_path) {
  const std::string dir =
      cluster.worker_dir.empty() ? fs::path(self_path).parent_path().string() : cluster.worker_dir;
  const std::string path = dir + "/tidepool-worker";
  if (access(path.c_str(), X_OK) != 0) {
    return NotFound("cluster.worker_dir: " + path +
                    " is not there or cannot be run; build it (make build), or name the folder that has it");
  }
  return path;
}

Status CheckInputs(const config::LoadedConfig& loaded) {
  const JobConfig& config = loaded.config;
  const auto at = [&](const char* key, const Status& status) {
    const config::Origin origin = loaded.OriginOf(key);
    return origin.kind == config::Origin::Kind::kDefault ? status : status.At(origin.ToString());
  };
  const auto folder = [&](const char* key, const std::string& dir) {
    return at(key, CheckModelFolder(dir, key));
  };
  if (!config.model.init && !config.model.is_policy())
    TP_RETURN_IF_ERROR(folder("model.path", config.model.path));
  if (config.rl() != nullptr && !config.model.init && !config.model.is_policy()) {
    // Every sample would be refused by the engine.
    TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(config.model.path));
    if (config.rollout.max_new_tokens >= spec.max_position) {
      return at("rollout.max_new_tokens",
                InvalidArgument("rollout.max_new_tokens is " + std::to_string(config.rollout.max_new_tokens) +
                                ", but " + config.model.path + " has " + std::to_string(spec.max_position) +
                                " positions for prompt and answer together; lower it"));
    }
  }
  std::map<const char*, std::string> further;
  if (const RlJob* rl = config.rl()) {
    further = {{"algorithm.kl.reference", rl->algorithm.kl.reference},
               {"algorithm.critic.path", rl->algorithm.critic.path},
               {"algorithm.teacher", rl->algorithm.teacher}};
  } else if (const auto* dpo = std::get_if<DpoJob>(&config.job)) {
    further = {{"preference.reference", dpo->preference.reference}};
  } else if (const auto* distill = std::get_if<DistillJob>(&config.job)) {
    further = {{"distill.teacher", distill->distill.teacher}};
  }
  for (const auto& [key, dir] : further) {
    if (!dir.empty()) TP_RETURN_IF_ERROR(folder(key, dir));
  }
  if (config.model.init && !config.model.init->warm_start.empty()) {
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig warm, config::LoadWarmStart(config));
    TP_RETURN_IF_ERROR(CheckInputs(warm));
  }
  if (config.model.is_policy()) return OkStatus();  // an environment is all the data it has
  if (config.environment() != nullptr) return environments::EpisodeSource::Create(config).status();
  return at("data.path", tasks::DataSource::Create(config.data, config.seed, config.kind()).status());
}

StatusOr<JobOutcome> RunJob(const JobRequest& request) {
  Job job(request);
  return job.Run();
}

}  // namespace tidepool::workers
