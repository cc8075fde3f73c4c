#pragma once
// Plays episodes of a control task with a policy from its folder, environments in this process, or those of a
// service where who started this serves them: what `tidepool eval` starts `tidepool-worker play` for, because
// a policy's numbers need LibTorch. One thread.
//
// Episode i is the one of held-out row i of a run with the same seed (workers/controller/fragments.h).

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/environments/vector.h"

namespace tidepool::workers {

struct PlayOptions {
  std::string policy;  // folder
  environments::VectorOptions
      environment;             // its seed names starts, chances and the noise of a sampled policy
  double step_timeout_s = 60;  // of a call of the task
  // Of a VectorServer that serves the instances of a service; empty: the task is compiled in.
  std::string address, token_file;
  int64_t episodes = 100;
  bool sampled = false;     // else the most likely action, the mean of a Gaussian
  int64_t actions_of = -1;  // the episode whose actions are written; -1: none's
  std::string out;          // JSONL, a line an episode as they end: {"episode":3,"return":500,"steps":500,
                            // "terminated":false}, with "actions" where they are wanted
};
// kInvalidArgument, kNotFound: the folder holds no policy for the environment. kUnavailable: `out` cannot be
// written.
Status PlayPolicy(const PlayOptions& options);

}  // namespace tidepool::workers
