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
//   elastic      as multiplexed, but how many train is chosen each time from forecasts

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/choices.h"
#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/base/time.h"

namespace tidepool::scheduler {

struct SlotView {
  SlotId id;
  Role role = Role::kNone;  // held, or where its open transition leads
  bool live = false;        // has a worker that the plan may count on
  bool avoid = false;       // failed to change hands a moment ago
  bool trains = false;      // member of the step that runs now
  bool has_state = false;   // its worker holds the trainer's state of the current step
  double taken_s = 1e18;    // seconds since it was last taken from rollout
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

// Samples that some batch still needs, as a forecast sees them.
struct Work {
  double samples = 0, tokens = 0;  // tokens: still to be generated, of all of them
  double longest = 0;              // of one sample
};

// Measured and predicted; 0 means not known yet.
struct Forecast {
  double train_work_s = 0;   // slot-seconds of a step that spread over slots
  double train_fixed_s = 0;  // seconds of a step that do not
  double switch_s = 0;       // EWMA of one shrink, and of one expand
  double state_copy_s = 0;   // for a slot that has no state of the trainer
  // A token of a response takes  token_fixed_s + token_sample_s b  with b samples in a slot's batch, and then
  // token_wait_s until the sample's environment, if it has one, lets it go on. Means over sampled and
  // observed tokens.
  double token_fixed_s = 0, token_sample_s = 0, token_wait_s = 0;
  // What the next batch needs: generated beside this step; and what begins only after it, because the bound
  // on lag admits it then.
  Work beside, after;
  double tail_samples = 0;  // in the engines beside the step, for whichever batch
  double tail_kv_tokens = 0;
  int64_t kv_tokens_per_slot = 0;
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
  bool forecasts = false;   // it reads them: they cost a look at every open group
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

// Seconds that one of `samples` samples takes for a token while `slots` slots share them. Those that wait for
// their environment are in no batch (Little's law): t = c0 + c1 b + w,  b = samples / slots (t - w) / t.
double SecondsPerToken(const Forecast& forecast, double samples, double slots);

// Chosen by the elastic placement; also for tests. 0 slots: wait.
//
//   Cycle(m) = T_sw(m) + T_train(m) + refill(m)
// is the time until the next batch is complete. While m of n slots train, the others share all samples that
// are under way; what is then left of the next batch, and what the bound on lag admits only now, is generated
// on n slots: no faster than their batches decode, and no faster than the longest sample. Fewer slots with
// fuller batches lose little, because a step's time is mostly that of reading the weights. (A constant rate
// of tokens a slot would make every m look equal.) If the cycles of several m are within kSame of the best,
// the largest m is taken: it publishes first, and samples begin on newer weights. The copy of the state that
// newcomers need is spread over the steps that they are expected to stay.
struct ElasticChoice {
  int64_t slots = 0;
  double cycle_s = 0;
};
// `limit`: of the slots that may train.
ElasticChoice ChooseElastic(const PoolView& pool, const LedgerView& ledger, const Forecast& forecast,
                            int64_t limit = INT64_MAX);

}  // namespace tidepool::scheduler
