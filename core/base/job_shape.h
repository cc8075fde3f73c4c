#pragma once
// What a rehearsed job is like: read from a workload (core/config/workload.h), played by the simulator
// (scheduler/simulator/simulator.h).

#include <cstdint>

namespace tidepool {

struct LengthShape {                                // log-normal, of answers
  double mean_tokens = 1024;                        // after cutting at the limit
  double sigma_between = 1.0, sigma_within = 0.35;  // of log length: between groups, within one
  // As a policy learns: at first as above, `growth` times as long after so many groups and from then on.
  double growth = 1;
  int64_t growth_groups = 0;
};
struct TurnShape {                         // several turns an answer; mean_turns 1: none
  double mean_turns = 1, sigma_turns = 0;  // log-normal, cut at max_turns
  int64_t max_turns = 100;
  double step_s_mean = 0, step_s_sd = 0;  // of an environment step, normal, never negative
  double slow_chance = 0, slow_s = 0;     // some steps (resets) take this much longer, exponential
  // Where the job has an environment (EnvironmentOptions::used), turns are played by its environment workers,
  // as in a real run: between turns a sample is in no engine. A turn then takes a log-normal time, unless
  // latency_median_s is 0.
  double latency_median_s = 0, latency_tail = 0, latency_max_s = 0;
  double straggler_share = 0, straggler_s = 0;  // of the samples: each of their turns takes so much longer
  int64_t observation_tokens = 8;               // that the environment says after a turn
};

struct JobShape {
  int64_t devices_per_slot = 1;
  double engine_efficiency = 0.9,
         train_efficiency = 0.4;  // engine: of the sustained rates; train: of the engine's
  bool recompute = false;         // training computes activations again
  bool prompt_once = false;       // training computes a prompt once a group, as our trainer does
  int64_t further_models = 0;     // reference, teacher, critic: a forward pass each over what is trained
  LengthShape lengths;
  TurnShape turns;
  int64_t prompt_tokens = 512;
  double tokens_per_step = 1;  // > 1: accepted drafts
  // Caches outlive an engine in a pool that all of them read over the network (as published for Seer; our
  // engines compute again).
  bool kv_pool = false;
  double reward_s = 0.05;
  double release_s = 0.1, grant_s = 0.2;  // of a slot, apart from bytes
  double group_s = 0.01;                  // for slots to find each other that did not train together last
};

}  // namespace tidepool
