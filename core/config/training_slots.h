#pragma once
// How many slots train. Pure.

#include <algorithm>
#include <cstdint>

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

}  // namespace tidepool::config
