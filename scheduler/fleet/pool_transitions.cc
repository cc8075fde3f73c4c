// Transitions of the pool: from their begin to done or rolled back.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/base/check.h"
#include "scheduler/fleet/pool.h"

namespace tidepool::scheduler {
namespace {

constexpr double kSwitchWeight = 0.3;  // EWMA
constexpr double kAvoidSeconds = 10,
                 kAvoidMost = 40;  // after a failed drain: 10 s * 2^k, below any stall time-out

}  // namespace

bool Pool::Taking() const {
  return std::any_of(transitions_.begin(), transitions_.end(),
                     [](const auto& item) { return item.second.takes; });
}

void Pool::Begin(const std::map<SlotId, Role>& roles, const std::string& why, double dwell_s, TimePoint now) {
  TP_CHECK(!roles.empty());
  ++generation_;
  ++plan_generation_;
  const TransitionId t = state_.next_transition();
  Transition open{.slots = {},
                  .ready = 0,
                  .takes = false,
                  .committed = false,
                  .begun = now,
                  .committed_at = now,
                  .why = why};
  std::vector<record::SlotPlan> plan;
  double limit = 0;
  for (const auto& [id, role] : roles) {
    Slot& s = slots_.at(id);
    TP_CHECK(s.holder().inc.valid() && !s.t.valid() &&
             (s.phase == SlotPhase::kFree || s.phase == SlotPhase::kHeld || s.phase == SlotPhase::kReleased))
        << "slot " << id.value << " is " << Name(s.phase);
    TP_CHECK(s.phase != SlotPhase::kHeld || s.role != role) << "slot " << id.value << " holds " << Name(role);
    if (s.phase == SlotPhase::kHeld) {
      TP_CHECK(!Taking()) << "a second transition takes slots";
      open.takes = true;
      if (s.role == Role::kRollout) s.taken = now;
    }
    s.epoch = {s.epoch.value + 1};
    for (const Gang::Member& m : s.gang.members()) plan.push_back({m.slot, s.role, role, s.epoch});
    open.slots.push_back(id);
    // Time for a rollback is inside the promise: whoever waits for its end waits for one of the two.
    limit = std::max(limit, DrainLimit(s) + ReleaseLimit(role) + GrantLimit(role));
  }
  out_.Record(
      record::TransitionBegin{t, plan, std::llround(1000 * limit), why, std::llround(1000 * dwell_s)});
  transitions_[t] = std::move(open);
  for (const auto& [id, role] : roles) {
    Slot& s = slots_.at(id);
    s.t = t;
    s.next = role;
    s.owed = Role::kNone;
    if (s.phase == SlotPhase::kHeld) {
      s.phase = SlotPhase::kDraining;
      s.gang.Ask();
      for (const Gang::Member& m : s.gang.members()) out_.Do(command::Drain{m.worker, m.slot, s.epoch});
      WaitFor(s, "drain", DrainLimit(s), now);
    } else {
      s.phase = SlotPhase::kReleased;
    }
    Index(id, s);
  }
  CommitIfAll(t, now);
}

bool Pool::AllIn(Transition& open, SlotPhase phase) {
  while (open.ready < open.slots.size() && slots_.at(open.slots[open.ready]).phase == phase) ++open.ready;
  return open.ready == open.slots.size();
}

void Pool::CommitIfAll(TransitionId t, TimePoint now) {
  Transition& open = transitions_.at(t);
  if (!AllIn(open, SlotPhase::kReleased)) return;
  open.ready = 0;
  open.committed = true;
  open.committed_at = now;
  out_.Record(record::TransitionCommit{t});
  for (const SlotId id : open.slots) Grant(id, slots_.at(id), now);
}

void Pool::Grant(SlotId id, Slot& s, TimePoint now) {
  s.gang.Ask();
  for (const Gang::Member& m : s.gang.members())
    out_.Record(record::Grant{m.slot, s.next, s.epoch, m.worker});
  s.phase = SlotPhase::kGranting;
  ++generation_;
  s.role = s.next;
  Index(id, s);
  for (const Gang::Member& m : s.gang.members()) out_.Do(GrantTo(s, m, s.next));
  WaitFor(s, "grant", GrantLimit(s.next), now);
}

command::Grant Pool::GrantTo(const Slot& s, const Gang::Member& to, Role role) {
  command::Grant grant{to.worker, to.slot, s.epoch, role};
  const std::vector<Gang::Member>& members = s.gang.members();
  if (members.size() == 1) return grant;
  for (const Gang::Member& m : members) {
    if (m.slot == to.slot) grant.rank = static_cast<int64_t>(grant.gang.size());
    grant.gang.push_back(m.worker);
  }
  return grant;
}

void Pool::GrantBack(SlotId slot, TimePoint now) {
  Slot& s = slots_.at(slot);
  TP_CHECK(s.phase == SlotPhase::kReleased && s.owed != Role::kNone && !s.t.valid()) << "slot " << slot.value;
  s.next = std::exchange(s.owed, Role::kNone);
  Grant(slot, s, now);
}

void Pool::DoneIfAll(TransitionId t, TimePoint now) {
  const auto it = transitions_.find(t);
  if (!AllIn(it->second, SlotPhase::kHeld)) return;
  ++plan_generation_;
  for (const SlotId id : it->second.slots) {
    Slot& s = slots_.at(id);
    s.t = {};
    s.failures = 0;
    Index(id, s);
  }
  out_.Record(record::TransitionDone{t});
  if (it->second.takes) {
    const double took = Seconds(now - it->second.begun);
    switch_s_ = switch_s_ == 0 ? took : (1 - kSwitchWeight) * switch_s_ + kSwitchWeight * took;
  }
  transitions_.erase(it);
}

void Pool::RollBack(TransitionId t, const std::string& why, TimePoint now) {
  ++generation_;
  ++plan_generation_;
  const Transition open = std::move(transitions_.at(t));
  transitions_.erase(t);
  ++rollbacks_;
  std::vector<record::SlotPlan> plan;
  for (const SlotId id : open.slots) {
    Slot& s = slots_.at(id);
    const Role old = s.role;
    if (old == Role::kNone) continue;  // it held nothing before
    s.epoch = {s.epoch.value + 1};
    for (const Gang::Member& m : s.gang.members()) plan.push_back({m.slot, s.next, old, s.epoch});
  }
  out_.Record(record::TransitionRolledBack{t, why, plan});
  for (const SlotId id : open.slots) {
    Slot& s = slots_.at(id);
    const Role old = s.role;
    s.t = {};
    s.next = Role::kNone;
    s.taken = {};
    EndWaits(s);
    switch (s.phase) {
      case SlotPhase::kDraining:
        s.phase = SlotPhase::kGranting;
        s.gang.Ask();
        for (const Gang::Member& m : s.gang.members()) out_.Do(GrantTo(s, m, old));
        WaitFor(s, "resume", GrantLimit(old), now);
        break;
      case SlotPhase::kReleasing:  // asked again under the new epoch: what it answers is the same
        s.owed = old;
        TellRelease(s, old, now);
        break;
      case SlotPhase::kReleased:
        if (old == Role::kNone) {
          s.phase = SlotPhase::kFree;
        } else {
          s.owed = old;
          s.role = Role::kNone;
        }
        break;
      default:
        TP_CHECK(false) << "slot " << id.value << " is " << Name(s.phase)
                        << " in a transition that was not committed";
    }
    Index(id, s);
  }
}

bool Pool::DrainTimedOut(SlotId slot, const std::string& why, TimePoint now) {
  Slot& s = slots_.at(GangOf(slot));
  if (s.phase != SlotPhase::kDraining || !s.t.valid()) return false;
  s.avoid_until =
      now + FromSeconds(std::min(
                kAvoidMost, std::ldexp(kAvoidSeconds, static_cast<int>(std::min<int64_t>(s.failures, 6)))));
  avoid_until_ = std::max(avoid_until_, s.avoid_until);
  ++s.failures;
  RollBack(s.t, why, now);
  return true;
}

void Pool::Abandon(const std::string& why, TimePoint now) {
  for (const auto& [id, s] : IdMap(slots_)) {
    if (slots_.at(id).t.valid() && !transitions_.at(slots_.at(id).t).committed)
      RollBack(slots_.at(id).t, why, now);
  }
  for (const auto& [id, s] : IdMap(slots_)) {
    if (slots_.at(id).t.valid()) Lost(id, why, now);
  }
}

}  // namespace tidepool::scheduler
