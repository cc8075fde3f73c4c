#pragma once
// The real controller in a modelled cluster, in virtual time: rehearses a job on hardware that is not there.
//
// Discrete events, one seed. Models stand for the engine (decode by the cost model, KV reserved by the
// dispatcher, prefill where a sample's KV is not), trainer (digest chain, time by the cost model),
// environments (turns with a drawn latency), rewards and transfers. Every decision is the controller's. The
// engine model jumps to its next stop (end of a chunk, of a turn, an arrival), the time of the steps between
// in closed form; `per_step` makes an event of every engine step instead (to check the jumps). `faults`
// (faults.h) make it go wrong: late and lost messages, dead, silent and slow workers, a slow or full disk, an
// operator. The swarm (tests/scheduler/sim_cluster) has no cost model but contents, and so checks decisions;
// here is what faults cost. Not thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/controller.h"
#include "scheduler/cost_model.h"
#include "scheduler/simulator/faults.h"
#include "scheduler/simulator/workload_draws.h"
#include "scheduler/slot_time.h"

namespace tidepool::scheduler {

struct SimJob : JobShape {
  std::string name;
  ControllerOptions controller;  // placement, groups, lag ...; slots are engines
  HardwareProfile hardware;
  ModelShape model;
  std::map<SampleId, int64_t>
      recorded_lengths;  // of a real run; not empty: instead of `lengths` (others draw from these)
  // Decode steps between two chances to join or leave a batch: the token_factor of a paced run. Above 1 a
  // rank of a training step counts its own time as busy and not the wait for slower ones, since a paced rank
  // keeps its own pace.
  int64_t engine_quantum = 1;
  double step_gap_s = 0;   // of hardware.step_overhead_s: between engine steps, so not busy
  double slow_beside = 1;  // factor of engine steps while another slot is at work (slots that share a
                           // machine); training times are those beside others
  double jitter = 0;  // relative deviation of a slot's speed, drawn anew with each load of weights and each
                      // training step (lognormal, mean 1)
  // Of the slots that train (scheduler/cost_model.h); how many have parts of one model says the controller.
  int64_t zero = 0;
  int64_t micro_batch_tokens = 0;  // 0: what each micro-batch costs is not counted
  bool one_host = false;
  double row_s = 0;
  double publish_s = 0.01, message_s = 0.0005;
  double tick_s = 5;  // between two ticks of the controller; every engine says then how it goes
  FaultShape faults;
  bool true_lengths = false;  // the dispatcher knows them (oracle order)
  uint64_t seed = 1;
  bool per_step = false, check = true;
  std::function<void(const JournalEntry&)> on_record;  // every record, in order; may be empty
  double limit_s = 1e9;                                // virtual
  std::map<WorkerId, double> join_s;  // when workers said hello in a real run; others at once
};

struct SimReport {
  bool done = false;
  std::string why;
  int64_t steps = 0, devices = 0, events = 0, records = 0;
  double seconds = 0, cpu_s = 0;  // virtual; processor time is filled in by the caller
  double tokens = 0, tokens_per_s = 0, samples_per_s = 0;
  double step_s = 0;                 // mean time between commits, the first left out
  double rollout_s = 0, tail_s = 0;  // per step: first start to last finish; last 10 % of it by samples
  // Shares as slot_time.h has them, over the steps after the first, as step_s (of one step alone: that).
  double idle_rollout = 0, idle_actor = 0;
  double share_expanded = 0;  // of all slot-seconds: held for rollout
  struct Step {
    double seconds = 0;  // since the step report before
    SlotTime::Cut time;
  };
  std::vector<Step> per_step;
  double prefilled = 0, prefilled_again = 0;  // tokens; again: of samples whose KV was somewhere else
  double switch_s = 0;
  int64_t switches = 0, rollbacks = 0, dropped = 0, stale = 0;
  int64_t faults = 0, deaths = 0, lives = 1;  // lives: of the controller
  int64_t lost_tokens =
      0;  // had arrived and were asked for again (a restart of the controller apart); always 0
  int64_t steps_trained = 0;  // number of the last committed step
  std::vector<int64_t> lag_hist;
  std::string violation;  // "" if the checker found none
  uint64_t log_hash = 0;  // of the journal
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
