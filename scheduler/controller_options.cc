// Which options make a run, and which may change when a run is resumed.

#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

int64_t EvalQuestions(const ControllerOptions& o) {
  const EvalConfig& e = o.config.eval;
  if (TrainsOnPairs(o.config)) return 0;  // judged by the trainer, in the step
  if (!e.before_train && !e.after_train && e.every_steps <= 0) return 0;
  return e.samples > 0 ? std::min(e.samples, o.eval_rows) : o.eval_rows;
}

Status Validate(const ControllerOptions& o) {
  const JobConfig& c = o.config;
  if (o.data_rows <= 0) return InvalidArgument("the data set has no rows; a run needs at least one");
  if (c.train.groups_per_step <= 0) return InvalidArgument("train.groups_per_step has to be positive");
  if (c.job == JobKind::kRl && c.rollout.group_size <= 0)
    return InvalidArgument("rollout.group_size has to be positive");
  if (c.job == JobKind::kRl && c.rollout.max_new_tokens <= 0)
    return InvalidArgument("rollout.max_new_tokens has to be positive");
  if (c.scheduler.max_lag_versions < 0)
    return InvalidArgument("scheduler.max_lag_versions has to be 0 or more");
  if (c.cluster.slots <= 0) return InvalidArgument("cluster.slots has to be positive");
  const int64_t actors = c.scheduler.actor_slots;
  const bool generates = c.job == JobKind::kRl || EvalQuestions(o) > 0;
  if (actors <= 0) return InvalidArgument("scheduler.actor_slots has to be positive");
  if (c.scheduler.placement == PlacementKind::kSplit && generates && actors >= c.cluster.slots) {
    return InvalidArgument("scheduler.placement split needs cluster.slots above scheduler.actor_slots (" +
                           std::to_string(actors) + "): those train, the rest generate");
  }
  if (c.scheduler.placement == PlacementKind::kMultiplexed &&
      c.cluster.slots - actors < c.scheduler.rollout_floor) {
    return InvalidArgument("scheduler.actor_slots " + std::to_string(actors) + " of " +
                           std::to_string(c.cluster.slots) +
                           " slots leaves fewer than scheduler.rollout_floor " +
                           std::to_string(c.scheduler.rollout_floor) + " to generate");
  }
  if (c.scheduler.placement == PlacementKind::kElastic && c.cluster.slots <= c.scheduler.rollout_floor) {
    return InvalidArgument("scheduler.rollout_floor " + std::to_string(c.scheduler.rollout_floor) + " of " +
                           std::to_string(c.cluster.slots) + " slots leaves none to train");
  }
  if (c.scheduler.placement == PlacementKind::kElastic && c.deterministic) {
    return InvalidArgument(
        "scheduler.placement elastic changes how many slots train, and with it how sums round; "
        "deterministic needs colocated, split or multiplexed");
  }
  const int64_t dp = c.scheduler.placement == PlacementKind::kColocated ? c.cluster.slots : actors;
  if (c.scheduler.placement != PlacementKind::kElastic &&
      !ValidDp(dp, c.train.groups_per_step, c.scheduler.uneven_dp)) {
    return InvalidArgument(
        std::to_string(dp) + " slots cannot share train.groups_per_step " +
        std::to_string(c.train.groups_per_step) +
        (c.scheduler.uneven_dp ? "; train on fewer" : " evenly; change one of them, or scheduler.uneven_dp"));
  }
  if (c.scheduler.oversample < 1) return InvalidArgument("scheduler.oversample has to be 1 or more");
  if (c.scheduler.min_step_batch_fraction <= 0 || c.scheduler.min_step_batch_fraction > 1) {
    return InvalidArgument("scheduler.min_step_batch_fraction has to be in (0, 1]");
  }
  if ((c.job == JobKind::kRl || EvalQuestions(o) > 0) && c.environment.name.empty() && c.reward.workers <= 0)
    return InvalidArgument("reward.workers has to be positive");
  if (!c.environment.name.empty() && c.job != JobKind::kRl)
    return InvalidArgument("environment.name belongs to job: rl");
  if (!c.environment.name.empty() && c.environment.workers <= 0)
    return InvalidArgument("environment.workers has to be positive");
  return OkStatus();
}

Status SameRun(const record::RunTerms& was, const ControllerOptions& o) {
  const JobConfig& c = o.config;
  const auto differs = [](const char* key, const std::string& a, const std::string& b) {
    return InvalidArgument(std::string(key) + " is " + b + ", but the run was begun with " + a +
                           "; it cannot change on --resume (start anew with --fresh)");
  };
  const int64_t group_size = SamplesPerRow(c);
  if (was.job != Word(c.job)) return differs("job", was.job, Word(c.job));
  if (was.groups_per_step != c.train.groups_per_step) {
    return differs("train.groups_per_step", std::to_string(was.groups_per_step),
                   std::to_string(c.train.groups_per_step));
  }
  if (was.group_size != group_size)
    return differs("rollout.group_size", std::to_string(was.group_size), std::to_string(group_size));
  if (was.data_size != o.data_rows)
    return differs("the number of data rows", std::to_string(was.data_size), std::to_string(o.data_rows));
  return OkStatus();
}

}  // namespace tidepool::scheduler
