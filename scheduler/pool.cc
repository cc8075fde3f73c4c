#include "scheduler/pool.h"

#include <chrono>
#include <map>

#include "core/base/check.h"

namespace tidepool::scheduler {

void Pool::WaitFor(SlotId id, const Slot& s, const char* what, Duration limit, TimePoint now) {
  waits_.Begin({WaitKind::kTransition, id.value},
               {s.holder, now, now + limit, std::string(what) + " slot=" + std::to_string(id.value)});
}

bool Pool::Holds(SlotId id, Role role) const {
  const auto it = slots_.find(id);
  return it != slots_.end() && it->second.phase == SlotPhase::kHeld && it->second.role == role;
}

void Pool::Recover(bool keep_holders) {
  for (const auto& [id, facts] : std::map(state_.slots())) {
    Slot& s = slots_[id];
    s.epoch = facts.epoch;
    if (!facts.open.valid() && facts.role != Role::kNone && keep_holders) {
      s.phase = SlotPhase::kHeld;
      s.role = facts.role;
      s.holder = facts.holder;
      continue;
    }
    if (facts.open.valid() && !facts.committed) {
      out_.Record(record::TransitionRolledBack{facts.open, "controller restarted"});
    }
    if (facts.role != Role::kNone) out_.Record(record::SlotLost{id, "controller restarted"});
    if (facts.open.valid() && facts.committed) out_.Record(record::TransitionDone{facts.open});
  }
}

void Pool::Attach(SlotId slot, const WorkerRef& worker) {
  Slot& s = slots_[slot];
  TP_CHECK(s.phase == SlotPhase::kFree || s.holder == worker) << "slot " << slot.value << " is held by " << ToString(s.holder);
  s.holder = worker;
}

void Pool::Lost(SlotId slot, const std::string& why) {
  Slot& s = slots_.at(slot);
  const bool before_commit = s.phase == SlotPhase::kDraining || s.phase == SlotPhase::kReleasing;
  if (before_commit) out_.Record(record::TransitionRolledBack{s.t, why});
  if (state_.slots().contains(slot) && state_.slots().at(slot).role != Role::kNone) out_.Record(record::SlotLost{slot, why});
  if (s.phase == SlotPhase::kGranting) out_.Record(record::TransitionDone{s.t});
  waits_.End({WaitKind::kTransition, slot.value});
  s.phase = SlotPhase::kFree;
  s.role = s.next = Role::kNone;
  s.holder = {};
  s.t = {};
}

void Pool::Abandon(const std::string& why) {
  for (const auto& [id, s] : std::map(slots_)) {
    if (s.t.valid()) Lost(id, why);
  }
}

void Pool::Begin(SlotId slot, Role role, TimePoint now) {
  Slot& s = slots_.at(slot);
  TP_CHECK(s.holder.inc.valid() && (s.phase == SlotPhase::kFree || s.phase == SlotPhase::kHeld)) << "slot " << slot.value;
  s.t = state_.next_transition();
  s.next = role;
  s.epoch = {s.epoch.value + 1};
  const Duration limit = options_.drain_deadline + options_.release_deadline + options_.grant_deadline;
  out_.Record(record::TransitionBegin{
      s.t, {{slot, s.role, role, s.epoch}}, std::chrono::duration_cast<std::chrono::milliseconds>(limit).count()});
  if (s.phase == SlotPhase::kFree) {
    Grant(slot, s, now);
    return;
  }
  s.phase = SlotPhase::kDraining;
  out_.Do(command::Drain{s.holder, slot, s.epoch});
  WaitFor(slot, s, "drain", options_.drain_deadline, now);
}

void Pool::Grant(SlotId id, Slot& s, TimePoint now) {
  out_.Record(record::TransitionCommit{s.t});
  out_.Record(record::Grant{id, s.next, s.epoch, s.holder});
  s.phase = SlotPhase::kGranting;
  s.role = s.next;
  out_.Do(command::Grant{s.holder, id, s.epoch, s.next});
  WaitFor(id, s, "grant", options_.grant_deadline, now);
}

bool Pool::Drained(const event::Drained& e, TimePoint now) {
  const auto it = slots_.find(e.slot);
  if (it == slots_.end() || it->second.phase != SlotPhase::kDraining || it->second.epoch != e.epoch || it->second.holder != e.worker) {
    return false;
  }
  Slot& s = it->second;
  s.phase = SlotPhase::kReleasing;
  const int64_t need = s.next == Role::kActor ? options_.need_bytes_actor : options_.need_bytes_rollout;
  out_.Do(command::Release{s.holder, e.slot, s.epoch, need});
  WaitFor(e.slot, s, "release", options_.release_deadline, now);
  return true;
}

Pool::ReleaseOutcome Pool::Released(const event::Released& e, TimePoint now) {
  const auto it = slots_.find(e.slot);
  if (it == slots_.end() || it->second.phase != SlotPhase::kReleasing || it->second.epoch != e.epoch || it->second.holder != e.worker) {
    return ReleaseOutcome::kRefused;
  }
  Slot& s = it->second;
  const int64_t need = s.next == Role::kActor ? options_.need_bytes_actor : options_.need_bytes_rollout;
  if (need > 0 && e.free_bytes < need) {
    out_.Record(record::TransitionRolledBack{s.t, "only " + std::to_string(e.free_bytes) + " of " + std::to_string(need) + " bytes proven free"});
    out_.Record(record::Quarantine{e.slot, "free_bytes=" + std::to_string(e.free_bytes)});
    waits_.End({WaitKind::kTransition, e.slot.value});
    s.phase = SlotPhase::kFree;
    s.role = s.next = Role::kNone;
    s.t = {};
    return ReleaseOutcome::kQuarantined;
  }
  out_.Record(record::Release{e.slot, s.epoch, e.free_bytes});
  Grant(e.slot, s, now);
  return ReleaseOutcome::kGranted;
}

bool Pool::Granted(const event::Granted& e) {
  const auto it = slots_.find(e.slot);
  if (it == slots_.end() || it->second.phase != SlotPhase::kGranting || it->second.epoch != e.epoch || it->second.holder != e.worker) {
    return false;
  }
  it->second.phase = SlotPhase::kHeld;
  out_.Record(record::TransitionDone{it->second.t});
  it->second.t = {};
  waits_.End({WaitKind::kTransition, e.slot.value});
  return true;
}

}  // namespace tidepool::scheduler
