// Which options make a run, and which may change when a run is resumed.

#include <algorithm>
#include <set>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

Status Validate(const ControllerOptions& c) {
  if (c.data_rows <= 0) return InvalidArgument("the data set has no rows; a run needs at least one");
  if (c.batch.groups_per_step <= 0) return InvalidArgument("train.groups_per_step has to be positive");
  if (c.batch.group_size <= 0) return InvalidArgument("rollout.group_size has to be positive");
  if (c.job == JobKind::kRl && c.rollout.max_new_tokens <= 0)
    return InvalidArgument("rollout.max_new_tokens has to be positive");
  if (c.batch.max_lag_versions < 0) return InvalidArgument("scheduler.max_lag_versions has to be 0 or more");
  if (c.fleet.slots <= 0) return InvalidArgument("cluster.slots has to be positive");
  if (c.fleet.min_slots < 0 || c.fleet.min_slots > c.fleet.slots)
    return InvalidArgument("cluster.min_slots is " + std::to_string(c.fleet.min_slots) + " of " +
                           std::to_string(c.fleet.slots) + " slots (cluster.slots)");
  if (c.fleet.slots_per_worker <= 0) return InvalidArgument("a device worker has no slot");
  std::set<SlotId> in_gangs;
  for (const std::vector<SlotId>& gang : c.fleet.gangs) {
    if (gang.empty()) return InvalidArgument("a gang of slots has no slots");
    for (const SlotId slot : gang) {
      if (slot.value < 0 || slot.value >= c.fleet.slots || !in_gangs.insert(slot).second)
        return InvalidArgument("slot " + std::to_string(slot.value) +
                               " of a gang is in another one, too, or above cluster.slots");
    }
  }
  TP_RETURN_IF_ERROR(CheckPolicy(c.fleet.placement, c.fleet.policy));
  const int64_t actors = c.fleet.actor_slots;
  const bool generates = c.job == JobKind::kRl || c.eval.questions() > 0;
  if (actors <= 0) return InvalidArgument("scheduler.actor_slots has to be positive");
  if (c.fleet.placement == PlacementKind::kSplit && generates && actors >= c.fleet.slots) {
    return InvalidArgument("scheduler.placement split needs cluster.slots above scheduler.actor_slots (" +
                           std::to_string(actors) + "): those train, the rest generate");
  }
  if (c.fleet.placement == PlacementKind::kMultiplexed && c.fleet.slots - actors < c.fleet.rollout_floor) {
    return InvalidArgument("scheduler.actor_slots " + std::to_string(actors) + " of " +
                           std::to_string(c.fleet.slots) +
                           " slots leaves fewer than scheduler.rollout_floor " +
                           std::to_string(c.fleet.rollout_floor) + " to generate");
  }
  if (c.fleet.placement == PlacementKind::kElastic && c.fleet.slots <= c.fleet.rollout_floor) {
    return InvalidArgument("scheduler.rollout_floor " + std::to_string(c.fleet.rollout_floor) + " of " +
                           std::to_string(c.fleet.slots) + " slots leaves none to train");
  }
  if (c.fleet.placement == PlacementKind::kElastic && c.deterministic) {
    return InvalidArgument(
        "scheduler.placement elastic changes how many slots train, and with it how sums round; "
        "deterministic needs colocated, split or multiplexed");
  }
  int64_t trainers = c.fleet.placement == PlacementKind::kColocated ? c.fleet.slots : actors;
  if (c.fleet.placement != PlacementKind::kColocated) {
    for (const std::vector<SlotId>& gang : c.fleet.gangs) {  // all of it, or nobody
      for (const SlotId slot : gang)
        trainers += (gang.front().value < actors ? 1 : 0) - (slot.value < actors ? 1 : 0);
    }
  }
  if (c.fleet.tensor < 1 || trainers % c.fleet.tensor != 0) {
    return InvalidArgument("train.mesh.tp " + std::to_string(c.fleet.tensor) + " does not divide the " +
                           std::to_string(trainers) + " slots that train");
  }
  if (c.fleet.experts < 1 || trainers % c.fleet.experts != 0) {
    return InvalidArgument("train.mesh.ep " + std::to_string(c.fleet.experts) + " does not divide the " +
                           std::to_string(trainers) + " slots that train");
  }
  const int64_t dp = trainers / c.fleet.tensor;
  if (c.fleet.placement != PlacementKind::kElastic &&
      !ValidDp(dp, c.batch.groups_per_step, c.fleet.uneven_dp)) {
    return InvalidArgument(
        std::to_string(dp) + " slots cannot share train.groups_per_step " +
        std::to_string(c.batch.groups_per_step) +
        (c.fleet.uneven_dp ? "; train on fewer" : " evenly; change one of them, or scheduler.uneven_dp"));
  }
  if (c.batch.oversample < 1) return InvalidArgument("scheduler.oversample has to be 1 or more");
  if (c.batch.min_step_batch_fraction <= 0 || c.batch.min_step_batch_fraction > 1) {
    return InvalidArgument("scheduler.min_step_batch_fraction has to be in (0, 1]");
  }
  if ((c.job == JobKind::kRl || c.eval.questions() > 0) && !c.environment.used && c.reward.workers <= 0)
    return InvalidArgument("reward.workers has to be positive");
  if (c.environment.used && c.job != JobKind::kRl)
    return InvalidArgument("environment.name belongs to job: rl");
  if (c.environment.used && c.environment.workers <= 0)
    return InvalidArgument("environment.workers has to be positive");
  return OkStatus();
}

Status SameRun(const record::RunTerms& was, const ControllerOptions& c) {
  const auto differs = [](const char* key, const std::string& a, const std::string& b) {
    return InvalidArgument(std::string(key) + " is " + b + ", but the run was begun with " + a +
                           "; it cannot change on --resume (start anew with --fresh)");
  };
  if (was.job != Name(c.job)) return differs("job", was.job, Name(c.job));
  if (was.groups_per_step != c.batch.groups_per_step) {
    return differs("train.groups_per_step", std::to_string(was.groups_per_step),
                   std::to_string(c.batch.groups_per_step));
  }
  if (was.group_size != c.batch.group_size)
    return differs("rollout.group_size with rollout.redundancy", std::to_string(was.group_size),
                   std::to_string(c.batch.group_size));
  if (was.data_size != c.data_rows)
    return differs("the number of data rows", std::to_string(was.data_size), std::to_string(c.data_rows));
  return OkStatus();
}

}  // namespace tidepool::scheduler
