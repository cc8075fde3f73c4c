#pragma once
// One policy, as the files of this folder define them (docs/adding_a_policy.md): which slot does what,
// decided anew after every event from what it is shown. A pure function: no clock, no state, no I/O; the same
// views give the same plan.
//
// A policy decides within a placement (scheduler.placement), which says what a slot may ever hold: memory is
// planned and the config is checked by that. scheduler.policy names one in place of the placement's own,
// which has its name.

#include <span>
#include <string>
#include <vector>

#include "core/base/plugin.h"
#include "scheduler/placement.h"

namespace tidepool::scheduler {

struct PolicyPlugin {
  std::string summary;                                    // one line
  PlacementKind placement = PlacementKind::kMultiplexed;  // within which it decides
  Policy decide;
  bool forecasts = false;  // it reads them
  bool by_slot = false;    // Placement::by_slot
};

std::span<const Plugin<PolicyPlugin>> PolicyPlugins();  // the table that the build writes

// Plans to start from. Every slot with a worker gets `role`; or keeps what it holds, `fresh` if that is
// nothing; or the first `m` of `order` train and the rest generates. `why` is for the journal.
Plan Everywhere(const PoolView& pool, Role role, std::string why);
Plan Stay(const PoolView& pool, Role fresh, std::string why);
Plan Shrink(const PoolView& pool, const std::vector<SlotId>& order, int64_t m, std::string why);

}  // namespace tidepool::scheduler
