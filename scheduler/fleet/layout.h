#pragma once
// Which device worker has which slots, and which slots form a gang. Fixed for a run.

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/base/ids.h"

namespace tidepool::scheduler {

struct FleetLayout {
  std::map<WorkerId, std::vector<SlotId>> slots;  // of each device worker, one or more
  std::vector<std::vector<SlotId>> gangs;         // each slot is in one; the first one's id names the gang

  // Slots 0 .. `slots` - 1, in turn to workers 0, 1, ... with `each` of them (the last one may have fewer). A
  // slot that is in none of `gangs` is one by itself.
  static FleetLayout Even(int64_t slots, int64_t each, std::vector<std::vector<SlotId>> gangs = {}) {
    FleetLayout layout{.slots = {}, .gangs = std::move(gangs)};
    std::set<SlotId> taken;
    for (const std::vector<SlotId>& gang : layout.gangs) taken.insert(gang.begin(), gang.end());
    for (int64_t i = 0; i < slots; ++i) {
      layout.slots[{i / each}].push_back({i});
      if (!taken.contains({i})) layout.gangs.push_back({{i}});
    }
    return layout;
  }
};

}  // namespace tidepool::scheduler
