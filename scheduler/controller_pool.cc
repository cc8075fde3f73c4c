// Slots: what the policy is shown, and how its plan becomes transactions.

#include <algorithm>

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {

SlotView Controller::Impl::ViewSlot(SlotId id, const Pool::Slot& s) const {
  SlotView v{.id = id};
  v.role = s.t.valid() ? s.next : s.owed != Role::kNone ? s.owed : s.role;
  v.live = s.holder.inc.valid() && s.phase != SlotPhase::kQuarantined && s.phase != SlotPhase::kLost &&
           health.IsCurrent(s.holder);
  v.avoid = now < s.avoid_until;
  if (trainer.training) {
    const auto& members = trainer.training->members;  // by slot
    const auto m = std::ranges::lower_bound(members, id, {}, &command::GroupMember::slot);
    v.trains = m != members.end() && m->slot == id && m->worker == s.holder;
  }
  v.has_state = HasState(s.holder);
  if (s.taken.since_start.count() > 0) v.taken_s = Seconds(now - s.taken);
  return v;
}

PoolView Controller::Impl::ViewPool() const {
  PoolView view = fleet;
  view.slots.reserve(pool.slots().size());
  for (const auto& [id, s] : pool.slots()) view.slots.push_back(ViewSlot(id, s));
  return view;
}

LedgerView Controller::Impl::ViewLedger() {
  const LedgerRules& rules = state.ledger().rules();
  LedgerView l;
  l.generates = needs_rollout;
  l.evaluation = evaluation.Pending();
  l.stopping = shutdown.requested();
  l.groups_per_step = rules.groups_per_step;
  l.group_size = rules.group_size;
  l.ready_groups = state.ledger().CountGroups(GroupPhase::kQueued);
  const auto need = [&] {
    if (trainer.training || trainer.phase == StatePhase::kElecting || !trainer.aborting.empty())
      return TrainerNeed::kStep;
    if (trainer.phase != StatePhase::kReady) return TrainerNeed::kState;
    if (StepsDone() || shutdown.requested()) return TrainerNeed::kDone;
    if (!state.versions().IsPublished(state.version())) return TrainerNeed::kPublish;
    if (MayTrain() && !Batch().empty() && !WaitForStraggler()) return TrainerNeed::kBatch;
    return TrainerNeed::kNothing;
  };
  l.need = need();
  l.batch_groups = l.need == TrainerNeed::kBatch ? static_cast<int64_t>(batch.size()) : 0;
  return l;
}

// `by_slot`: nothing but slots has changed since the last plan.
std::optional<std::vector<SlotId>> Controller::Impl::DecidePlan(const LedgerView& ledger, bool by_slot) {
  const Forecast forecast = MakeForecast(ledger);
  std::vector<SlotId> changed = pool.TakeChanged();
  // Slots to avoid are so for a time, which is no change of theirs.
  by_slot = by_slot && policy.by_slot && std::min(now, plan_made) >= pool.avoid_until();
  if (by_slot) {
    PoolView view = fleet;
    for (const SlotId id : changed) view.slots.push_back(ViewSlot(id, pool.slot(id)));
    by_slot = plan.Update(policy, view, ledger, forecast, now);
  }
  if (!by_slot) plan.Decide(policy, ViewPool(), ledger, forecast, now);
  plan_made = now;
  if (plan.refused().ok()) {
    plan_refused.clear();
  } else if (plan_refused != plan.refused().message()) {
    plan_refused = plan.refused().message();
    out.Warn("event=plan_refused policy=" + policy.name + " why=\"" + plan_refused + "\"");
  }
  if (plan.all_new() || takes_held_back) return std::nullopt;
  return changed;
}

void Controller::Impl::AdvancePool(bool again) {
  if (finished) return;
  // Plans are not made for every chunk that ends: only when something that a plan depends on has changed, of
  // all slots where that is more than slots, and in every tick (for what depends on time).
  const LedgerView ledger = ViewLedger();
  const auto key = std::make_tuple(pool.plan_generation(), ledger.need, ledger.evaluation, ledger.stopping,
                                   ledger.batch_groups);
  if (!again && planned == key) return;
  bool by_slot = !again && planned;
  if (by_slot) {
    std::get<0>(*planned) = std::get<0>(key);
    by_slot = planned == key;
  }
  planned = key;
  const auto changed = DecidePlan(ledger, by_slot);
  const Plan& wanted = plan.plan();
  std::map<SlotId, Role> joins, takes, owed;
  const auto look = [&](SlotId id, Role want) {
    const Pool::Slot& s = pool.slot(id);
    if (s.t.valid() || !s.holder.inc.valid() || !health.IsCurrent(s.holder)) return;
    if (s.phase == SlotPhase::kReleased) {
      owed[id] = want;
    } else if (s.phase == SlotPhase::kFree) {
      joins[id] = want;
    } else if (s.phase == SlotPhase::kHeld && s.role != want && now >= s.avoid_until) {
      takes[id] = want;
    }
  };
  if (changed) {
    for (const SlotId id : *changed) {
      if (const auto want = wanted.roles.find(id); want != wanted.roles.end()) look(id, want->second);
    }
  } else {
    for (const auto& [id, role] : wanted.roles) {
      if (pool.Knows(id)) look(id, role);
    }
  }
  const bool may_take = !takes.empty() && !pool.Taking();
  takes_held_back = !takes.empty() && !may_take;
  // What a rolled-back transition had released already goes where it is wanted now: back, or on.
  for (const auto& [id, role] : owed) {
    if (role == pool.slot(id).owed) {
      pool.GrantBack(id, now);
    } else {
      (may_take ? takes : joins)[id] = role;
    }
  }
  if (!joins.empty()) pool.Begin(joins, "join", 0, now);
  if (!may_take) return;
  for (const auto& [id, role] : takes) {
    const Pool::Slot& s = pool.slot(id);
    if (s.phase == SlotPhase::kHeld && s.role == Role::kRollout)
      dispatcher.SetBar(s.holder.worker, Dispatcher::Bar::kSlot, true);
  }
  pool.Begin(takes, wanted.why, wanted.dwell_s, now);
}

void Controller::Impl::On(const event::Drained& e) {
  if (!health.IsCurrent(e.worker) || !pool.Drained(e, now)) {
    Refuse();
    return;
  }
  Moved();
  // All of its chunks have been reported; whatever was not goes back with the tokens that came.
  dispatcher.RemoveEngine(e.worker.worker);
  weights.Remove(e.worker.worker);
  waits.End({WaitKind::kLoad, e.worker.worker.value});
  waits.End({WaitKind::kCancel, e.worker.worker.value});
  ghosts_until.erase(e.worker.worker);
}

void Controller::Impl::On(const event::Released& e) {
  if (!health.IsCurrent(e.worker)) {
    Refuse();
    return;
  }
  switch (pool.Released(e, now)) {
    case Pool::ReleaseOutcome::kRefused:
      Refuse();
      return;
    case Pool::ReleaseOutcome::kReleased:
      Moved();
      return;
    case Pool::ReleaseOutcome::kQuarantined:
      Replace(e.worker, "it kept its memory");
      return;
  }
}

void Controller::Impl::On(const event::Granted& e) {
  if (!health.IsCurrent(e.worker) || !pool.Granted(e, now)) {
    Refuse();
    return;
  }
  Moved();
  if (pool.Holds(e.slot, Role::kRollout)) ServeAgain(e.worker, e.slot);
}

// A slot generates from now on; with the weights it has if they are still the right ones.
void Controller::Impl::ServeAgain(const WorkerRef& ref, SlotId slot) {
  const LeaseEpoch epoch = pool.slot(slot).epoch;
  const auto found = verified.find(ref.worker);
  const Version loaded = found == verified.end() ? Version{} : found->second;
  if (dispatcher.FindEngine(ref.worker) == nullptr) {
    dispatcher.AddEngine(ref, slot, epoch);
    dispatcher.SetBar(ref.worker, Dispatcher::Bar::kSuspect, !health.MayServe(ref.worker));
    weights.Add(ref, loaded);
  } else {
    dispatcher.SetEpoch(ref.worker, epoch);  // its drain was called off
    dispatcher.SetBar(ref.worker, Dispatcher::Bar::kSlot, false);
    const auto* w = weights.Find(ref.worker);
    const Version serves = dispatcher.FindEngine(ref.worker)->version;
    if (w == nullptr || w->loading.valid() || !serves.valid() || w->loaded != serves) return;
    // Said again: a worker that had released before the roll-back reached it does not serve any more.
    out.Do(command::Admit{ref, serves});
    return;
  }
  // It verified these weights before it trained or waited, and they are still the newest.
  if (loaded.valid() && loaded == state.version()) {
    AdmitVerified(ref, loaded);
    dispatcher.Admit(ref.worker, loaded);
    health.Admitted(ref.worker);
  }
}

}  // namespace tidepool::scheduler
