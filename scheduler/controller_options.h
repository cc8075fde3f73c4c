#pragma once
// What the controller has to know of a job. workers/controller/scheduler_options.h makes it from a config;
// messages name the config's keys. Plain data. Units: `_s` seconds, `_tokens`; counts are int64_t.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/choices.h"
#include "core/base/group_condition.h"
#include "core/base/ids.h"
#include "core/base/places.h"
#include "scheduler/best_checkpoint.h"
#include "scheduler/dispatcher.h"
#include "scheduler/events.h"
#include "scheduler/placement.h"

namespace tidepool::scheduler {

// Slots, and how long their workers may take.
struct FleetOptions {
  PlacementKind placement = PlacementKind::kColocated;
  std::string policy = {};  // decides within the placement; empty: its own
  int64_t slots = 1;
  // A run begins when so many slots have a worker, and ends when fewer are left that are not given up. 0: it
  // begins with any that can do the job, and every place has to come once.
  int64_t min_slots = 0;
  int64_t slots_per_worker = 1;  // has no key of the config yet, because a worker process has one device
  // Slots that hold a role together, in order, as one engine does (rollout.mesh); those that are named in
  // none are by themselves.
  std::vector<std::vector<SlotId>> gangs;
  int64_t actor_slots = 1;  // split, multiplexed: slots 0 .. actor_slots-1 train; elastic: the most it takes
  int64_t rollout_floor = 1;  // slots that always generate (multiplexed, elastic)
  // The slots that train share the optimizer's state, each has a part.
  bool zero = false;
  int64_t tensor = 1;   // of them have parts of one model, and are given the same rows; divides their number
  int64_t experts = 1;  // of them divide the experts of the model, with rows each; divides their number. One
                        // of the two is 1
  [[nodiscard]] int64_t parts() const { return tensor * experts; }
  // Then all of them train, or none.
  [[nodiscard]] bool parted() const { return zero || parts() > 1; }
  bool uneven_dp = true;          // groups need not divide evenly by the training slots
  bool launch_workers = true;     // false: workers are started by hand, nothing is restarted
  double reattach_grace_s = 0.0;  // that a new controller waits for workers of the last one
  double heartbeat_s = 0.5;
  double start_timeout_s = 600.0;  // of a start, a load, a checkpoint
  double stall_timeout_s = 120.0;  // no progress anywhere while work remains
  double quiet_s = 0;              // a worker may make none for so long, whatever is usual
};

// Which samples make a step, and how old they may be.
struct BatchOptions {
  int64_t groups_per_step = 8;
  int64_t group_size = 8;  // samples of one row of data
  int64_t redundancy = 0;  // so many of them are dropped when the others are graded
  int64_t max_lag_versions = 0;
  OnStale on_stale = OnStale::kReissue;
  int64_t max_reissues = 2;
  double oversample = 1.0;  // groups started for each that is trained
  OversampleMode oversample_mode = OversampleMode::kStartOrder;
  double straggler_wait = 0.1;  // of a step's time, for a group that would expire
  double min_step_batch_fraction = 1.0;
  double infra_drop_alarm = 0.05, infra_drop_stop = 0.20;  // shares over 20 steps
  bool drops_equal_rewards = false;                        // groups whose samples were graded alike
  std::vector<GroupCondition> keep_groups;                 // of each group; others are dropped
  int64_t filter_rounds = 10;  // that many batches dropped so in a row end the run; 0: no bound
  // Slots that train and wait for the rest of a batch are given its groups as they are queued
  // (command::Preview).
  bool early_columns = false;
};

struct RolloutOptions {
  int64_t max_prompt_tokens = 1024;
  int64_t max_new_tokens = 64;
  int64_t chunk_tokens = 0;  // 0: ChunkTokens chooses
  int64_t block_tokens = 16;
  int64_t max_concurrent = 256;  // samples in flight
  int64_t kv_cache_tokens = 0;   // of one worker; 0: sized for max_concurrent
  Admission admission = Admission::kReserve;
  KvOnUpdate kv_on_update = KvOnUpdate::kRecompute;
  bool pin_version = false;  // a sample ends on the weights that it began with
  double repack_s = 5;       // between looks at tails that could be moved together (pin_version); 0: never
};

struct RewardOptions {
  int64_t workers = 1;
  int64_t max_retries = 2;            // of infrastructure failures, on any worker
  int64_t in_flight_per_worker = 16;  // samples
  double timeout_s = 15;              // of one sample: all its reward functions
};

struct EnvironmentOptions {
  bool used = false;
  bool in_rollout = false;  // it is stepped where the policy runs: no sample waits for an environment worker
  int64_t workers = 1;
  int64_t max_turn_tokens = 0;  // of the policy in one turn; 0: what rollout.max_new_tokens leaves
  int64_t max_retries = 2;
  double reset_timeout_s = 600.0, step_timeout_s = 60.0, episode_timeout_s = 3000.0;
  bool holds_rows = false, slow_replays = false;  // EpisodeOptions
};

struct EvalOptions {
  int64_t rows = 0;         // held-out questions of one evaluation; 0: there is none
  int64_t every_steps = 0;  // 0: only before and after
  bool before_train = true, after_train = true;
  double stop_at_accuracy = 0;  // the job is done once an evaluation reaches it; 0: never
  [[nodiscard]] int64_t questions() const {
    return before_train || after_train || every_steps > 0 ? rows : 0;
  }
};

struct SaveOptions {
  int64_t every_steps = 20;          // 0: only at start and end
  int64_t keep = 2;                  // >= 2
  int64_t recovery_every_steps = 0;  // 0: no copies of the trainer's state in memory
  bool save_final = true;
  std::string keep_best;               // metric of an evaluation (best_checkpoint.h); empty: none is kept
  std::optional<BestCheckpoint> best;  // by that metric: whose model best/ has when the controller begins
};

struct ControllerOptions {
  std::string run_id;
  std::string config_digest;
  JobKind job = JobKind::kRl;
  uint64_t seed = 1;
  bool deterministic = false;
  int64_t data_rows = 0;  // rows of one epoch; ordinals run on over epochs
  int64_t steps = 20;
  int64_t max_nonfinite_steps = 3;        // in a row, then stop at the last good weights
  int64_t device_bytes_need_rollout = 0;  // predicted memory of a role, for Release
  int64_t device_bytes_need_actor = 0;
  int64_t device_bytes_offload = 0;  // what a Release may have to write to disk first
  FleetOptions fleet;
  BatchOptions batch;
  RolloutOptions rollout;
  RewardOptions reward;
  EnvironmentOptions environment;
  EvalOptions eval;
  SaveOptions checkpoint;
  DispatchOptions dispatch;              // order and oracle; the rest is taken from `rollout`
  const Placement* placement = nullptr;  // copied; null: that of fleet.placement

  // Worker places: first the device workers, then the workers beside them: reward workers, or environment
  // workers where the job has an environment.
  [[nodiscard]] int64_t device_workers() const {
    return (fleet.slots + fleet.slots_per_worker - 1) / fleet.slots_per_worker;
  }
  [[nodiscard]] WorkerKind side_kind() const {
    return environment.used ? WorkerKind::kEnvironment : WorkerKind::kReward;
  }
  [[nodiscard]] int64_t side_workers() const {
    return environment.used ? environment.workers : reward.workers;
  }
  [[nodiscard]] WorkerId side_worker(int64_t i) const { return {device_workers() + i}; }
  // As people read of it: "reward-0", and one life of it "reward-0/inc3".
  [[nodiscard]] std::string NameOf(WorkerId worker) const {
    return PlaceName(device_workers(), Name(side_kind()), worker.value);
  }
  [[nodiscard]] std::string NameOf(const WorkerRef& worker) const {
    return WorkerName(NameOf(worker.worker), worker.inc);
  }
};

}  // namespace tidepool::scheduler
