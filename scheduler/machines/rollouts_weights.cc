#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

WeightRoll::Conditions Rollouts::RollConditions() {
  return {.serving =
              [this](SlotId slot) {
                const Engine* e = dispatcher_.FindEngine(slot);
                return e != nullptr && e->open() && !e->in_flight.empty() && facts_.MayServe(e->version);
              },
          .hold = [this](SlotId slot) { return Holds(slot); },
          .trained = [this](const SlotRef& ref) { return all_.trainer.Has(ref); },
          .may_serve = [this](const Version& v) { return facts_.MayServe(v); }};
}

// The engine keeps the weights that it has for now.
bool Rollouts::Holds(SlotId slot) {
  const Engine* e = dispatcher_.FindEngine(slot);
  if (e == nullptr || e->broken() || !all_.slots.pool().Holds(slot, Role::kRollout)) return true;
  const bool has_it = fleet_.devices.at(slot).weights().verified ==
                      e->version;  // else overwritten by a load that failed or came too late
  // Pinned samples end on the weights that they began with.
  if (has_it && options_.rollout.pin_version && facts_.MayServe(e->version) && dispatcher_.NeededFor(slot))
    return true;
  const auto& evaluation = all_.evaluations.current().active();
  if (has_it && evaluation && evaluation->v != state_.version() && e->version == evaluation->v) return true;
  const auto ghosts = ghosts_until_.find(slot);
  if (ghosts == ghosts_until_.end()) return false;
  if (now_ < ghosts->second && dispatcher_.HasGhosts(slot)) return true;
  ghosts_until_.erase(ghosts);
  return false;
}

void Rollouts::RollWeights() {
  if (all_.life.over()) return;
  const Version v = state_.version();
  const bool available =
      all_.trainer.ready() && all_.trainer.published() == v && state_.versions().IsPublished(v);
  weights_.SetTarget(v, state_.WeightsDigest(v), available ? all_.trainer.leader() : SlotRef{},
                     all_.trainer.copied());
  WeightRoll::Orders orders = weights_.Assign();
  for (command::Load& load : orders.loads) {
    dispatcher_.SetBar(load.slot, Engine::Bar::kLoading, true);
    if (options_.rollout.pin_version) DropPinnedOn(load.slot);
    waits_.Begin({WaitKind::kLoad, load.slot.value},
                 {load.worker, now_, In(options_.fleet.start_timeout_s), ToString(load.v)});
    out_.Do(std::move(load));
  }
  for (command::Pull& pull : orders.pulls) {
    waits_.Begin({WaitKind::kPull, pull.slot.value},
                 {pull.worker, now_, In(kPullSilentSeconds), ToString(pull.v)});
    out_.Do(std::move(pull));
  }
}

void Rollouts::On(const event::Pulled& e) {
  if (!fleet_.IsLive(SlotOf(e))) {
    all_.life.Refuse();
    return;
  }
  const Waits::Key key{WaitKind::kPull, e.slot.value};
  if (!e.whole && e.error.empty()) {  // it comes
    if (!weights_.Pulls(SlotOf(e))) return;
    waits_.Extend(key, In(kPullSilentSeconds));
    all_.life.Moved();
    return;
  }
  const WeightRoll::Outcome outcome = weights_.Pulled(e);
  if (outcome == WeightRoll::Outcome::kRefused) {  // called off for another one, which is on its way
    all_.life.Refuse();
    return;
  }
  waits_.End(key);
  all_.life.Moved();
  Tell(outcome, e.worker, "pulls", e.v, e.error);
}

void Rollouts::On(const event::Loaded& e) {
  if (!fleet_.IsLive(SlotOf(e))) {
    all_.life.Refuse();
    return;
  }
  const WeightRoll::Outcome outcome = weights_.Loaded(e);
  if (outcome == WeightRoll::Outcome::kRefused) {
    all_.life.Refuse();
    return;
  }
  waits_.End({WaitKind::kLoad, e.slot.value});
  all_.life.Moved();
  if (outcome == WeightRoll::Outcome::kDone)
    AdmitVerified(e.slot, e.v);
  else
    Tell(outcome, e.worker, "loads", e.v, e.error);
}

void Rollouts::Tell(WeightRoll::Outcome outcome, const WorkerRef& worker, const char* doing, const Version& v,
                    const std::string& error) {
  switch (outcome) {
    case WeightRoll::Outcome::kOvertaken:
      out_.Say(LogLevel::kDebug, worker, "load_overtaken",
               std::string(doing) + " no more of version " + ToString(v) + ", for " +
                   ToString(state_.version()) + " was published meanwhile" +
                   (error.empty() ? "" : " (" + error + ")"),
               {{"version", ToString(v)}});
      break;
    case WeightRoll::Outcome::kRetry:
      out_.Say(LogLevel::kWarn, worker, "load_again",
               std::string(doing) + " version " + ToString(v) + " once more: " +
                   (error.empty() ? "the digest of what it has is not the one that was published" : error),
               {{"version", ToString(v)}});
      break;
    case WeightRoll::Outcome::kReplace:
      all_.workers.Replace(worker, error.empty() ? "its weights differ from the published ones" : error);
      break;
    default:
      break;
  }
}

// A slot generates from now on; with the weights it has if they are still the right ones.
void Rollouts::ServeAgain(SlotId slot) {
  const SlotEpoch epoch = all_.slots.pool().slot(slot).epoch;
  const Device& d = fleet_.devices.at(slot);
  const Version verified = d.weights().verified;
  if (d.engine() == nullptr) {
    dispatcher_.AddEngine(slot, epoch);
    JudgeEngine(slot);
    weights_.Add(slot);
  } else {
    dispatcher_.SetEpoch(slot, epoch);  // its drain was called off
    dispatcher_.SetBar(slot, Engine::Bar::kSlot, false);
    const Version serves = d.engine()->version;
    if (!serves.valid() || verified != serves) return;
    // Said again: a worker that had released before the roll-back reached it does not serve any more.
    out_.Do(command::Admit{fleet_.Ref(slot).worker, slot, serves});
    return;
  }
  // It verified these weights before it trained or waited, and they are still the newest.
  if (verified.valid() && verified == state_.version()) AdmitVerified(slot, verified);
}

// One worker of its gang that does not answer is enough.
void Rollouts::JudgeEngine(SlotId slot) {
  dispatcher_.SetBar(slot, Engine::Bar::kSuspect,
                     !std::ranges::all_of(fleet_.WorkersOf(slot), [&](WorkerId worker) {
                       return Health::MayServe(fleet_.workers.at(worker));
                     }));
}

void Rollouts::JudgeEngines(WorkerId worker) {
  for (const SlotId slot : fleet_.EnginesOf(worker)) JudgeEngine(slot);
}

void Rollouts::Drained(SlotId slot) {
  dispatcher_.RemoveEngine(slot);
  weights_.Remove(slot);
  if (kv_) kv_->Forget(slot);  // its last sample, which gets old, would hold up the cap of the others
  ghosts_until_.erase(slot);
  waits_.End({WaitKind::kLoad, slot.value});
}

void Rollouts::Lost(WorkerId worker) {
  for (const SlotId slot : fleet_.workers.at(worker).slots()) {
    Drained(slot);
    Forget(slot);
    waits_.End({WaitKind::kPull, slot.value});
  }
}

void Rollouts::Offered(const event::OfferedSlot& offered) { weights_.Holds(offered.slot, Verified(offered)); }

void Rollouts::Adopt(SlotId slot, const std::vector<event::OfferedChunk>& chunks) {
  dispatcher_.AddEngine(slot, all_.slots.pool().slot(slot).epoch);
  dispatcher_.SetBar(slot, Engine::Bar::kSlot, !all_.slots.pool().Holds(slot, Role::kRollout));
  weights_.Add(slot);
  const Version holds = fleet_.devices.at(slot).weights().verified;
  if (holds.valid()) AdmitVerified(slot, holds);
  for (const event::OfferedChunk& chunk : chunks) {
    if (chunk.slot == slot) AdoptChunk(chunk);
  }
}

// The weights that it holds, if they are those that were published under this name; else none. Weights older
// than those that the journal says it has loaded cannot be right.
Version Rollouts::Verified(const event::OfferedSlot& e) const {
  const VersionGraph& versions = state_.versions();
  const bool same = e.holds.valid() && e.holds_digest != 0 && versions.IsPublished(e.holds) &&
                    versions.Digest(e.holds) == e.holds_digest;
  const WorkerId worker = fleet_.devices.at(e.slot).worker();
  const SlotRef place{{worker, state_.workers().at(worker).inc}, e.slot};
  return same && !(e.holds < state_.ServingAt(place).loaded) ? e.holds : Version{};
}

// An engine serves weights whose digest is the published one. The journal knows it already if the worker held
// them before, gave them up for the trainer's and has loaded them again.
void Rollouts::AdmitVerified(SlotId slot, const Version& v) {
  const WorkerRef ref = fleet_.Ref(slot).worker;
  const RunState::Serving serving = state_.ServingAt({ref, slot});
  if (serving.loaded != v) out_.Record(record::Loaded{ref, v, state_.WeightsDigest(v), slot});
  if (serving.admitted != v) out_.Record(record::Admit{ref, v, slot});
  out_.Do(command::Admit{ref, slot, v});  // the last life may have died before it said so
  dispatcher_.Admit(slot, v);
  all_.workers.Admitted(ref.worker);
}

void Rollouts::AdoptChunk(const event::OfferedChunk& chunk) {
  const Sample* s = state_.ledger().Find(chunk.tid);
  // Which of an episode's tokens were observations went with the old life, so it begins again.
  const bool wanted =
      !facts_.environment && s != nullptr && s->phase == SamplePhase::kRunning && s->att == chunk.att &&
      !s->ended && dispatcher_.Find(chunk.tid) == nullptr && chunk.tokens >= 0 &&
      (chunk.tokens == 0 || chunk.newest.valid()) &&
      state_.versions().IsAncestor(chunk.newest.valid() ? chunk.newest : state_.version(), state_.version());
  if (!wanted) {
    out_.Do(command::CancelChunk{fleet_.Ref(chunk.slot).worker, chunk.slot, chunk.tid, chunk.att});
    return;
  }
  const Group& g = *state_.ledger().Find(KeyOf(chunk.tid));
  dispatcher_.Add({.tid = chunk.tid,
                   .gid = g.gid,
                   .att = chunk.att,
                   .prompt_len = g.prompt_len,
                   .max_new = g.max_new,
                   .home = chunk.slot});
  dispatcher_.Adopt(chunk.tid, chunk.slot, chunk.tokens, chunk.newest);
}

}  // namespace tidepool::scheduler
