#pragma once
// The process that grades finished samples: built-in verifiers (core/tasks/reward.h), rewards that are
// servers of their own (side/reward_server.h) and rewards that are models (side/model_reward.h), weighted and
// summed; each is measured apart.
//
// Three outcomes stay apart: ok (a grader returned a number), data (this row cannot be graded: not
// tried again), infra (time-out, connection, a grader that failed: the controller tries again).

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "core/base/call_watch.h"
#include "core/base/config.h"
#include "core/base/status.h"
#include "workers/net/messages.h"
#include "workers/side/model_reward.h"
#include "workers/side/side_worker.h"

namespace tidepool::workers {

struct RewardWorkerOptions : SideWorkerOptions {
  OpenModelReward open_model = {};  // null: this program has no models
};

// Runs until the controller says Shutdown or is gone; exit code as RunDeviceWorker.
int RunRewardWorker(const RewardWorkerOptions& options);

// The weighted rewards of a job. Thread-safe.
class Graders {
 public:
  // kNotFound, kInvalidArgument: a name or an argument is wrong. kFailedPrecondition: a function by model,
  // and no `open_model`.
  static StatusOr<std::unique_ptr<Graders>> Create(const JobConfig& job,
                                                   const OpenModelReward& open_model = {});
  ~Graders();
  // Grades them together, in their order, but each by itself that failed before: it may be the one for which
  // its call failed. Never waits longer for a call than the sum of the functions' time-outs, and not for long
  // after `stop`.  requires no more than most()
  [[nodiscard]] std::vector<up::Graded> Score(std::span<const down::Grade> requests,
                                              const std::stop_token& stop = {}) const;
  // Samples at once: reward.batch, unless a server takes one a call.
  [[nodiscard]] int64_t most() const;
  // What is called in this process, each call limited by its timeout_s.
  [[nodiscard]] CallWatch& watch() const;
  // A function by model that is of no use any more: which, and why.
  [[nodiscard]] std::optional<std::pair<std::string, std::string>> failure() const;
  // Waits for the ends of the steps that models are at, which watch() limits. Nothing but watch() may be
  // called during that or later.
  void CloseModels();
  // The servers that cannot be reached, and why.
  [[nodiscard]] std::vector<up::Unreachable> waits_for() const;

 private:
  Graders();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
