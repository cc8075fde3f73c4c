#include "workers/controller/worker_command.h"

#include "core/base/places.h"
#include "core/storage/run_directory.h"
#include "workers/controller/scheduler_options.h"

namespace tidepool::workers {

std::vector<std::string> WorkerCommand(const WorkersOfRun& run, const JobConfig& config, int64_t place,
                                       int64_t first_of_host) {
  const storage::RunPaths paths(run.run_dir);
  const std::string side = SideName(config);
  const bool device = place < SchedulerOptions(config, 0).device_workers();
  std::vector<std::string> argv;
  if (device) {
    argv = {run.worker_path, "run"};
  } else if (side == "reward" && config.reward.by_model()) {
    argv = {run.worker_path, "reward"};
  } else {
    argv = {run.self_path, side + "-worker"};
    if (config.model.is_policy()) argv.push_back("--vector");
  }
  for (const std::string& word :
       {"--connect=" + run.address,
        "--token-file=" + paths.security() + "/" + (device ? "device" : side) + ".token",
        "--run-id=" + run.run_id, "--place=" + std::to_string(place), "--control-file=" + paths.control()}) {
    argv.push_back(word);
  }
  if (device && config.cluster.device == DeviceKind::kCuda)
    argv.push_back("--gpu=" + std::to_string(place - first_of_host));
  if (device && !run.pool.empty()) argv.push_back("--pool=" + PoolSocket(run.pool, place));
  return argv;
}

std::string PoolSocket(const std::string& pool, int64_t place) {
  return pool + "/device-" + std::to_string(place);
}

Keys KeysOf(const JobConfig& config, int64_t place) {
  const bool device = place < SchedulerOptions(config, 0).device_workers();
  return device && StoreOf(config).is_s3() ? Keys::kOfStore : Keys::kNone;
}

}  // namespace tidepool::workers
