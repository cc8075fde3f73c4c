#pragma once
// The real controller in a modelled cluster, in virtual time: rehearses a job on hardware that is not there.
//
// Discrete events, one seed. Models stand for the engine (decode by the cost model, KV reserved by the dispatcher,
// prefill where a sample's KV is not), trainer (digest chain, time by the cost model), environments (turns with a
// drawn latency), rewards and transfers; every decision is the controller's. The engine model jumps to its
// next stop (end of a chunk, of a turn, an arrival), the time of the steps between in closed form;
// `per_step` makes an event of every engine step instead (to check the jumps).
// Nothing fails here; faults are the swarm's business (tests/scheduler). Not thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/controller.h"
#include "scheduler/cost_model.h"

namespace tidepool::scheduler {

struct LengthShape {                   // log-normal, of answers
  double mean_tokens = 1024;           // after cutting at the limit
  double sigma_between = 1.0, sigma_within = 0.35;  // of log length: between groups, within one
};
struct TurnShape {                     // several turns an answer; mean_turns 1: none
  double mean_turns = 1, sigma_turns = 0;  // log-normal, cut at max_turns
  int64_t max_turns = 100;
  double step_s_mean = 0, step_s_sd = 0;   // of an environment step, normal, never negative
  double slow_chance = 0, slow_s = 0;      // some steps (resets) take this much longer, exponential
  // Where the job has an environment (config.environment.name), turns are played by its environment workers, as in a real
  // run: between turns a sample is in no engine. A turn then takes a log-normal time, unless latency_median_s is 0.
  double latency_median_s = 0, latency_tail = 0, latency_max_s = 0;
  int64_t observation_tokens = 8;          // that the environment says after a turn
};

struct SimJob {
  std::string name;
  ControllerOptions controller;        // placement, groups, lag ...; slots are engines
  HardwareProfile hardware;
  ModelShape model;
  int64_t devices_per_slot = 1;
  double engine_efficiency = 0.9, train_efficiency = 0.4;  // of the sustained rates
  LengthShape lengths;
  TurnShape turns;
  std::map<SampleId, int64_t> recorded_lengths;  // of a real run; not empty: instead of `lengths` (others draw from these)
  int64_t prompt_tokens = 512;
  double tokens_per_step = 1;          // > 1: accepted drafts
  double reward_s = 0.05, row_s = 0;
  double release_s = 0.1, grant_s = 0.2;   // of a slot, apart from bytes
  double publish_s = 0.01, message_s = 0.0005;
  bool true_lengths = false;           // the dispatcher knows them (oracle order)
  uint64_t seed = 1;
  bool per_step = false, check = true;
  std::function<void(const JournalEntry&)> on_record;  // every record, in order; may be empty
  double limit_s = 1e9;                // virtual
};

struct SimReport {
  bool done = false;
  std::string why;
  int64_t steps = 0, devices = 0, events = 0, records = 0;
  double seconds = 0, cpu_s = 0;       // virtual; processor time is filled in by the caller
  double tokens = 0, tokens_per_s = 0, samples_per_s = 0;
  double step_s = 0;                   // mean time between commits, the first left out
  double rollout_s = 0, tail_s = 0;    // per step: first start to last finish; last 10 % of it by samples
  double idle_rollout = 0, idle_actor = 0;  // of the time that slots were held by the role
  double share_expanded = 0;           // of all slot-seconds: held for rollout
  double prefilled = 0, prefilled_again = 0;  // tokens; again: of samples whose KV was somewhere else
  double switch_s = 0;
  int64_t switches = 0, rollbacks = 0, dropped = 0, stale = 0;
  std::vector<int64_t> lag_hist;
  std::string violation;               // "" if the checker found none
  uint64_t log_hash = 0;               // of the journal
};

class Simulator {
 public:
  explicit Simulator(const SimJob& job);
  ~Simulator();
  // kInvalidArgument if the job cannot be (controller options, profile, memory). Runs to the end.
  StatusOr<SimReport> Run();
  // Mean length of answers after calibration, and the length of one (deterministic).
  [[nodiscard]] int64_t LengthOf(const SampleId& tid) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::scheduler
