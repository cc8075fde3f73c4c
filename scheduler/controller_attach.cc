// A worker that outlived its controller: what it offers, and what of that the new controller takes.
//
// Nothing is taken on trust. Weights count only with the digest of their PUBLISH, a trainer's state only if
// its step and digest are those of the last STEP_COMMIT. Of a chunk only tokens count that this controller
// has: the worker sends them again, and ChunkProgress counts them.

#include <algorithm>

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {

// False: it is not one that was waited for, and has to begin anew.
bool Controller::Impl::Reattach(const event::WorkerJoined& e) {
  const auto facts = state.workers().find(e.worker);
  if (!reattaching.contains(e.worker) || facts == state.workers().end() ||
      facts->second.inc != e.restored_inc)
    return false;
  reattaching.erase(e.worker);
  const WorkerRef ref{e.worker, e.restored_inc};
  out.Do(command::Welcome{e.worker, ref.inc});
  health.Joined(ref, now);
  if (e.kind != WorkerKind::kDevice) {
    AddSideWorker(ref);
    return true;
  }
  verified[e.worker] = Verified(e);
  const SlotId slot = SlotOf(e.worker);
  if (pool.slot(slot).phase == SlotPhase::kFree) {
    pool.Attach(slot, ref);
  } else {
    pool.Reattached(slot, now);
  }
  AdoptState(ref, slot, e);
  // What was granted and never confirmed has no chunks: it is made an engine when it confirms.
  if (pool.slot(slot).role == Role::kRollout && !pool.slot(slot).t.valid()) AdoptEngine(ref, slot, e);
  return true;
}

// The weights that it holds, if they are those that were published under this name; else none. Weights older
// than those that the journal says it has loaded cannot be right.
Version Controller::Impl::Verified(const event::WorkerJoined& e) const {
  const VersionGraph& versions = state.versions();
  const bool same = e.holds.valid() && e.holds_digest != 0 && versions.IsPublished(e.holds) &&
                    versions.Digest(e.holds) == e.holds_digest;
  return same && !(e.holds < state.workers().at(e.worker).loaded) ? e.holds : Version{};
}

void Controller::Impl::AdoptEngine(const WorkerRef& ref, SlotId slot, const event::WorkerJoined& e) {
  dispatcher.AddEngine(ref, slot, pool.slot(slot).epoch);
  dispatcher.SetBar(ref.worker, Dispatcher::Bar::kSlot, !pool.Holds(slot, Role::kRollout));
  const Version holds = verified.at(ref.worker);
  weights.Add(ref, holds);
  if (holds.valid()) {
    AdmitVerified(ref, holds);
    dispatcher.Admit(ref.worker, holds);
    health.Admitted(ref.worker);
  }
  for (const event::HeldChunk& held : e.held) AdoptChunk(ref, held);
}

// An engine serves weights that it held before. The journal may not know yet that it has them.
void Controller::Impl::AdmitVerified(const WorkerRef& ref, const Version& v) {
  const RunState::WorkerFacts facts = state.workers().at(ref.worker);
  if (facts.loaded != v) out.Record(record::Loaded{ref, v, state.WeightsDigest(v)});
  if (facts.admitted != v) out.Record(record::Admit{ref, v});
  out.Do(command::Admit{ref, v});  // the last life may have died before it said so
}

void Controller::Impl::AdoptChunk(const WorkerRef& ref, const event::HeldChunk& held) {
  const Sample* s = state.ledger().Find(held.tid);
  // Which of an episode's tokens were observations went with the old life, so it begins again.
  const bool wanted =
      !environment && s != nullptr && s->phase == SamplePhase::kRunning && s->att == held.att && !s->ended &&
      dispatcher.Find(held.tid) == nullptr && held.generated_tokens >= 0 &&
      (held.generated_tokens == 0 || held.v_max.valid()) &&
      state.versions().IsAncestor(held.v_max.valid() ? held.v_max : state.version(), state.version());
  if (!wanted) {
    out.Do(command::CancelChunk{ref, held.tid, held.att});
    return;
  }
  const Group& g = *state.ledger().Find(KeyOf(held.tid));
  dispatcher.Add({.tid = held.tid,
                  .gid = g.gid,
                  .att = held.att,
                  .prompt_len = g.prompt_len,
                  .max_new = g.max_new,
                  .home = ref.worker});
  dispatcher.Adopt(held.tid, ref, held.generated_tokens, held.v_max);
}

// Its copy of the trainer's state. Who is a member of the step that the last life left open may still be
// inside of it: it leaves the step first, and then says what it holds.
void Controller::Impl::AdoptState(const WorkerRef& ref, SlotId slot, const event::WorkerJoined& e) {
  if (!state.ever_checkpointed()) return;
  if (left_open &&
      std::ranges::any_of(left_open->members, [&](const record::SlotPlan& m) { return m.slot == slot; })) {
    trainer.aborting.insert(ref);
    out.Do(command::AbortStep{ref, slot, pool.slot(slot).epoch, left_open->lease, left_open->step, 0});
    WaitForAbort(ref, left_open->step);
  } else if (e.state_step.valid()) {
    trainer.copies[ref] = {e.state_step, e.state_digest};
  }
}

bool Controller::Impl::DevicesReattach() const {
  return std::ranges::any_of(reattaching,
                             [&](const WorkerId id) { return id.value < options.device_workers(); });
}

// The first that holds the committed state leads; nothing is restored and no lineage is opened. Nobody does:
// the state comes from a checkpoint.
void Controller::Impl::ElectAdopted() {
  for (const auto& [ref, copy] : trainer.copies) {
    if (trainer.digest == 0 || !HasState(ref) || !health.IsCurrent(ref)) continue;
    trainer.leader = ref;
    trainer.phase = StatePhase::kReady;
    must_restore = false;
    health.Admitted(ref.worker);
    out.Warn("worker=" + ToString(ref) + " event=state_adopted step=" + std::to_string(trainer.step.value));
    // What follows from a publication; the last life may have died in the middle of it.
    if (!state.versions().IsPublished(state.version())) return;
    ExpireOld();
    PlanEvaluation();
    return;
  }
  if (trainer.aborting.empty() && !DevicesReattach()) PlanState(/*restore=*/true);
}

}  // namespace tidepool::scheduler
