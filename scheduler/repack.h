#pragma once
// Tails moved together: which engines to empty so that they can take new weights (after
// Laminar).
//
// With rollout.pin_version an engine keeps its weights until its last sample is done, so a few long ones hold
// many engines back. Best fit, decreasing: the engine with the least KV is emptied first, each of its
// samples, largest first, into the fullest engine that still has room, and only if all of them find a place.
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
struct RepackEngine {
  SlotId slot;
  std::vector<RepackSample> samples;
};
struct RepackLimits {
  int64_t kv_tokens = 0;  // of an engine's cache; 0: not known, samples alone count
  int64_t samples = 1;    // an engine's batch
  double share = 0.8;     // of either that may be filled
};
struct Move {
  SampleId tid;
  SlotId from, to;
};
// Engines of one version, none with samples waiting. Empty: nothing is gained.
std::vector<Move> PlanRepack(std::vector<RepackEngine> engines, const RepackLimits& limits);

}  // namespace tidepool::scheduler
