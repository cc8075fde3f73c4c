#pragma once
// A job config as the simulator rehearses it, for `tidepool simulate` and `plan`.

#include <string>

#include "core/base/config.h"
#include "core/base/status.h"
#include "scheduler/simulator/simulator.h"

namespace tidepool::workers {

struct SimJobOptions {
  std::string hardware;    // of a slot: a profile of configs/hardware, or a file; empty: the usual one
  std::string pace;        // file of configs/pace; empty: cluster.pace
  std::string like;        // a finished run, whose answer lengths and times are taken; empty: none
  double mean_tokens = 0;  // of an answer; 0: half of the limit
  std::string self_path;   // of this program, near which profiles are looked for that are not here
};
// kInvalidArgument: the job generates nothing, or both pace and hardware are given; errors of what is read.
StatusOr<scheduler::SimJob> SimJobOf(const JobConfig& config, const SimJobOptions& options);

// Runs it to its end. `journal`: new folder for the records that the controller wrote, to be read by `check`
// and `journal`; empty: none. kInternal: they violate what the checker proves; kAborted: it did not end.
StatusOr<scheduler::SimReport> Rehearse(scheduler::SimJob job, const std::string& journal = "");

}  // namespace tidepool::workers
