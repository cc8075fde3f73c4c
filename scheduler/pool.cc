#include "scheduler/pool.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace tidepool::scheduler {

const char* Name(SlotPhase phase) {
  switch (phase) {
    case SlotPhase::kFree:
      return "free";
    case SlotPhase::kGranting:
      return "granting";
    case SlotPhase::kHeld:
      return "held";
    case SlotPhase::kDraining:
      return "draining";
    case SlotPhase::kReleasing:
      return "releasing";
    case SlotPhase::kReleased:
      return "released";
    case SlotPhase::kQuarantined:
      return "quarantined";
    case SlotPhase::kLost:
      return "lost";
  }
  return "unknown";
}

double Pool::ReleaseLimit(Role to) const {
  return options_.release_floor_s + static_cast<double>(Need(to)) / options_.release_bytes_per_s;
}

double Pool::GrantLimit(Role to) const {
  return options_.grant_floor_s + static_cast<double>(Need(to)) / options_.grant_bytes_per_s;
}

void Pool::WaitFor(SlotId id, const Slot& s, const char* what, double limit_s, TimePoint now) {
  waits_.Begin({WaitKind::kTransition, id.value}, {s.holder, now, now + FromSeconds(limit_s),
                                                   std::string(what) + " slot=" + std::to_string(id.value)});
}

bool Pool::Holds(SlotId id, Role role) const {
  const auto it = slots_.find(id);
  return it != slots_.end() && it->second.phase == SlotPhase::kHeld && it->second.role == role;
}

void Pool::Index(SlotId id, Slot& s) {
  const Role holds = s.phase == SlotPhase::kHeld ? s.role : Role::kNone;
  const bool granted = s.phase == SlotPhase::kGranting;
  // A grant is to where its transition leads, if it is inside one.
  const Role comes = granted ? s.role : s.t.valid() ? s.next : Role::kNone;
  if (s.holds != holds) {
    holding_[At(s.holds)].erase(id);
    if (holds != Role::kNone) holding_[At(holds)].insert(id);
  }
  --coming_[At(s.comes)], ++coming_[At(comes)];
  granting_[At(s.comes)] -= s.granted ? 1 : 0;
  granting_[At(comes)] += granted ? 1 : 0;
  s.holds = holds;
  s.comes = comes;
  s.granted = granted;
  Touch(id, s);
}

void Pool::Touch(SlotId id, Slot& s) {
  if (!std::exchange(s.changed, true)) changed_.push_back(id);
}

std::vector<SlotId> Pool::TakeChanged() {
  for (const SlotId id : changed_) slots_.at(id).changed = false;
  std::ranges::sort(changed_);
  return std::exchange(changed_, {});
}

void Pool::Recover(bool keep_holders) {
  const std::map<TransitionId, bool> open = state_.transitions();
  std::map<TransitionId, std::vector<record::SlotPlan>> back;
  for (const auto& [id, facts] : state_.slots()) {
    if (!facts.open.valid()) continue;
    if (keep_holders && !facts.committed && facts.role != Role::kNone) {
      back[facts.open].push_back({id, facts.next, facts.role, {facts.epoch.value + 1}});
    }
  }
  for (const auto& [t, committed] : open) {
    if (committed) continue;
    out_.Record(record::TransitionRolledBack{t, "controller restarted", back[t]});
  }
  for (const auto& [id, facts] : std::map(state_.slots())) {
    Slot& s = slots_[id];
    s.epoch = facts.epoch;
    if (facts.role == Role::kNone) {
      // A crash between T_COMMIT and this slot's GRANT: the transition ends without it.
      if (facts.open.valid() && facts.committed)
        out_.Record(record::SlotLost{id, "controller restarted before its grant"});
      continue;
    }
    if (!keep_holders) {
      out_.Record(record::SlotLost{id, "controller restarted"});
      s.phase = SlotPhase::kLost;
      continue;
    }
    s.role = facts.role;
    s.holder = facts.holder;
    // A worker may never have heard of the newest epoch; it is told its role again when it re-attaches.
    s.phase = SlotPhase::kGranting;
    if (facts.open.valid()) {
      s.t = facts.open;
      s.next = facts.role;
      ++generation_;
      ++plan_generation_;
      Transition& t = transitions_[facts.open];
      t.slots.push_back(id);
      t.committed = true;
    }
    Index(id, s);
  }
  for (const auto& [t, committed] : open) {
    if (committed && !transitions_.contains(t)) out_.Record(record::TransitionDone{t});
  }
}

void Pool::Reattached(SlotId slot, TimePoint now) {
  Slot& s = slots_.at(slot);
  Touch(slot, s);  // its holder is one to count on again
  if (s.phase != SlotPhase::kGranting) return;
  out_.Do(command::Grant{s.holder, slot, s.epoch, s.role});
  WaitFor(slot, s, "resume", GrantLimit(s.role), now);
}

void Pool::Attach(SlotId slot, const WorkerRef& worker) {
  Slot& s = slots_[slot];
  TP_CHECK(s.phase == SlotPhase::kFree || s.phase == SlotPhase::kLost || s.phase == SlotPhase::kQuarantined)
      << "slot " << slot.value << " is " << Name(s.phase) << " by " << ToString(s.holder);
  s.phase = SlotPhase::kFree;
  s.holder = worker;
  Index(slot, s);
  ++generation_;
  ++plan_generation_;
}

void Pool::Leave(SlotId id, Slot& s, SlotPhase phase) {
  ++generation_;
  ++plan_generation_;
  waits_.End({WaitKind::kTransition, id.value});
  s.phase = phase;
  s.role = s.next = s.owed = Role::kNone;
  s.t = {};
  Index(id, s);
}

void Pool::Lost(SlotId slot, const std::string& why, TimePoint now) {
  Slot& s = slots_.at(slot);
  const TransitionId t = s.t;
  const auto facts = state_.slots().find(slot);
  if (facts != state_.slots().end() && facts->second.role != Role::kNone)
    out_.Record(record::SlotLost{slot, why});
  Leave(slot, s, SlotPhase::kLost);
  s.holder = {};
  const auto it = transitions_.find(t);
  if (it == transitions_.end()) return;
  std::erase(it->second.slots, slot);
  it->second.ready = 0;
  if (it->second.committed) {
    DoneIfAll(t, now);
  } else {
    RollBack(t, why, now);
  }
}

Pool::Slot* Pool::Expect(const WorkerRef& worker, SlotId slot, LeaseEpoch epoch, SlotPhase phase) {
  const auto it = slots_.find(slot);
  if (it == slots_.end()) return nullptr;
  Slot& s = it->second;
  return s.phase == phase && s.epoch == epoch && s.holder == worker ? &s : nullptr;
}

bool Pool::Drained(const event::Drained& e, TimePoint now) {
  Slot* s = Expect(e.worker, e.slot, e.epoch, SlotPhase::kDraining);
  if (s == nullptr) return false;
  s->phase = SlotPhase::kReleasing;
  Index(e.slot, *s);
  ++generation_;
  out_.Do(command::Release{s->holder, e.slot, s->epoch, Need(s->next)});
  WaitFor(e.slot, *s, "release", ReleaseLimit(s->next), now);
  return true;
}

Pool::ReleaseOutcome Pool::Released(const event::Released& e, TimePoint now) {
  Slot* s = Expect(e.worker, e.slot, e.epoch, SlotPhase::kReleasing);
  if (s == nullptr) return ReleaseOutcome::kRefused;
  const int64_t need = Need(s->t.valid() ? s->next : s->owed);
  if (need > 0 && e.free_bytes < need) {
    const TransitionId t = s->t;
    const std::string why =
        "only " + std::to_string(e.free_bytes) + " of " + std::to_string(need) + " bytes proven free";
    out_.Record(record::Quarantine{e.slot, why});
    Leave(e.slot, *s, SlotPhase::kQuarantined);
    if (t.valid()) {
      std::erase(transitions_.at(t).slots, e.slot);
      transitions_.at(t).ready = 0;
      RollBack(t, why, now);
    }
    return ReleaseOutcome::kQuarantined;
  }
  out_.Record(record::Release{e.slot, s->epoch, e.free_bytes, need});
  waits_.End({WaitKind::kTransition, e.slot.value});
  s->phase = SlotPhase::kReleased;
  ++generation_;
  if (!s->t.valid()) ++plan_generation_;
  if (s->t.valid()) {
    CommitIfAll(s->t, now);
  } else {
    s->role = Role::kNone;
  }
  Index(e.slot, *s);
  return ReleaseOutcome::kReleased;
}

bool Pool::Granted(const event::Granted& e, TimePoint now) {
  Slot* s = Expect(e.worker, e.slot, e.epoch, SlotPhase::kGranting);
  if (s == nullptr) return false;
  s->phase = SlotPhase::kHeld;
  Index(e.slot, *s);
  ++generation_;
  if (!s->t.valid()) ++plan_generation_;
  waits_.End({WaitKind::kTransition, e.slot.value});
  if (s->t.valid()) DoneIfAll(s->t, now);
  return true;
}

}  // namespace tidepool::scheduler
