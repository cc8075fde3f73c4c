#pragma once
// Who is to hold which slot. A placement (scheduler.placement) says what a slot may ever hold; a policy
// decides within it, its own by default, which has its name, or the one that scheduler.policy names
// (policies/, one file each).
//
// A policy is a pure function of what it is shown. It names a role for every slot that has a live worker;
// the pool finds out how to get there (one transaction), and the controller asks again after every event,
// so a policy keeps no state. A plan that is not valid is refused with the reason and the plan before it
// stays.
//
//   colocated    all slots switch together: every slot generates, then every slot trains
//   split        slots 0 .. actor_slots-1 train, the others generate
//   multiplexed  all generate; when a batch is ready, slots 0 .. actor_slots-1 train it and come back at
//                once after the optimizer step, while the others go on generating
//   elastic      as multiplexed, but how many train follows from what steps took with other numbers

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/choices.h"
#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "scheduler/cycles.h"

namespace tidepool::scheduler {

struct SlotView {
  SlotId id;
  Role role = Role::kNone;  // held, or where its open transition leads
  bool live = false;        // has a worker that the plan may count on
  bool avoid = false;       // failed to change hands a moment ago
  bool trains = false;      // member of the step that runs now
  bool has_state = false;   // its worker holds the trainer's state of the current step
  double taken_s = 1e18;    // seconds since it was last taken from rollout
  int64_t slots = 1;        // that it stands for: a gang's go by the first of them
};

struct PoolView {
  std::vector<SlotView> slots;  // by id
  int64_t actor_slots = 1, rollout_floor = 1;
  bool uneven_dp = true;
  int64_t tensor = 1;  // slots that are given one share
};

// What training is about now.
enum class TrainerNeed : uint8_t {
  kState,    // its state has to be made or restored: it needs a slot
  kStep,     // a step runs, or its group is being formed: its slots stay
  kBatch,    // a batch is ready and may be trained
  kNothing,  // it waits for samples
  kPublish,  // its newest weights are not published yet
  kDone,     // all steps are done, or the run is being stopped
};

struct LedgerView {
  TrainerNeed need = TrainerNeed::kNothing;
  bool generates = true;    // false: sft without evaluation
  bool evaluation = false;  // held-out questions wait for an engine
  bool stopping = false;
  int64_t groups_per_step = 1, group_size = 1, ready_groups = 0, batch_groups = 0;
};

// Measured; 0 means not known yet.
struct Forecast {
  double switch_s = 0;            // EWMA of one shrink, and of one expand
  double group_s = 0;             // until slots can train together that did not the last time
  std::span<const Cycle> cycles;  // the newest last
  bool beside = true;             // the bound on lag lets others be generated beside a step
};

// Roles by slot, sorted by slot: what a std::map would be, in one block of memory, because a plan for a
// thousand slots is made for every worker that joins. Slots in ascending order are added in constant time.
class SlotRoles {
 public:
  using Item = std::pair<SlotId, Role>;
  Role& operator[](SlotId id);  // added as kNone if it is not there
  [[nodiscard]] std::vector<Item>::const_iterator find(SlotId id) const;
  size_t erase(SlotId id);
  void reserve(size_t n) { items_.reserve(n); }
  [[nodiscard]] auto begin() const { return items_.begin(); }
  [[nodiscard]] auto end() const { return items_.end(); }
  [[nodiscard]] size_t size() const { return items_.size(); }
  [[nodiscard]] bool empty() const { return items_.empty(); }

 private:
  std::vector<Item> items_;
};

struct Plan {
  SlotRoles roles;          // kRollout or kActor for every live slot
  std::string why;          // for the journal: "shrink 3 of 8: cycle 1.20 s"
  double dwell_s = 0;       // promise: no slot is taken from rollout again so soon
  std::string failed = {};  // not empty: there is no plan, and why; such a one is refused
};

using Policy = std::function<Plan(const PoolView&, const LedgerView&, const Forecast&, TimePoint)>;

// May `dp` slots train a batch of `groups` groups of `group_size` samples?  Strict: groups % dp == 0.
// Uneven: dp <= groups.
bool ValidDp(int64_t dp, int64_t groups, bool uneven);

// How many of the slots with a worker a plan gives to each role.
struct PlanTotals {
  int64_t rollout = 0, actor = 0;
  void Count(Role role, int64_t n) { (role == Role::kActor ? actor : rollout) += n; }
};

// kInvalidArgument with the reason. Of the first slot that is wrong: a live one without a role, a role that
// is none, memory, a slot taken from a running step; else `totals` are added up.
Status CheckSlots(const Plan& plan, const PoolView& pool, PlanTotals& totals);
// Of all slots together: the floor, a number of training slots that does not divide the batch. `floor`:
// whether the rollout floor holds (a placement that trains on all slots asks for 0).
Status CheckTotals(const PlanTotals& totals, const PoolView& pool, const LedgerView& ledger, bool floor);

struct Placement {
  std::string name, summary;
  std::string file;  // that defines its policy
  Policy decide;
  bool keeps_floor = true;  // false: all slots may train at once
  bool forecasts = false;   // PolicyPlugin::forecasts
  // The role of a slot with a worker follows from its id, role and avoid, and from the ledger's need,
  // evaluation, stopping and batch_groups: not from other slots, what they hold, or time. Other slots are not
  // named. Then it is shown the slots that changed alone, where nothing else did.
  bool by_slot = false;
  // Slots that may ever hold a role under this placement; used to say when a fleet is dead.
  std::function<bool(const PoolView&, SlotId, Role)> eligible;
};

// kInvalidArgument: no policy has the name, or it decides within another placement. Empty: the placement's
// own.
Status CheckPolicy(PlacementKind placement, const std::string& policy);
// A placement with a policy; its name is the policy's. requires CheckPolicy. Who runs policies of others
// limits the calls of `decide` and stops what it throws (workers/controller/scheduler_options.h).
Placement PlacementOf(PlacementKind placement, const std::string& policy = {});

// How many slots the elastic placement trains on; 0: wait. `limit`: of those that may.
//
// What a step takes is measured, not forecast. It begins with all but an eighth of the slots, and a number
// stays until another one has proved better. After a while one an eighth of the slots away is tried for a few
// cycles; what is then shorter for a token is kept and the next in that direction tried, else the run goes
// back, and does not try in that direction again before the load has changed or the trial is forgotten. More
// slots are tried only where the step's own seconds that they save are worth it. Trials come so seldom that
// forming groups for them takes a fiftieth of the time at most. Where nothing is generated beside a step, all
// train.
//
// Forecasts of the refill from the samples under way were tried before, and lost
// (docs/perf_tried.md); so did a rule that leaves slots for the caches of all samples under way: what it
// costs that they do not fit is in the cycles.
int64_t ChooseElastic(const PoolView& pool, const LedgerView& ledger, const Forecast& forecast,
                      int64_t limit = INT64_MAX);

}  // namespace tidepool::scheduler
