#pragma once
// Which layout a job should have: where its slots are (placement, how many train), and what those that train
// share (train.mesh.tp, train.zero), in micro-batches of how many tokens.
//
// What the config's own rules refuse, or what does not fit a slot by the memory plan
// (workers/device/memory_plan.h), is left out and counted. For each way to share, the micro-batch is the one
// whose step the cost model (scheduler/cost_model.h) says is the shortest of those that fit. Then the
// controller is rehearsed with them, the most promising first, until enough events were simulated. The same
// config gives the same answer: nothing is timed.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/config/load.h"
#include "scheduler/simulator/simulator.h"

namespace tidepool::workers {

struct Layout {
  PlacementKind placement = PlacementKind::kColocated;
  std::string policy;       // scheduler.policy
  int64_t actor_slots = 1;  // split, multiplexed
  int64_t tp = 1, zero = 0;
  int64_t micro_batch_tokens = 0;
  friend bool operator==(const Layout&, const Layout&) = default;
};
Layout LayoutOf(const JobConfig& config);
// "split, 2 of 4 slots train, tp 2, micro-batches of 2048 tokens"
std::string LayoutText(const Layout& layout, int64_t slots);
// Keys of `config` that have to have other values for it: key and value as an override has them.
std::vector<std::pair<std::string, std::string>> LayoutKeys(const JobConfig& config, const Layout& layout);

// Memory that there is. On GPUs that of each.
struct LayoutRoom {
  int64_t slot_bytes = 0;     // of each slot; 0: ...
  int64_t machine_bytes = 0;  // ... what this leaves to each beside other processes and /dev/shm
};

struct PlannedLayout {
  Layout layout;
  bool given = false;  // the config's own
  // The most that one takes of slots that may train, and of the others (0: there are none). Where slots hold
  // both roles and there is no room for both at once, what they take in turns.
  int64_t train_bytes = 0, other_bytes = 0;
  double train_s = 0, exchange_s = 0;  // a step of a slot that trains, by the cost model; of it, collectives
  scheduler::SimReport report;
  double tokens_per_s = 0;
  std::string bound;  // by what
};

struct TooLarge {
  int64_t count = 0;
  std::string part;  // the largest that a key makes smaller
  // Of the one that comes nearest to fitting.
  Layout layout;
  std::string slot, parts;  // parts: ProcessMemory::PartsText
  int64_t bytes = 0, missing = 0;
};

struct FoundLayouts {
  std::vector<PlannedLayout> layouts;  // rehearsed, the fastest first
  int64_t tried = 0;
  std::vector<std::pair<std::string, int64_t>> refused;  // why, how many; numbers are those of the first
  std::vector<TooLarge> too_large;                       // by part
  std::optional<TooLarge> given_too_large;
  std::optional<std::string> given_refused;  // why the config's own is not among `layouts`
  int64_t not_rehearsed = 0;
};

// `job`: the rehearsal of `loaded` (SimJobOf). Errors of PlanMemory, and kInternal of Rehearse. No layout at
// all is no error.
StatusOr<FoundLayouts> SearchLayouts(const config::LoadedConfig& loaded, const scheduler::SimJob& job,
                                     const LayoutRoom& room);

}  // namespace tidepool::workers
