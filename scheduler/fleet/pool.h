#pragma once
// Who holds which slot, and how that changes: by transactions over any number of slots.
//
//   slot:  free | held(r) --T_BEGIN--> draining --Drained--> releasing --Released (enough bytes)--> released
//          (a yes vote; a free slot has voted yes already);  all voted: T_COMMIT, Grant --> granting
//          --Granted--> held; all held: T_DONE.
//   before T_COMMIT a failure rolls the whole transition back (T_ROLLED_BACK, epochs rise): slots that still
//          drain are granted their role again (they go on with what they have), those that had released are
//          owed their old role: the controller asks the placement at once and either gives it back
//          (GrantBack) or takes the slot into the next transition.
//   after T_COMMIT there is only forward: a slot that fails is lost, T_DONE closes for the others.
//   too little memory proven free: QUAR; the slot is out of use until another process of its worker joins.
//
// At most one transition takes slots that are held; slots that hold nothing join by transitions of their
// own, so that a newcomer does not wait for somebody's drain. Slots outside a transition are not touched.
// What is held is a gang of slots (gang.h), nearly always of one: "slot" below is a gang, and each of its
// parts has records, commands and waits of its own, under one epoch. A step of a transition is over when
// every part has answered; a part that is lost takes the gang along. Every effect carries (slot, epoch);
// others are refused. The journal's view of a slot is RunState::slots(); this class adds the phase inside a
// transition. Not thread-safe.
//
// Deadlines (each a wait of WaitKind::kTransition): drain 10 s + 20 x the slot's step time; release 10 s +
// bytes at 1 GB/s; grant 60 s + bytes at 0.1 of the rate of earlier loads. The floors are for machines with
// more processes than cores; a dead process is seen by its socket at once.

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "core/base/words.h"
#include "scheduler/events.h"
#include "scheduler/fleet/gang.h"
#include "scheduler/id_map.h"
#include "scheduler/outbox.h"
#include "scheduler/run_state.h"
#include "scheduler/waits.h"

namespace tidepool::scheduler {

enum class SlotPhase : uint8_t {
  kFree,
  kGranting,
  kHeld,
  kDraining,
  kReleasing,
  kReleased,
  kQuarantined,
  kLost
};
constexpr auto WordsOf(SlotPhase) {
  return std::to_array<const char*>(
      {"free", "granting", "held", "draining", "releasing", "released", "quarantined", "lost"});
}

struct PoolOptions {
  int64_t need_bytes_rollout = 0, need_bytes_actor = 0;
  double drain_floor_s = 10, drain_steps = 20;
  double release_floor_s = 10, release_bytes_per_s = 1e9;
  int64_t offload_bytes =
      0;  // what a release may write to disk, and as much again for a checkpoint before it
  double offload_bytes_per_s = 1e8;
  double grant_floor_s = 60, grant_bytes_per_s = 1e8;
};

class Pool {
 public:
  struct Slot {
    SlotPhase phase = SlotPhase::kFree;
    Role role = Role::kNone, next = Role::kNone;  // next: where the open transition leads
    Role owed = Role::kNone;                      // of a released slot after a rollback
    SlotEpoch epoch{0};
    Gang gang;  // the slots behind it and their workers
    TransitionId t;
    double step_s = 0;             // of its engine, for deadlines
    TimePoint avoid_until, taken;  // failed to change hands / was last taken from rollout
    int64_t failures = 0;          // in a row
    // As counted in the pool's index: the role it can work in, the one that it is on its way to, whether it
    // was granted that.
    Role holds = Role::kNone, comes = Role::kNone;
    bool granted = false;
    bool changed = false;  // since TakeChanged()
    // The worker that speaks for it; inc invalid: some part of it is nobody's.
    [[nodiscard]] WorkerRef holder() const { return gang.leader(); }
  };
  struct Transition {
    std::vector<SlotId> slots;
    size_t ready = 0;  // so many of them, from the first, have come to where it waits for them
    bool takes = false, committed = false;
    TimePoint begun, committed_at;
    std::string why;
  };

  Pool(const PoolOptions& options, const RunState& state, Outbox& out, Waits& waits)
      : options_(options), state_(state), out_(out), waits_(waits) {}

  // A controller restart: rolls back what its predecessor had not committed, keeps what it had. With
  // `keep_holders` slots stay with their workers, which may re-attach (Reattached); else they are lost.
  void Recover(bool keep_holders);
  void Add(const std::vector<SlotId>& gang);          // requires slots that no gang has yet
  void Attach(SlotId slot, const WorkerRef& worker);  // a device joined
  // Its worker is back after a controller restart: tells it again where its slot was in a transition.
  void Reattached(SlotId slot, TimePoint now);
  // The worker of that slot died: rolls back or closes an open transition; its gang is lost until every part
  // of it has a worker again.
  void Lost(SlotId slot, const std::string& why, TimePoint now);
  // Live workers whose gang fell apart while it held something, since the last call. They are to be replaced:
  // what they hold is a part of nothing.
  std::vector<WorkerRef> TakeFenced() { return std::exchange(fenced_, {}); }
  // The run ends: closes what is open.
  void Abandon(const std::string& why, TimePoint now);

  // One transition to `roles`.  requires of each slot: a holder; phase free, held in another role, or
  // released and owed. If some are held, no other transition that takes slots may be open.
  void Begin(const std::map<SlotId, Role>& roles, const std::string& why, double dwell_s, TimePoint now);
  // The old role to a slot that had released before its transition was rolled back.  requires owed
  void GrantBack(SlotId slot, TimePoint now);
  // A slot did not drain in time: its transition is rolled back, and it is left alone for a while.
  // False: its transition is not open or past its commit; the holder is to be replaced.
  bool DrainTimedOut(SlotId slot, const std::string& why, TimePoint now);

  // Each returns false (refused) if (worker, slot, epoch, phase) do not fit.
  bool Drained(const event::Drained& e, TimePoint now);
  enum class ReleaseOutcome : uint8_t { kRefused, kReleased, kQuarantined };
  ReleaseOutcome Released(const event::Released& e, TimePoint now);
  bool Granted(const event::Granted& e, TimePoint now);
  void SetStepTime(SlotId slot, double step_s) { slots_.at(GangOf(slot)).step_s = step_s; }

  // Gangs go by the id of their first slot; everything below takes and gives ids of gangs.
  [[nodiscard]] SlotId GangOf(SlotId slot) const;
  [[nodiscard]] const Slot& slot(SlotId id) const { return slots_.at(id); }
  [[nodiscard]] bool Knows(SlotId id) const { return slots_.contains(id); }
  [[nodiscard]] bool Holds(SlotId id, Role role) const;
  // Slots that hold `role` now, by id.
  [[nodiscard]] const std::set<SlotId>& Holding(Role role) const { return holding_[At(role)]; }
  // Some slot is on its way to `role`.
  [[nodiscard]] bool Coming(Role role) const { return coming_[At(role)] > 0; }
  // Slots that were granted `role` and have not said yet that they have it.
  [[nodiscard]] int64_t Granting(Role role) const { return granting_[At(role)]; }
  [[nodiscard]] bool Taking() const;  // a transition that takes held slots is open
  [[nodiscard]] const IdMap<SlotId, Slot>& slots() const { return slots_; }
  [[nodiscard]] const std::map<TransitionId, Transition>& transitions() const { return transitions_; }
  [[nodiscard]] double switch_s() const {
    return switch_s_;
  }  // EWMA of transitions that took slots; 0: none yet
  [[nodiscard]] int64_t generation() const { return generation_; }  // rises with every change of a slot
  // Rises with every change that a plan may depend on: not with the steps inside an open transition.
  [[nodiscard]] int64_t plan_generation() const { return plan_generation_; }
  // Slots that changed in any way since the last call, by id. What only time changes (avoid_until) is not in
  // it.
  std::vector<SlotId> TakeChanged();
  // Until then some slot may be one to avoid.
  [[nodiscard]] TimePoint avoid_until() const { return avoid_until_; }
  [[nodiscard]] int64_t rollbacks() const { return rollbacks_; }

 private:
  [[nodiscard]] int64_t Need(Role role) const {
    return role == Role::kActor ? options_.need_bytes_actor : options_.need_bytes_rollout;
  }
  void WaitFor(const Gang::Member& m, const char* what, double limit_s, TimePoint now);
  void WaitFor(const Slot& s, const char* what, double limit_s, TimePoint now);  // for every member
  void TellRelease(Slot& s, Role next, TimePoint now);
  void EndWaits(const Slot& s);
  [[nodiscard]] double DrainLimit(const Slot& s) const {
    return options_.drain_floor_s + options_.drain_steps * s.step_s;
  }
  [[nodiscard]] double ReleaseLimit(Role to) const;
  [[nodiscard]] double GrantLimit(Role to) const;
  void Grant(SlotId id, Slot& s, TimePoint now);
  [[nodiscard]] static command::Grant GrantTo(const Slot& s, const Gang::Member& to, Role role);
  bool AllIn(Transition& open, SlotPhase phase);  // each slot is looked at once, but after a loss
  void CommitIfAll(TransitionId t, TimePoint now);
  void DoneIfAll(TransitionId t, TimePoint now);
  void RollBack(TransitionId t, const std::string& why, TimePoint now);
  void Leave(SlotId id, Slot& s, SlotPhase phase);  // out of any transition, holding nothing
  void Index(SlotId id, Slot& s);                   // after anything that moves this slot
  void Touch(SlotId id, Slot& s);                   // it is one of TakeChanged()
  // (worker, slot, epoch) name a part of a gang in `phase` that owes an answer, which is taken; nullptr:
  // refuse.
  Slot* Answer(const WorkerRef& worker, SlotId slot, SlotEpoch epoch, SlotPhase phase);
  // A part of it is lost or kept its memory: the gang holds nothing any more.
  void FallApart(SlotId id, Slot& s, SlotId part, SlotPhase phase, const std::string& why);
  [[nodiscard]] bool Torn(const Slot& s) const;  // by the journal its parts do not hold one role

  PoolOptions options_;
  const RunState& state_;
  Outbox& out_;
  Waits& waits_;
  IdMap<SlotId, Slot> slots_;         // by gang
  std::map<SlotId, SlotId> part_of_;  // slots that are not the first of their gang -> gang
  std::vector<WorkerRef> fenced_;
  std::map<TransitionId, Transition> transitions_;  // open ones
  double switch_s_ = 0;
  // By role; asked for at every event, so not by a walk over all slots. A slot whose next role is none is
  // nowhere.
  static constexpr size_t At(Role role) { return static_cast<size_t>(role); }
  static constexpr size_t kRoles = static_cast<size_t>(Role::kEnvironment) + 1;
  std::array<std::set<SlotId>, kRoles> holding_;
  std::array<int64_t, kRoles> coming_{}, granting_{};
  std::vector<SlotId> changed_;
  TimePoint avoid_until_;
  int64_t rollbacks_ = 0, generation_ = 0, plan_generation_ = 0;
};

}  // namespace tidepool::scheduler
