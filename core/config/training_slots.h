#pragma once
// How many slots train, and which are one engine. Pure.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/config.h"

namespace tidepool::config {

inline bool OneSlotTrains(const JobConfig& c) {
  const PlacementKind placement = c.scheduler.placement;
  return c.cluster.slots == 1 ||
         ((placement == PlacementKind::kSplit || placement == PlacementKind::kMultiplexed) &&
          c.scheduler.actor_slots == 1);
}

// Elastic: at most.
inline int64_t TrainingSlots(const JobConfig& c) {
  const PlacementKind placement = c.scheduler.placement;
  const bool some = placement == PlacementKind::kSplit || placement == PlacementKind::kMultiplexed;
  return some ? std::min(c.scheduler.actor_slots, c.cluster.slots) : c.cluster.slots;
}

// The first slot that generates; those behind it do, too.
inline int64_t FirstEngineSlot(const JobConfig& c) {
  return c.scheduler.placement == PlacementKind::kSplit ? c.scheduler.actor_slots : 0;
}

// Slots that are one engine (rollout.mesh.tp), in order; none where each is one by itself.
inline std::vector<std::vector<int64_t>> EngineGangs(const JobConfig& c) {
  std::vector<std::vector<int64_t>> gangs;
  const int64_t tp = c.rollout.mesh.tp;
  if (tp <= 1) return gangs;
  for (int64_t first = FirstEngineSlot(c); first + tp <= c.cluster.slots; first += tp) {
    gangs.emplace_back();
    for (int64_t slot = first; slot < first + tp; ++slot) gangs.back().push_back(slot);
  }
  return gangs;
}

}  // namespace tidepool::config
