#pragma once
// Whether gradients of a job are summed over several slots. Pure.

#include "core/base/config.h"

namespace tidepool::config {

inline bool OneSlotTrains(const JobConfig& c) {
  const PlacementKind placement = c.scheduler.placement;
  return c.cluster.slots == 1 ||
         ((placement == PlacementKind::kSplit || placement == PlacementKind::kMultiplexed) &&
          c.scheduler.actor_slots == 1);
}

}  // namespace tidepool::config
