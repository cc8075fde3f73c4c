#pragma once
// Which device worker has which slots, and which slots form a gang. Fixed for a run. The pool takes any
// layout. The controller uses OneSlotEach, because Welcome, the dispatcher and the checker know one slot a
// worker.

#include <cstdint>
#include <map>
#include <vector>

#include "core/base/ids.h"

namespace tidepool::scheduler {

struct FleetLayout {
  std::map<WorkerId, std::vector<SlotId>> slots;  // of each device worker, one or more
  std::vector<std::vector<SlotId>> gangs;         // each slot is in one; the first one's id names the gang

  // `n` device workers, each with one slot, each slot a gang of its own.
  static FleetLayout OneSlotEach(int64_t n) {
    FleetLayout layout;
    for (int64_t i = 0; i < n; ++i) {
      layout.slots[{i}] = {{i}};
      layout.gangs.push_back({{i}});
    }
    return layout;
  }
};

}  // namespace tidepool::scheduler
