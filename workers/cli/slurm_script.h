#pragma once
// A batch script that runs a job over the nodes of a Slurm allocation. Pure.

#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::workers {

struct SlurmJob {
  std::string name;                    // of the job, in the queue
  std::string program;                 // tidepool, absolute
  std::string config, run_dir;         // absolute
  std::vector<std::string> overrides;  // of the user
  std::vector<std::string> of_hosts;   // what a run over hosts needs, over those
  int64_t nodes = 1, slots_per_node = 1, threads_per_node = 1;
  bool gpus = false;                // a GPU for each slot
  bool may_lack = false;            // the run goes on without some node (cluster.min_slots)
  std::string time_limit;           // "02:00:00"; empty: the partition's
  std::vector<std::string> sbatch;  // further lines, "--partition=gpu"
};

std::string SlurmScript(const SlurmJob& job);

}  // namespace tidepool::workers
