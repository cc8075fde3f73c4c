// The checker on workers and slots: who is alive, who holds what, and transactions.

#include "scheduler/checker_state.h"

namespace tidepool::scheduler {
namespace {

constexpr int64_t kLongestMs = int64_t{1}
                               << 40;  // of a deadline: 35 years, so that sums in ns stay below 2^64

}  // namespace

bool Checker::State::On(const record::Fence& x) {
  const auto it = workers.find(x.worker);
  if (it == workers.end()) return Violation("Q8", Called(x.worker) + " never joined");
  it->second.fenced = true;
  if (const auto live = alive.find(x.worker.worker); live != alive.end() && live->second == x.worker)
    alive.erase(x.worker.worker);
  for (const SlotId slot : it->second.slots) {
    SlotState& s = slots[slot.value];
    if (s.owner != x.worker) continue;
    s.owner = {};
    behind.erase(slot.value);
    Recount(slot.value);
  }
  return true;
}

bool Checker::State::On(const record::Join& x) {
  if (x.worker.inc.value <= last_inc)
    return Violation(
        "Q8", "incarnation " + std::to_string(x.worker.inc.value) + " follows " + std::to_string(last_inc));
  last_inc = x.worker.inc.value;
  names[x.worker.worker] = x.name;
  if (const auto live = alive.find(x.worker.worker); live != alive.end()) {
    return Violation("Q8", Called(x.worker) + " joins beside the live " + Called(live->second));
  }
  WorkerState& w = workers[x.worker] = {.fenced = false, .slots = x.slots};
  if (x.role == Role::kNone && w.slots.empty()) w.slots = {{x.worker.worker.value}};
  alive[x.worker.worker] = x.worker;
  for (const SlotId slot : w.slots) {
    SlotState* s = Slot(slot);
    if (s == nullptr) return false;
    if (s->owner.inc.valid())
      return Violation("G1", "slot " + std::to_string(slot.value) + " of " + Called(x.worker) +
                                 " is one of " + Called(s->owner));
    s->owner = x.worker;
    s->quarantined = false;  // a new process has none of the memory that the old one kept
    s->loaded = s->admitted = {};
    Recount(slot.value);
  }
  return true;
}

bool Checker::State::On(const record::TransitionBegin& x) {
  if (x.t.value <= last_transition) return Violation("G4", "transition numbers have to increase");
  if (last_transition < 0) {
    int64_t there = 0;
    for (const int64_t slot : slots.SortedKeys()) there += slots.at(slot).owner.inc.valid() ? 1 : 0;
    if (there < config->min_slots)
      return Violation("G9", "slots are given out when " + std::to_string(there) +
                                 " have a worker, and the run begins with " +
                                 std::to_string(config->min_slots));
  }
  last_transition = x.t.value;
  slots_move = true;
  for (const record::SlotPlan& p : x.slots) {
    SlotState* found = Slot(p.slot);
    if (found == nullptr) return false;
    SlotState& s = *found;
    if (s.transition >= 0)
      return Violation("G4", "slot " + std::to_string(p.slot.value) + " is already inside transition " +
                                 std::to_string(s.transition));
    if (p.from != s.role)
      return Violation("G3", "slot " + std::to_string(p.slot.value) + " is planned from " + Name(p.from) +
                                 ", but held by " + Name(s.role));
    if (p.epoch.value <= s.epoch)
      return Violation("G2", "epoch " + std::to_string(p.epoch.value) + " of slot " +
                                 std::to_string(p.slot.value) + " follows " + std::to_string(s.epoch));
    if (p.from == Role::kRollout) {
      if (x.dwell_ms > 1 && s.taken_epoch == now->ctl_epoch &&
          now->mono_ns - s.taken_ns + 1000000 < static_cast<uint64_t>(x.dwell_ms) * 1000000) {
        return Violation("G7", "slot " + std::to_string(p.slot.value) +
                                   " is taken from rollout twice within " + std::to_string(x.dwell_ms) +
                                   " ms");
      }
      s.taken_ns = now->mono_ns;
      s.taken_epoch = now->ctl_epoch;
    }
    if (step && step_slots.contains(p.slot.value))
      return Violation("G8", "slot " + std::to_string(p.slot.value) + " trains step " +
                                 std::to_string(step->step.value) + " and is taken");
    s.epoch = p.epoch.value;
    s.transition = x.t.value;
    s.owed = Role::kNone;
    s.released = p.from == Role::kNone;
    s.next = p.to;
    Follow(p.slot.value);
    Recount(p.slot.value);
  }
  const TransitionState& open =
      transitions[x.t.value] = {x.slots, false, now->mono_ns, now->ctl_epoch, x.deadline_ms};
  transition_due_ns = std::min(transition_due_ns, LateAfter(open));
  return true;
}

Checker::State::TransitionState* Checker::State::Open(TransitionId t) {
  const auto it = transitions.find(t.value);
  if (it != transitions.end()) return &it->second;
  Violation("G4", "transition " + std::to_string(t.value) + " is not open");
  return nullptr;
}

bool Checker::State::On(const record::TransitionCommit& x) {
  TransitionState* t = Open(x.t);
  if (t == nullptr) return false;
  if (t->committed) return Violation("G4", "transition " + std::to_string(x.t.value) + " is committed twice");
  for (const record::SlotPlan& p : t->plan) {
    if (!slots[p.slot.value].released)
      return Violation("G5", "slot " + std::to_string(p.slot.value) + " was not released before the commit");
  }
  t->committed = true;
  return true;
}

// Only inside one life of the controller the clock is one. 5 s: deadlines are looked at in ticks.
uint64_t Checker::State::LateAfter(const TransitionState& t) const {
  if (t.ctl_epoch != now->ctl_epoch || t.deadline_ms <= 0) return UINT64_MAX;
  const uint64_t allowed_ms = static_cast<uint64_t>(std::min(t.deadline_ms, kLongestMs)) + 5000;
  const uint64_t allowed_ns = (allowed_ms + 1) * 1000000 - 1;
  return t.begun_ns > UINT64_MAX - allowed_ns ? UINT64_MAX : t.begun_ns + allowed_ns;
}

bool Checker::State::TransitionsEnd() {
  if (now->mono_ns <= transition_due_ns) return true;
  transition_due_ns = UINT64_MAX;
  for (const auto& [id, t] : transitions) {
    const uint64_t due = LateAfter(t);
    if (now->mono_ns > due)
      return Violation("G4", "transition " + std::to_string(id) + " is still open after its deadline");
    transition_due_ns = std::min(transition_due_ns, due);
  }
  return true;
}

bool Checker::State::EndTransition(TransitionId id, bool done) {
  TransitionState* t = Open(id);
  if (t == nullptr) return false;
  if (done != t->committed)
    return Violation("G4",
                     "transition " + std::to_string(id.value) +
                         (done ? " is done, but was not committed" : " is rolled back after its commit"));
  for (const record::SlotPlan& p : t->plan) {
    SlotState& s = slots[p.slot.value];
    if (s.transition != id.value) continue;  // it was lost or quarantined on the way
    if (done && s.role != p.to)
      return Violation("G4", "transition " + std::to_string(id.value) + " is done, but slot " +
                                 std::to_string(p.slot.value) + " is held by " + Name(s.role) + ", not by " +
                                 Name(p.to));
    s.transition = -1;
    Follow(p.slot.value);
    Recount(p.slot.value);
  }
  transitions.erase(id.value);
  return true;
}

bool Checker::State::On(const record::TransitionDone& x) { return EndTransition(x.t, true); }
bool Checker::State::On(const record::TransitionRolledBack& x) {
  TransitionState* t = Open(x.t);
  if (t == nullptr) return false;
  for (const record::SlotPlan& p : x.slots) {
    SlotState& s = slots[p.slot.value];
    const auto was = std::find_if(t->plan.begin(), t->plan.end(),
                                  [&](const record::SlotPlan& q) { return q.slot == p.slot; });
    if (was == t->plan.end())
      return Violation("G4", "slot " + std::to_string(p.slot.value) +
                                 " is rolled back, but was not in transition " + std::to_string(x.t.value));
    if (p.to != was->from)
      return Violation("G4", "slot " + std::to_string(p.slot.value) + " goes back to " + Name(p.to) +
                                 ", it held " + Name(was->from));
    if (p.epoch.value <= s.epoch)
      return Violation("G2", "epoch " + std::to_string(p.epoch.value) + " of slot " +
                                 std::to_string(p.slot.value) + " follows " + std::to_string(s.epoch));
    s.epoch = p.epoch.value;
    s.owed = p.to;      // a slot that has released, or still does, is granted it again
    s.taken_epoch = 0;  // it was not taken after all
  }
  // Whoever is not named is out of use now; a slot that still held its role would be half changed.
  for (const record::SlotPlan& p : t->plan) {
    const bool named = std::any_of(x.slots.begin(), x.slots.end(),
                                   [&](const record::SlotPlan& q) { return q.slot == p.slot; });
    const SlotState& s = slots[p.slot.value];
    if (!named && p.from != Role::kNone && s.role != Role::kNone && t->ctl_epoch == now->ctl_epoch) {
      return Violation("G4", "slot " + std::to_string(p.slot.value) +
                                 " is left half changed by the rollback of " + std::to_string(x.t.value));
    }
  }
  return EndTransition(x.t, false);
}

bool Checker::State::On(const record::Grant& x) {
  if (!Trusted(x.worker, "grant")) return false;
  SlotState* found = Slot(x.slot);
  if (found == nullptr) return false;
  SlotState& s = *found;
  if (s.role != Role::kNone)
    return Violation("G1", "slot " + std::to_string(x.slot.value) + " is still held by " + Name(s.role));
  if (s.epoch != x.epoch.value)
    return Violation("G2", "grant with epoch " + std::to_string(x.epoch.value) + ", current is " +
                               std::to_string(s.epoch));
  if (s.quarantined) return Violation("G5", "slot " + std::to_string(x.slot.value) + " is quarantined");
  if (s.owner != x.worker)
    return Violation("G1", Called(x.worker) + " has no slot " + std::to_string(x.slot.value));
  const auto t = transitions.find(s.transition);
  const bool back = s.transition < 0 && s.owed != Role::kNone && s.owed == x.role;
  if (back && !s.released)
    return Violation("G5", "slot " + std::to_string(x.slot.value) + " is given back before it was released");
  s.owed = Role::kNone;
  if (!back && (t == transitions.end() || !t->second.committed))
    return Violation("G4",
                     "slot " + std::to_string(x.slot.value) + " is granted outside a committed transition");
  if (!back && x.role != s.next)
    return Violation("G4", "slot " + std::to_string(x.slot.value) + " is granted to " + Name(x.role) +
                               ", planned was " + Name(s.next));
  s.role = x.role;
  s.holder = x.worker;
  Follow(x.slot.value);
  Recount(x.slot.value);
  return true;
}

bool Checker::State::On(const record::Release& x) {
  SlotState* found = Slot(x.slot);
  if (found == nullptr) return false;
  SlotState& s = *found;
  if (s.role != Role::kNone && !Trusted(s.holder, "release")) return false;
  if (s.epoch != x.epoch.value)
    return Violation("G2", "release with epoch " + std::to_string(x.epoch.value) + ", current is " +
                               std::to_string(s.epoch));
  if (x.need_bytes > 0 && x.free_bytes < x.need_bytes)
    return Violation("G5", "slot " + std::to_string(x.slot.value) + " proved " +
                               std::to_string(x.free_bytes) + " of " + std::to_string(x.need_bytes) +
                               " bytes free");
  s.role = Role::kNone;
  s.released = true;
  Follow(x.slot.value);
  Recount(x.slot.value);
  return true;
}

bool Checker::State::On(const record::Quarantine& x) {
  SlotState* s = Slot(x.slot);
  if (s == nullptr) return false;
  s->role = s->owed = Role::kNone;
  s->quarantined = true;
  s->transition = -1;  // it goes on, or back, without this slot
  Follow(x.slot.value);
  Recount(x.slot.value);
  return true;
}

bool Checker::State::On(const record::SlotLost& x) {
  // An earlier life may have had more slots than the config of this one.
  const auto known = slots.find(x.slot.value);
  SlotState* s = known != slots.end() ? &known->second : Slot(x.slot);
  if (s == nullptr) return false;
  s->role = s->owed = Role::kNone;
  s->holder = {};
  s->transition = -1;
  Follow(x.slot.value);
  Recount(x.slot.value);
  return true;
}

// Every slot is in one state (the map holds one each), so the sum is right if no slot comes from nowhere.
Checker::State::SlotState* Checker::State::Slot(SlotId id) {
  if (id.value >= 0 && (config->slots <= 0 || id.value < config->slots)) return &slots[id.value];
  Violation("G3", "slot " + std::to_string(id.value) + " of " + std::to_string(config->slots));
  return nullptr;
}

void Checker::State::Recount(int64_t slot) {
  SlotState& s = slots[slot];
  const bool live = s.owner.inc.valid();
  const bool idle = live && s.role == Role::kNone && s.transition < 0 && !s.quarantined;
  const bool generates = s.role == Role::kRollout || (s.transition >= 0 && s.next == Role::kRollout);
  idle_slots += static_cast<int>(idle) - static_cast<int>(s.idle);
  rollout_slots += static_cast<int>(generates) - static_cast<int>(s.generates);
  s.idle = idle;
  s.generates = generates;
  // A life that waits for min_slots gives out nothing before.
  const bool waits = config->min_slots > 0 && !slots_move;
  const bool below = !waits && config->rollout_floor > 0 && config->stall_ms > 0 && idle_slots > 0 &&
                     rollout_slots < config->rollout_floor;
  if (!below)
    below_floor_ns.reset();
  else if (!below_floor_ns)
    below_floor_ns = now->mono_ns;
}

bool Checker::State::FloorKept() {
  if (!below_floor_ns || !Stuck(*below_floor_ns)) return true;
  return Violation("G6", std::to_string(rollout_slots) + " slots generate, the floor is " +
                             std::to_string(config->rollout_floor) + ", and " + std::to_string(idle_slots) +
                             " healthy ones have been free for longer than " +
                             std::to_string(config->stall_ms) + " ms");
}

bool Checker::State::Stuck(uint64_t since_ns) const {
  return now->mono_ns > since_ns &&
         (now->mono_ns - since_ns) / 1000000 > static_cast<uint64_t>(config->stall_ms);
}

}  // namespace tidepool::scheduler
