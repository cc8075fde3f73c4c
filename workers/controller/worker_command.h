#pragma once
// How a worker of a run is started, by its controller or by the process of its host.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "workers/controller/launcher.h"

namespace tidepool::workers {

// What workers of a run have in common.
struct WorkersOfRun {
  std::string self_path;    // the program tidepool
  std::string worker_path;  // tidepool-worker
  std::string run_dir, run_id;
  std::string address;    // of the controller
  std::string pool = {};  // RunRequest::pool
};

// The program of a place and its arguments. first_of_host: the device place that gets the first GPU of the
// host where this is run; requires first_of_host <= place, for a device place.
std::vector<std::string> WorkerCommand(const WorkersOfRun& run, const JobConfig& config, int64_t place,
                                       int64_t first_of_host = 0);
// Where the process of a pool listens that computes for this place of all its runs.
std::string PoolSocket(const std::string& pool, int64_t place);
// What it gets of the environment's keys.
Keys KeysOf(const JobConfig& config, int64_t place);

}  // namespace tidepool::workers
