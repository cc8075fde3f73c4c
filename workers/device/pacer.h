#pragma once
// Paced slots (cluster.pace, MECHANISMS 5.1): an engine step, an optimizer step and a transfer of weights
// take at least the time that the cost model gives for a named model on named hardware. Everything else
// (processes, calls, transactions, journal, tokens) is real, so tens of slots can be shown, killed and
// measured on a few cores.
//
//   time kept = pace_scale * modelled time;   one token stands for `token_factor` tokens of the modelled job
//
// The real work comes first, then a sleep on the monotonic clock. A step that took longer than its pace is a
// miss; a run with more than 1 % of them says nothing about the modelled hardware, and Count() tells the
// scale that would have been enough. One thread; Count() from any.

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/config/workload.h"
#include "scheduler/cost_model.h"

namespace tidepool::workers {

struct PaceCount {
  int64_t steps = 0, missed = 0;
  double scale_needed = 0;  // at which at most 0.5 % of the steps so far would have missed
};

class Pacer {
 public:
  using Clock = std::chrono::steady_clock;
  // Null where cluster.pace is empty.
  static StatusOr<std::unique_ptr<Pacer>> Create(const ClusterConfig& cluster);

  // Modelled seconds, not scaled. rows: samples that decode; context: their tokens so far; prefill: tokens
  // computed to fill caches.
  [[nodiscard]] double EngineStep(int64_t rows, int64_t context, int64_t prefill) const;
  // Of this slot's share of the batch: tokens, and the sum of the squares of its rows' lengths; world: slots
  // that train.
  [[nodiscard]] double TrainStep(double tokens, double squares, int64_t world) const;
  // Of what another model says of rows.
  [[nodiscard]] double Score(double tokens, double squares) const;
  [[nodiscard]] double LoadWeights() const;
  [[nodiscard]] double CopyState() const;  // weights, master and moments: 14 bytes a parameter

  // Returns once `modelled` seconds (times the scale) have passed since `begin`. `stop` is asked every 5 ms;
  // true ends the wait. Steps in a row are kept on one schedule: a sleep that ends late is made good by the
  // next.
  void Keep(Clock::time_point begin, double modelled, const std::function<bool()>& stop = {});

  [[nodiscard]] PaceCount Count() const;

 private:
  static constexpr int kBins = 128;  // of real / modelled time, a factor 1.1 each
  Pacer(config::Pace pace, double scale);

  config::Pace pace_;
  scheduler::CostModel cost_;
  double scale_;
  Clock::time_point due_;  // of the last step kept
  mutable Mutex mu_;
  int64_t steps_ TP_GUARDED_BY(mu_) = 0, missed_ TP_GUARDED_BY(mu_) = 0;
  std::array<int64_t, kBins> ratios_ TP_GUARDED_BY(mu_){};
};

}  // namespace tidepool::workers
