#pragma once
// Which device worker has which slots, and which slots form a gang. Fixed for a run. The pool takes any
// layout. The controller uses OneSlotEach, because Welcome, the dispatcher and the checker know one slot a
// worker.

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

  // `n` device workers, each with the slot of its number. A slot that is in none of `gangs` is one by itself.
  static FleetLayout OneSlotEach(int64_t n, std::vector<std::vector<SlotId>> gangs = {}) {
    FleetLayout layout{.slots = {}, .gangs = std::move(gangs)};
    std::set<SlotId> taken;
    for (const std::vector<SlotId>& gang : layout.gangs) taken.insert(gang.begin(), gang.end());
    for (int64_t i = 0; i < n; ++i) {
      layout.slots[{i}] = {{i}};
      if (!taken.contains({i})) layout.gangs.push_back({{i}});
    }
    return layout;
  }
};

}  // namespace tidepool::scheduler
