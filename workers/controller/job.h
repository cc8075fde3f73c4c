#pragma once
// `tidepool train`: from a loaded config to an exit code. Chooses or makes the run directory, runs the
// warm start as a job of its own, makes the model folder, then hands over to the controller.

#include <functional>
#include <string>

#include "core/config/load.h"
#include "workers/controller/process.h"

namespace tidepool::workers {

struct JobRequest {
  config::LoadedConfig loaded;
  std::string run_dir;       // empty: runs/<name>-<utc time>, which only a new run may leave to the job
  std::string self_path;     // of this program
  std::string certificates;  // folder with those of all roles, made elsewhere; empty: the run makes them
  std::string pool;          // RunRequest's
  // What to type to go on with the run in this folder.
  std::function<std::string(const std::string& run_dir)> go_on = {};
  bool resume = false;
  bool take_over =
      false;           // with resume: although a controller holds the run, which is frozen or out of reach
  bool fresh = false;  // start over even if the directory holds a run
  std::string start_over = "start over with --fresh";  // how, for messages
  const StopSignals* stop_signals = nullptr;
  std::function<void(const std::string& phase, const observe::StatusFile&)> on_progress;
  std::function<void(const std::string&)> say;  // a line for people
};

struct JobOutcome {
  int exit_code = 0;
  std::string run_dir;
  std::string part_dir;  // of the job that ended: run_dir, or its warm_start/
  std::string why;
  RunResult result;
  bool already_finished = false;
};

// An error status: nothing was started (exit code 2).
StatusOr<JobOutcome> RunJob(const JobRequest& request);

// The job of model.init.warm_start, which is trained first, with this job's model. kInvalidArgument: it is
// not an sft job.
StatusOr<config::LoadedConfig> WarmStartOf(const JobConfig& main);

// The scheduler has the policy that the job names, and what the job reads is there and can be used: model
// folders and data, those of its warm start too. The
// message says all that is wrong, a line each that begins with the file and line of the key. kNotFound,
// kInvalidArgument, kUnimplemented (pickled weights). goes_on: from a checkpoint, which has the adapter of
// model.lora.path as it was trained since; that is not looked at.
Status CheckInputs(const config::LoadedConfig& loaded, bool goes_on = false);
// A run of this folder would go on from a checkpoint.
bool HasCheckpoint(const std::string& run_dir);

// Where tidepool-worker is: cluster.worker_dir, else beside `self_path`. kNotFound.
StatusOr<std::string> FindWorker(const ClusterConfig& cluster, const std::string& self_path);

}  // namespace tidepool::workers
