#pragma once
// One modelled engine: a batch that decodes in steps, timed by the cost model.
//
// A step that has begun takes nobody in (but what came in the instant of its begin): what arrives meanwhile
// joins at its end, first its prefill, then its tokens, as in the real engine, where a message waits until
// the step under way is over. So a chunk costs its own steps and the rest of the one in which it arrived.
// Between two things that matter (a run's stop, an arrival that waits) steps are taken in closed form.
// `quantum`: decode steps that one engine step stands for (the token_factor of a paced slot; 1 for real
// hardware). Times are seconds of the simulation. Not thread-safe.

#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "scheduler/cost_model.h"
#include "scheduler/flat_table.h"

namespace tidepool::scheduler {

struct EngineRun {  // one chunk in an engine
  SampleId tid;
  int32_t att = 0;
  GroupId gid;
  int64_t context = 0;  // prompt and tokens so far
  int64_t chunk_left = 0, total_left = 0, turn_left = 0;
  double prefill = 0;     // tokens to compute before it can decode
  double fetch_s = 0;     // or to wait for its cache, which comes from where it was; the others wait, too
  int64_t generated = 0;  // in this chunk
  int64_t total = 0;      // of the sample
  bool decoding = false;  // in the batch; else it waits for the next step, or in a turn
  int64_t from_clock = 0, stop_clock = 0;
};

class EngineModel {
 public:
  // gap_s: of a step's time, between it and the next, so not busy.
  EngineModel(const CostModel& cost, int64_t quantum, double tokens_per_step, double gap_s)
      : cost_(&cost), quantum_(quantum), tokens_per_step_(tokens_per_step), gap_s_(gap_s) {}

  // Steps that were over by now. Call it before anything else at a time.
  void CatchUp(double now);
  // Joins with the next step; at once where the engine stands still.
  void Add(const EngineRun& run, double now);
  // Between turns it is in the engine, not in the batch.
  void Resume(const SampleId& tid, double now);
  [[nodiscard]] EngineRun* Find(const SampleId& tid);
  // Runs at their stop, out of the batch, in order; then those that waited join.
  std::vector<SampleId> Stop(double now);
  // Out of the engine, with the tokens up to the end of the last step.
  EngineRun Take(const SampleId& tid);
  // The step under way is over: returns when.
  double FinishStep(double now);
  // After the step under way nothing is computed for so long (weights are loaded): returns the end of it.
  double Stall(double seconds, double now);
  // All caches are computed again before the next step (a new version). Returns the tokens.
  double Recompute();
  // When Stop is due; infinity: nothing is under way. `one_step`: at the end of every step.
  [[nodiscard]] double Next(bool one_step) const;

  // Steps take so many times longer from now on. True if that changed anything.
  bool SetFactor(double factor, double now);
  [[nodiscard]] bool working() const { return batch_ > 0 || !waiting_.empty(); }
  [[nodiscard]] int64_t batch() const { return batch_; }
  [[nodiscard]] double kv() const { return kv_; }
  // What a token of each sample of the batch has taken since the last call, prefill between the steps and
  // all, and the steps alone: what heartbeats report. 0: no step has ended since, or no batch is under way.
  struct StepSeconds {
    double all = 0, decode = 0;
  };
  StepSeconds TakeStepSeconds();
  // Of all its runs, in order.
  [[nodiscard]] std::vector<SampleId> Runs() const { return runs_.SortedKeys(); }
  // Seconds of engine steps since the last call.
  double TakeBusy() { return std::exchange(busy_, 0.0); }
  // Tokens made since the last call.
  double TakeTokens() { return std::exchange(tokens_, 0.0); }

 private:
  struct RunStop {
    int64_t clock = 0;
    SampleId tid;
    friend bool operator>(const RunStop& x, const RunStop& y) {
      return std::tie(x.clock, x.tid) > std::tie(y.clock, y.tid);
    }
  };
  void Enter(EngineRun& run);
  void Leave(EngineRun& run);
  void DropStop();
  void Steps(int64_t steps);
  [[nodiscard]] int64_t StepsFor(const EngineRun& run) const;
  void Admit(double now);

  const CostModel* cost_;
  int64_t quantum_;
  double tokens_per_step_, gap_s_, factor_ = 1;
  std::vector<SampleId> waiting_;            // join at the next step
  std::pair<double, int64_t> begun_{-1, 0};  // when an idle engine last began, and its clock then
  int64_t batch_ = 0, clock_ = 0;            // clock: decode steps so far
  double kv_ = 0;                            // tokens of the batch
  double at_ = 0;                            // time of `clock`
  double finished_ = -1;                     // `at_` when no step is under way although it lies ahead
  double busy_ = 0, tokens_ = 0;
  double since_busy_ = 0, since_decode_ = 0;  // since the last report: of steps and prefills; of steps
  int64_t since_clock_ = 0;
  // A heap and a table, not trees: thousands of engines of a fleet take turns, so that what one touches is no
  // longer in a cache.
  std::vector<RunStop>
      stops_;  // heap, the next stop first; the first is always of the batch, others may have left it
  FlatTable<SampleId, EngineRun> runs_;
};

}  // namespace tidepool::scheduler
