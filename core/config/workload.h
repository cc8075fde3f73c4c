#pragma once
// What `tidepool simulate` and `plan` read besides job configs: hardware profiles and simulated workloads.
//
// Both are YAML of the same bounded kind as configs (core/config/yaml_tree.h): unknown keys, wrong types and
// values out of range are errors with file and line. Plain data; no exceptions leave this module.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/choices.h"
#include "core/base/fault_shape.h"
#include "core/base/hardware.h"
#include "core/base/job_shape.h"
#include "core/base/status.h"

namespace tidepool::config {

// configs/hardware/*.yaml. `name` as a file at `from` says it: `name` itself if there is such a file (seen
// from the current directory, then from `from`), else hardware/NAME.yaml beside the folder of `from`, else
// configs/hardware/NAME.yaml. kNotFound, kInvalidArgument (all problems, one a line).
StatusOr<HardwareProfile> LoadHardware(const std::string& name, const std::string& from = "");

// configs/pace/*.yaml: the model and hardware whose time a paced slot takes (cluster.pace).
struct Pace {
  std::string name;  // for people
  HardwareProfile hardware;
  ModelShape model;
  int64_t devices_per_slot = 1;
  double engine_efficiency = 0.9,
         train_efficiency = 0.4;  // engine: of the sustained rates; train: of the engine's
  int64_t token_factor = 1;       // tokens of the modelled job that one token of this job stands for
  // For `tidepool simulate` alone, measured by tests/bench/calibrate.py on a run; negative: not given.
  double step_gap_s = -1;  // of the step overhead: between two engine steps, so not busy
  double slow_beside =
      -1;  // an engine step takes so many times longer while another slot works (slots share a machine)
  double jitter =
      -1;  // relative deviation of a slot's speed from one load of weights, or training step, to the next
  double message_s = -1, reward_s = -1, release_s = -1, grant_s = -1, group_s = -1, publish_s = -1;
};
StatusOr<Pace> LoadPace(const std::string& path);

// A simulated job; the same keys under `job` and in each of `variants` (which change some of them).
struct WorkloadJob : JobShape {
  PlacementKind placement = PlacementKind::kColocated;
  KvOnUpdate kv_on_update = KvOnUpdate::kRecompute;
  OnStale on_stale = OnStale::kReissue;
  std::string policy = {};  // scheduler.policy
  std::string order = "context";
  int64_t slots = 1, actor_slots = 1, rollout_floor = 1;
  int64_t groups_per_step = 64, group_size = 8, steps = 4, max_lag_versions = 0;
  double oversample = 1;
  int64_t max_new_tokens = 4096, chunk_tokens = 0, max_concurrent = 1 << 20, kv_cache_tokens = 0,
          reward_workers = 64;
  int64_t seed = 1, checkpoint_every = 0;
  bool early_columns = true;  // train.early_columns
};
struct Workload {
  std::string name, what, hardware;  // hardware: a profile's name, or a path
  ModelShape model;
  FaultShape faults;                                          // in every variant
  std::vector<std::pair<std::string, WorkloadJob>> variants;  // by name; one "base" if none is written
  // What the publication states (never fitted), and what it leaves out.
  struct Published {
    std::string what, value, source;
  };
  std::vector<Published> published;
  std::vector<std::string> left_out;
  struct Sweep {
    std::string key;  // of `job`
    std::vector<std::pair<std::string, std::vector<std::pair<std::string, WorkloadJob>>>>
        points;  // value -> variants
  };
  std::vector<Sweep> sweeps;
};
StatusOr<Workload> LoadWorkload(const std::string& path);
// The file says `workload:` at its top, so it is one; false also where it cannot be read.
bool IsWorkload(const std::string& path);

}  // namespace tidepool::config
