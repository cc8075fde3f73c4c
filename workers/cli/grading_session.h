#pragma once
// The rewards of a run outside of it: one reward worker process on loopback, driven directly, as
// cli/inference.h drives a device worker. So servers and models grade here as they do in the run. One thread
// owns a session.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/tasks/reward.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct GradingOptions {
  JobConfig job;                       // whose rewards grade
  std::string self_path, worker_path;  // tidepool, tidepool-worker
  std::function<bool()> stop;          // asked often; true: kAborted
};

class GradingSession {
 public:
  // Starts the worker and returns: its models are loaded while the caller makes what is to be graded.
  static StatusOr<std::unique_ptr<GradingSession>> Start(const GradingOptions& options);
  ~GradingSession();

  // In the order of `inputs`. kUnavailable: the worker died; kDeadlineExceeded: no verdict for as long as its
  // models may be loaded and a sample may be graded.
  StatusOr<std::vector<up::Graded>> Grade(std::vector<tasks::RewardInput> inputs);
  // While nothing is graded: the worker is told to go on.
  Status Renew();

 private:
  GradingSession();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
