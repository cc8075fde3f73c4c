#pragma once
// A small job to be simulated: long-tailed answers, half of the slots train (`split`: for good), everything
// else as little as possible. Tests change what they are about.

#include <algorithm>
#include <cstdint>
#include <string>

#include "scheduler/simulator/simulator.h"

namespace tidepool::scheduler {

inline SimJob Rehearsal(PlacementKind placement, int64_t slots) {
  SimJob j;
  j.name = "test";
  j.hardware = {"test", "made up", 8e14, 3e12, 8e10, 4e11, 5e10, 5e10, 0.002};
  j.model = {"m", 8e9, 8e9, 32, 32, 8, 128};
  j.lengths = {800, 0.7, 0.3};
  j.controller.run_id = "sim";
  j.controller.data_rows = int64_t{1} << 30;
  ControllerOptions& c = j.controller;
  c.fleet.placement = placement;
  c.fleet.actor_slots = std::max<int64_t>(1, slots / 2);
  c.fleet.slots = slots;
  c.batch.groups_per_step = 8;
  c.steps = 4;
  c.batch.group_size = 4;
  c.rollout.max_new_tokens = 4096;
  c.rollout.chunk_tokens = 256;
  c.rollout.max_concurrent = 100000;
  c.checkpoint.every_steps = 0;
  c.reward.workers = 4;
  return j;
}

}  // namespace tidepool::scheduler
