#pragma once
// Tails moved together: which workers to empty so that they can take new weights (after
// Laminar).
//
// With rollout.pin_version a worker keeps its weights until its last sample is done, so a few long ones hold
// many workers back. Best fit, decreasing: the worker with the least KV is emptied first, each of its
// samples, largest first, into the fullest worker that still has room, and only if all of them find a place.
// Pure.

#include <cstdint>
#include <vector>

#include "core/base/ids.h"

namespace tidepool::scheduler {

struct RepackSample {
  SampleId tid;
  int64_t kv_tokens = 0;  // in the cache now
  int64_t left = 0;       // still expected
};
struct RepackWorker {
  WorkerId id;
  std::vector<RepackSample> samples;
};
struct RepackLimits {
  int64_t kv_tokens = 0;  // of a worker's cache; 0: not known, samples alone count
  int64_t samples = 1;    // a worker's batch
  double share = 0.8;     // of either that may be filled
};
struct Move {
  SampleId tid;
  WorkerId from, to;
};
// Workers of one version, none with samples waiting. Empty: nothing is gained.
std::vector<Move> PlanRepack(std::vector<RepackWorker> workers, const RepackLimits& limits);

}  // namespace tidepool::scheduler
