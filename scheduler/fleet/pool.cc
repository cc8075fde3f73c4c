#include "scheduler/fleet/pool.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace tidepool::scheduler {

double Pool::ReleaseLimit(Role to) const {
  return options_.release_floor_s + static_cast<double>(Need(to)) / options_.release_bytes_per_s +
         2 * static_cast<double>(options_.offload_bytes) / options_.offload_bytes_per_s;
}

double Pool::GrantLimit(Role to) const {
  return options_.grant_floor_s + static_cast<double>(Need(to)) / options_.grant_bytes_per_s;
}

void Pool::WaitFor(const Gang::Member& m, const char* what, double limit_s, TimePoint now) {
  waits_.Begin({WaitKind::kTransition, m.slot.value},
               {m.worker, now, now + FromSeconds(limit_s),
                std::string(what) + " slot=" + std::to_string(m.slot.value)});
}

void Pool::WaitFor(const Slot& s, const char* what, double limit_s, TimePoint now) {
  for (const Gang::Member& m : s.gang.members()) WaitFor(m, what, limit_s, now);
}

void Pool::EndWaits(const Slot& s) {
  for (const Gang::Member& m : s.gang.members()) waits_.End({WaitKind::kTransition, m.slot.value});
}

void Pool::Add(const std::vector<SlotId>& gang) {
  for (const SlotId slot : gang)
    TP_CHECK(!slots_.contains(slot) && !part_of_.contains(slot)) << "slot " << slot.value << " has a gang";
  slots_[gang.front()].gang = Gang(gang);
  for (size_t i = 1; i < gang.size(); ++i) part_of_[gang[i]] = gang.front();
}

SlotId Pool::GangOf(SlotId slot) const {
  const auto it = part_of_.find(slot);
  return it == part_of_.end() ? slot : it->second;
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
  for (const auto& [part, facts] : std::map(state_.slots())) {
    const SlotId id = GangOf(part);
    if (!slots_.contains(id)) Add({id});  // the run had more slots
    Slot& s = slots_.at(id);
    s.epoch = std::max(s.epoch, facts.epoch);
    if (facts.role == Role::kNone) {
      // A crash between T_COMMIT and this slot's GRANT: the transition ends without it.
      if (facts.open.valid() && facts.committed)
        out_.Record(record::SlotLost{part, "controller restarted before its grant"});
      continue;
    }
    if (!keep_holders || Torn(s)) {
      out_.Record(record::SlotLost{part, "controller restarted"});
      s.phase = SlotPhase::kLost;
      continue;
    }
    s.role = facts.role;
    s.gang.Attach(part, facts.holder);
    // A worker may never have heard of the newest epoch; it is told its role again when it re-attaches.
    s.phase = SlotPhase::kGranting;
    if (facts.open.valid()) {
      s.t = facts.open;
      s.next = facts.role;
      ++generation_;
      ++plan_generation_;
      Transition& t = transitions_[facts.open];
      if (part == id) t.slots.push_back(id);
      t.committed = true;
    }
    Index(id, s);
  }
  for (const auto& [t, committed] : open) {
    if (committed && !transitions_.contains(t)) out_.Record(record::TransitionDone{t});
  }
}

// A crash between the records of one grant, or of one loss.
bool Pool::Torn(const Slot& s) const {
  const auto& slots = state_.slots();
  const auto first = slots.find(s.gang.members().front().slot);
  return std::ranges::any_of(s.gang.members(), [&](const Gang::Member& m) {
    const auto facts = slots.find(m.slot);
    return first == slots.end() || facts == slots.end() || facts->second.role != first->second.role ||
           facts->second.epoch != first->second.epoch;
  });
}

void Pool::Reattached(SlotId slot, TimePoint now) {
  Slot& s = slots_.at(GangOf(slot));
  Touch(GangOf(slot), s);  // its holder is one to count on again
  if (s.phase != SlotPhase::kGranting) return;
  const Gang::Member& m = *s.gang.Find(slot);
  out_.Do(GrantTo(s, m, s.role));
  WaitFor(m, "resume", GrantLimit(s.role), now);
}

void Pool::Attach(SlotId slot, const WorkerRef& worker) {
  const SlotId id = GangOf(slot);
  Slot& s = slots_.at(id);
  TP_CHECK(s.phase == SlotPhase::kFree || s.phase == SlotPhase::kLost || s.phase == SlotPhase::kQuarantined)
      << "slot " << slot.value << " is " << Name(s.phase) << " by " << ToString(s.holder());
  s.phase = SlotPhase::kFree;
  s.gang.Attach(slot, worker);
  Index(id, s);
  ++generation_;
  ++plan_generation_;
}

void Pool::Leave(SlotId id, Slot& s, SlotPhase phase) {
  ++generation_;
  ++plan_generation_;
  EndWaits(s);
  s.phase = phase;
  s.role = s.next = s.owed = Role::kNone;
  s.t = {};
  Index(id, s);
}

void Pool::FallApart(SlotId id, Slot& s, SlotId part, SlotPhase phase, const std::string& why) {
  const bool held =
      s.phase != SlotPhase::kFree && s.phase != SlotPhase::kLost && s.phase != SlotPhase::kQuarantined;
  for (const Gang::Member& m : s.gang.members()) {
    if (m.slot == part && phase == SlotPhase::kQuarantined) {
      out_.Record(record::Quarantine{part, why});
      continue;
    }
    const auto facts = state_.slots().find(m.slot);
    if (facts != state_.slots().end() && facts->second.role != Role::kNone)
      out_.Record(record::SlotLost{m.slot, why});
  }
  Leave(id, s, phase);
  if (!held) {
    s.gang.Detach(part);
    return;
  }
  for (const WorkerRef& ref : s.gang.Break(part)) fenced_.push_back(ref);
}

void Pool::Lost(SlotId slot, const std::string& why, TimePoint now) {
  const SlotId id = GangOf(slot);
  Slot& s = slots_.at(id);
  const TransitionId t = s.t;
  FallApart(id, s, slot, SlotPhase::kLost, why);
  const auto it = transitions_.find(t);
  if (it == transitions_.end()) return;
  std::erase(it->second.slots, id);
  it->second.ready = 0;
  if (it->second.committed) {
    DoneIfAll(t, now);
  } else {
    RollBack(t, why, now);
  }
}

Pool::Slot* Pool::Answer(const WorkerRef& worker, SlotId slot, SlotEpoch epoch, SlotPhase phase) {
  const auto it = slots_.find(GangOf(slot));
  if (it == slots_.end()) return nullptr;
  Slot& s = it->second;
  return s.phase == phase && s.epoch == epoch && s.gang.Answer(worker, slot) ? &s : nullptr;
}

void Pool::TellRelease(Slot& s, Role next, TimePoint now) {
  s.gang.Ask();
  for (const Gang::Member& m : s.gang.members())
    out_.Do(command::Release{m.worker, m.slot, s.epoch, Need(next)});
  WaitFor(s, "release", ReleaseLimit(next), now);
}

bool Pool::Drained(const event::Drained& e, TimePoint now) {
  Slot* s = Answer(e.worker, e.slot, e.epoch, SlotPhase::kDraining);
  if (s == nullptr) return false;
  waits_.End({WaitKind::kTransition, e.slot.value});
  if (!s->gang.Answered()) return true;
  s->phase = SlotPhase::kReleasing;
  Index(GangOf(e.slot), *s);
  ++generation_;
  TellRelease(*s, s->next, now);
  return true;
}

Pool::ReleaseOutcome Pool::Released(const event::Released& e, TimePoint now) {
  Slot* s = Answer(e.worker, e.slot, e.epoch, SlotPhase::kReleasing);
  if (s == nullptr) return ReleaseOutcome::kRefused;
  const SlotId id = GangOf(e.slot);
  const int64_t need = Need(s->t.valid() ? s->next : s->owed);
  if (need > 0 && e.free_bytes < need) {
    const TransitionId t = s->t;
    const std::string why =
        "only " + std::to_string(e.free_bytes) + " of " + std::to_string(need) + " bytes proven free";
    FallApart(id, *s, e.slot, SlotPhase::kQuarantined, why);
    if (t.valid()) {
      std::erase(transitions_.at(t).slots, id);
      transitions_.at(t).ready = 0;
      RollBack(t, why, now);
    }
    return ReleaseOutcome::kQuarantined;
  }
  out_.Record(record::Release{e.slot, s->epoch, e.free_bytes, need});
  waits_.End({WaitKind::kTransition, e.slot.value});
  if (!s->gang.Answered()) return ReleaseOutcome::kReleased;
  s->phase = SlotPhase::kReleased;
  ++generation_;
  if (!s->t.valid()) ++plan_generation_;
  if (s->t.valid()) {
    CommitIfAll(s->t, now);
  } else {
    s->role = Role::kNone;
  }
  Index(id, *s);
  return ReleaseOutcome::kReleased;
}

bool Pool::Granted(const event::Granted& e, TimePoint now) {
  Slot* s = Answer(e.worker, e.slot, e.epoch, SlotPhase::kGranting);
  if (s == nullptr) return false;
  waits_.End({WaitKind::kTransition, e.slot.value});
  if (!s->gang.Answered()) return true;
  s->phase = SlotPhase::kHeld;
  Index(GangOf(e.slot), *s);
  ++generation_;
  if (!s->t.valid()) ++plan_generation_;
  if (s->t.valid()) DoneIfAll(s->t, now);
  return true;
}

}  // namespace tidepool::scheduler
