#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

void Rollouts::RollWeights() {
  if (all_.life.finished()) return;
  const Version v = state_.version();
  const bool available =
      all_.trainer.ready() && all_.trainer.published() == v && state_.versions().IsPublished(v);
  weights_.SetTarget(v, state_.WeightsDigest(v), available ? all_.trainer.leader() : WorkerRef{});
  const auto& evaluation = all_.evaluations.current().active();
  const auto serving = [&](const Worker& w) {
    const Engine* e = w.engine();
    return e != nullptr && e->open() && !e->in_flight.empty() && facts_.MayServe(e->version);
  };
  const auto hold = [&](const Worker& w) {
    const Engine* e = w.engine();
    const WorkerId id = w.ref().worker;
    if (e == nullptr || !all_.slots.pool().Holds(e->slot, Role::kRollout)) return true;
    const bool has_it =
        w.weights().verified == e->version;  // else overwritten by a load that failed or came too late
    // Pinned samples end on the weights that they began with.
    if (has_it && options_.rollout.pin_version && facts_.MayServe(e->version) && dispatcher_.NeededFor(id))
      return true;
    if (has_it && evaluation && evaluation->v != v && e->version == evaluation->v) return true;
    const auto ghosts = ghosts_until_.find(id);
    if (ghosts == ghosts_until_.end()) return false;
    if (now_ < ghosts->second && dispatcher_.HasGhosts(id)) return true;
    ghosts_until_.erase(ghosts);
    return false;
  };
  for (command::Load& load :
       weights_.Assign(serving, hold, [this](const WorkerRef& ref) { return all_.trainer.Has(ref); })) {
    dispatcher_.SetBar(load.worker.worker, Engine::Bar::kLoading, true);
    if (options_.rollout.pin_version) DropPinnedOn(load.worker.worker);
    waits_.Begin({WaitKind::kLoad, load.worker.worker.value},
                 {load.worker, now_, In(options_.fleet.start_timeout_s), ToString(load.v)});
    out_.Do(std::move(load));
  }
}

void Rollouts::On(const event::Loaded& e) {
  if (!all_.workers.IsCurrent(e.worker)) {
    all_.life.Refuse();
    return;
  }
  const WeightRoll::Outcome outcome = weights_.Loaded(e);
  if (outcome == WeightRoll::Outcome::kRefused) {
    all_.life.Refuse();
    return;
  }
  waits_.End({WaitKind::kLoad, e.worker.worker.value});
  all_.life.Moved();
  switch (outcome) {
    case WeightRoll::Outcome::kAdmit:
      AdmitVerified(e.worker, e.v);
      break;
    case WeightRoll::Outcome::kRetry:
      out_.Warn("worker=" + ToString(e.worker) + " event=load_again version=" + ToString(e.v) +
                (e.error.empty() ? "" : " why=\"" + e.error + "\""));
      break;
    default:
      all_.workers.Replace(e.worker,
                           e.error.empty() ? "its weights differ from the published ones" : e.error);
  }
}

// A slot generates from now on; with the weights it has if they are still the right ones.
void Rollouts::ServeAgain(const WorkerRef& ref, SlotId slot) {
  const SlotEpoch epoch = all_.slots.pool().slot(slot).epoch;
  const Worker& w = fleet_.at(ref.worker);
  const Version verified = w.weights().verified;
  if (w.engine() == nullptr) {
    dispatcher_.AddEngine(ref.worker, slot, epoch);
    dispatcher_.SetBar(ref.worker, Engine::Bar::kSuspect, !Health::MayServe(w));
    weights_.Add(ref.worker);
  } else {
    dispatcher_.SetEpoch(ref.worker, epoch);  // its drain was called off
    dispatcher_.SetBar(ref.worker, Engine::Bar::kSlot, false);
    const Version serves = w.engine()->version;
    if (!serves.valid() || verified != serves) return;
    // Said again: a worker that had released before the roll-back reached it does not serve any more.
    out_.Do(command::Admit{ref, serves});
    return;
  }
  // It verified these weights before it trained or waited, and they are still the newest.
  if (verified.valid() && verified == state_.version()) AdmitVerified(ref, verified);
}

void Rollouts::SlotIsTaken(WorkerId worker) { dispatcher_.SetBar(worker, Engine::Bar::kSlot, true); }

void Rollouts::SetSuspect(WorkerId worker, bool suspect) {
  dispatcher_.SetBar(worker, Engine::Bar::kSuspect, suspect);
}

void Rollouts::Drained(WorkerId worker) {
  dispatcher_.RemoveEngine(worker);
  weights_.Remove(worker);
  if (kv_) kv_->Forget(worker);  // its last sample, which gets old, would hold up the cap of the others
  ghosts_until_.erase(worker);
  waits_.End({WaitKind::kLoad, worker.value});
  waits_.End({WaitKind::kCancel, worker.value});
}

void Rollouts::Lost(WorkerId worker) {
  Drained(worker);
  Forget(worker);
}

void Rollouts::Offered(const event::WorkerJoined& e) { weights_.Holds(e.worker, Verified(e)); }

void Rollouts::Adopt(const WorkerRef& ref, SlotId slot, const event::WorkerJoined& e) {
  dispatcher_.AddEngine(ref.worker, slot, all_.slots.pool().slot(slot).epoch);
  dispatcher_.SetBar(ref.worker, Engine::Bar::kSlot, !all_.slots.pool().Holds(slot, Role::kRollout));
  weights_.Add(ref.worker);
  const Version holds = fleet_.at(ref.worker).weights().verified;
  if (holds.valid()) AdmitVerified(ref, holds);
  for (const event::OfferedChunk& held : e.offered) AdoptChunk(ref, held);
}

// The weights that it holds, if they are those that were published under this name; else none. Weights older
// than those that the journal says it has loaded cannot be right.
Version Rollouts::Verified(const event::WorkerJoined& e) const {
  const VersionGraph& versions = state_.versions();
  const bool same = e.holds.valid() && e.holds_digest != 0 && versions.IsPublished(e.holds) &&
                    versions.Digest(e.holds) == e.holds_digest;
  return same && !(e.holds < state_.workers().at(e.worker).loaded) ? e.holds : Version{};
}

// An engine serves weights whose digest is the published one. The journal knows it already if the worker held
// them before, gave them up for the trainer's and has loaded them again.
void Rollouts::AdmitVerified(const WorkerRef& ref, const Version& v) {
  const RunState::WorkerFacts facts = state_.workers().at(ref.worker);
  if (facts.loaded != v) out_.Record(record::Loaded{ref, v, state_.WeightsDigest(v)});
  if (facts.admitted != v) out_.Record(record::Admit{ref, v});
  out_.Do(command::Admit{ref, v});  // the last life may have died before it said so
  dispatcher_.Admit(ref.worker, v);
  all_.workers.Admitted(ref.worker);
}

void Rollouts::AdoptChunk(const WorkerRef& ref, const event::OfferedChunk& held) {
  const Sample* s = state_.ledger().Find(held.tid);
  // Which of an episode's tokens were observations went with the old life, so it begins again.
  const bool wanted =
      !facts_.environment && s != nullptr && s->phase == SamplePhase::kRunning && s->att == held.att &&
      !s->ended && dispatcher_.Find(held.tid) == nullptr && held.generated_tokens >= 0 &&
      (held.generated_tokens == 0 || held.v_max.valid()) &&
      state_.versions().IsAncestor(held.v_max.valid() ? held.v_max : state_.version(), state_.version());
  if (!wanted) {
    out_.Do(command::CancelChunk{ref, held.tid, held.att});
    return;
  }
  const Group& g = *state_.ledger().Find(KeyOf(held.tid));
  dispatcher_.Add({.tid = held.tid,
                   .gid = g.gid,
                   .att = held.att,
                   .prompt_len = g.prompt_len,
                   .max_new = g.max_new,
                   .home = ref.worker});
  dispatcher_.Adopt(held.tid, ref, held.generated_tokens, held.v_max);
}

}  // namespace tidepool::scheduler
