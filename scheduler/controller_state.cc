// The trainer's state: where it comes from, who holds a copy, who leads; and the group that trains.

#include <algorithm>

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {
// Decides where the trainer's state comes from.
void Controller::Impl::PlanState(bool restore) {
  must_restore = must_restore || restore;
  trainer.phase = StatePhase::kNone;
  trainer.digest = 0;
  ForgetState();
  trainer.published = {};
  trainer.publishing = trainer.copying = false;
  trainer.publish_tries = trainer.state_tries = 0;
  if (restore && state.ever_checkpointed() && DevicesReattach()) {
    trainer.step = state.step();
    trainer.digest = state.WeightsDigest(state.version());
    trainer.phase = StatePhase::kReattaching;
    return;
  }
  if (!state.ever_checkpointed()) {
    if (state.step().value > 0) {
      Fail("no_checkpoint", "controller", {},
           "the journal has steps but no checkpoint; start anew with --fresh");
      return;
    }
    trainer.ckpt = -2;
    trainer.step = {0};
    trainer.phase = StatePhase::kPlanned;
    return;
  }
  const int64_t behind = state.step().value - recovery.value;
  if (!must_restore && recovery.valid() && (behind == 0 || behind == 1)) {
    if (behind == 1) Restore(-1, recovery);
    trainer.ckpt = -1;
    trainer.step = recovery;
    trainer.digest = state.WeightsDigest(state.version());
    trainer.phase = StatePhase::kPlanned;
    return;
  }
  VerifyNext();
}

void Controller::Impl::VerifyNext() {
  const auto c = CheckpointPolicy::Candidate(state.checkpoints());
  if (!c) {
    Fail("no_checkpoint", "controller", {}, "no checkpoint of this run can be read; start anew with --fresh");
    return;
  }
  trainer.phase = StatePhase::kVerifying;
  trainer.ckpt = c->ckpt;
  trainer.step = c->step;
  trainer.digest = c->weights_digest;
  out.Do(command::VerifyCheckpoint{c->ckpt, c->step, c->manifest_digest});
  waits.Begin({WaitKind::kVerify, 0}, {{},
                                       now,
                                       now + FromSeconds(options.config.cluster.start_timeout_s),
                                       "checkpoint " + std::to_string(c->ckpt)});
}

void Controller::Impl::On(const event::CheckpointVerified& e) {
  if (trainer.phase != StatePhase::kVerifying || e.ckpt != trainer.ckpt) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kVerify, 0});
  if (!e.error.empty()) {
    out.Warn("checkpoint=" + std::to_string(e.ckpt) + " event=rejected why=\"" + e.error + "\"");
    out.Record(record::CheckpointReject{e.ckpt, e.error});
    VerifyNext();
    return;
  }
  // Nothing is undone if the newest step is in it; a new life opens a lineage all the same.
  if (must_restore || trainer.step < state.step()) Restore(trainer.ckpt, trainer.step);
  must_restore = false;
  trainer.phase = StatePhase::kPlanned;
}

void Controller::Impl::Restore(int64_t ckpt, StepNumber step) {
  out.Record(record::Restore{ckpt, step, state.version().lineage, state.lineages()});
  recovery = ckpt >= 0 ? StepNumber{} : step;
  CancelEvaluation("its step was undone");
  RestartUndone();
}

void Controller::Impl::ForgetState() {
  for (const auto& [ref, tries] : trainer.fetching) waits.End({WaitKind::kState, ref.worker.value});
  trainer.fetching.clear();
  trainer.copies.clear();
}

bool Controller::Impl::HasState(const WorkerRef& ref) const {
  const auto it = trainer.copies.find(ref);
  return it != trainer.copies.end() && it->second.step == trainer.step && it->second.digest == trainer.digest;
}

void Controller::Impl::AdvanceState() {
  if (trainer.phase == StatePhase::kReattaching) ElectAdopted();
  if (finished || trainer.phase != StatePhase::kPlanned) return;
  // The holder of a slot may be one of an earlier life that has not come back.
  const std::vector<command::GroupMember> members = Members();
  if (members.empty()) return;
  trainer.leader = members.front().worker;
  trainer.phase = StatePhase::kLoading;
  if (trainer.ckpt == -2) {
    out.Do(command::InitState{trainer.leader});
  } else {
    out.Do(command::RestoreState{trainer.leader, trainer.ckpt, trainer.step, trainer.digest});
  }
  waits.Begin({WaitKind::kState, trainer.leader.worker.value},
              {trainer.leader, now, now + FromSeconds(options.config.cluster.start_timeout_s),
               trainer.ckpt == -2 ? "init" : "restore"});
}

void Controller::Impl::On(const event::StateReady& e) {
  const bool fetched = trainer.fetching.contains(e.worker);
  const bool leads = trainer.phase == StatePhase::kLoading && e.worker == trainer.leader;
  if (!health.IsCurrent(e.worker) || (!fetched && !leads)) {
    Refuse();
    return;
  }
  Moved();
  if (const auto* wait = waits.Find({WaitKind::kState, e.worker.worker.value});
      fetched && wait != nullptr && e.error.empty()) {
    live.StateCopy(Seconds(now - wait->since));
  }
  waits.End({WaitKind::kState, e.worker.worker.value});
  std::string error = e.error;
  if (error.empty() && e.step != trainer.step)
    error = "it holds step " + std::to_string(e.step.value) + ", not " + std::to_string(trainer.step.value);
  if (error.empty() && trainer.digest != 0 && e.weights_digest != trainer.digest)
    error = "its weights differ from the committed ones";
  if (error.empty()) {
    trainer.copies[e.worker] = {e.step, e.weights_digest};
    trainer.fetching.erase(e.worker);
    health.Admitted(e.worker.worker);
    if (!leads) return;
    trainer.phase = StatePhase::kReady;
    trainer.digest = e.weights_digest;
    trainer.state_tries = 0;
    return;
  }
  out.Warn("worker=" + ToString(e.worker) + " event=state_failed step=" + std::to_string(trainer.step.value) +
           " why=\"" + error + "\"");
  if (!leads) {
    const int64_t tries = ++trainer.fetching[e.worker];
    if (tries >= kTries) Replace(e.worker, "it could not take the trainer's state from a peer: " + error);
    return;  // PrepareGroup asks again
  }
  if (++trainer.state_tries < kTries && trainer.ckpt != -1) {
    trainer.phase = StatePhase::kPlanned;
    return;
  }
  if (trainer.ckpt == -2) {
    Fail("state", "w" + std::to_string(e.worker.worker.value), e.worker.inc,
         "the model could not be made: " + error);
  } else if (trainer.ckpt == -1) {
    recovery = {};  // the copy is of no use; the newest checkpoint then
    PlanState(false);
  } else {
    out.Record(record::CheckpointReject{trainer.ckpt, error});
    PlanState(true);
  }
}

// A device worker is gone: its copy of the state, its part in a step, its part as the leader.
void Controller::Impl::TrainerLost(const WorkerRef& ref, const std::string& why) {
  trainer.copies.erase(ref);
  trainer.fetching.erase(ref);
  trainer.aborting.erase(ref);
  for (const WaitKind kind : {WaitKind::kState, WaitKind::kTrain, WaitKind::kGroup, WaitKind::kAbort})
    waits.End({kind, ref.worker.value});
  if (std::any_of(trainer.group.begin(), trainer.group.end(),
                  [&](const auto& m) { return m.worker == ref; })) {
    for (const WorkerRef& other : trainer.forming) waits.End({WaitKind::kGroup, other.worker.value});
    trainer.forming.clear();
    trainer.group.clear();
  }
  const bool trained =
      trainer.training && std::any_of(trainer.training->members.begin(), trainer.training->members.end(),
                                      [&](const auto& m) { return m.worker == ref; });
  if (trained) AbortStep("actor lost: " + why, ref);
  if (ref != trainer.leader) {
    if (trainer.phase == StatePhase::kElecting) ElectLeader();
    return;
  }
  if (writing) {
    out.Warn("checkpoint=" + std::to_string(writing->ckpt) + " event=abandoned why=\"actor lost\"");
    writing.reset();
    waits.End({WaitKind::kCheckpoint, 0});
  }
  final_saving = false;
  for (const WaitKind kind : {WaitKind::kPublish, WaitKind::kRecoveryCopy, WaitKind::kFinal})
    waits.End({kind, 0});
  trainer.leader = {};
  if (trainer.phase == StatePhase::kVerifying || trainer.phase == StatePhase::kPlanned ||
      trainer.phase == StatePhase::kNone)
    return;
  if (trainer.phase == StatePhase::kLoading) {
    trainer.phase = StatePhase::kPlanned;
    return;
  }
  ElectLeader();
}

// Who holds the committed state leads; nobody: it comes from the recovery copy or a checkpoint.
void Controller::Impl::ElectLeader() {
  trainer.phase = StatePhase::kElecting;
  if (!trainer.aborting.empty()) return;
  WorkerRef best;
  for (const auto& [ref, copy] : trainer.copies) {
    if (!HasState(ref) || !health.IsCurrent(ref)) continue;
    if (ref == trainer.leader || !best.inc.valid()) best = ref;
    if (best == trainer.leader) break;
  }
  if (!best.inc.valid()) {
    PlanState(false);
    return;
  }
  if (best != trainer.leader) {
    trainer.leader = best;
    trainer.published = {};
    trainer.publishing = trainer.copying = false;
    trainer.publish_tries = 0;
  }
  trainer.phase = StatePhase::kReady;
}

void Controller::Impl::On(const event::StepAborted& e) {
  if (!health.IsCurrent(e.worker) || trainer.aborting.erase(e.worker) == 0) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kAbort, e.worker.worker.value});
  if (e.step.valid()) trainer.copies[e.worker] = {e.step, e.weights_digest};
  if (trainer.phase == StatePhase::kElecting) ElectLeader();
}

// --- the training group

// Slots that hold the actor role now, by slot.
std::vector<command::GroupMember> Controller::Impl::Members() const {
  std::vector<command::GroupMember> members;
  for (const SlotId id : pool.Holding(Role::kActor)) {
    const Pool::Slot& s = pool.slot(id);
    if (health.IsCurrent(s.holder)) members.push_back({s.holder, id, s.epoch});
  }
  return members;
}

bool Controller::Impl::PrepareGroup() {
  if (trainer.phase != StatePhase::kReady || trainer.training || !trainer.aborting.empty()) return false;
  if (pool.Coming(Role::kActor)) return false;
  const std::vector<command::GroupMember> members = Members();
  if (members.empty()) return false;
  if (options.config.deterministic) {
    int64_t all = 0;
    for (const auto& [id, s] : pool.slots()) all += Eligible(id, Role::kActor) ? 1 : 0;
    if (static_cast<int64_t>(members.size()) < all) return false;  // another size would round otherwise
  }
  bool ready = true;
  for (const command::GroupMember& m : members) {
    if (HasState(m.worker)) continue;
    ready = false;
    if (waits.Has({WaitKind::kState, m.worker.worker.value})) continue;
    trainer.fetching.try_emplace(m.worker, 0);
    out.Do(command::FetchState{m.worker, m.slot, m.epoch, trainer.leader, trainer.step, trainer.digest});
    waits.Begin({WaitKind::kState, m.worker.worker.value},
                {m.worker, now, now + FromSeconds(options.config.cluster.start_timeout_s),
                 "fetch from " + ToString(trainer.leader)});
  }
  if (members.size() == 1) return ready;
  const bool same = std::equal(members.begin(), members.end(), trainer.group.begin(), trainer.group.end(),
                               [](const auto& x, const auto& y) { return x.worker == y.worker; });
  if (!same) {
    if (!trainer.forming.empty()) {
      // Members that left are gone with their slots; those that stay hear of the newest group.
      for (const WorkerRef& ref : trainer.forming) waits.End({WaitKind::kGroup, ref.worker.value});
      trainer.forming.clear();
    }
    trainer.group = members;
    ++trainer.group_epoch;
    for (size_t rank = 0; rank < members.size(); ++rank) {
      const WorkerRef& ref = members[rank].worker;
      trainer.forming.insert(ref);
      out.Do(command::FormGroup{ref, trainer.group_epoch, static_cast<int64_t>(rank),
                                static_cast<int64_t>(members.size())});
      waits.Begin({WaitKind::kGroup, ref.worker.value},
                  {ref, now, now + FromSeconds(options.config.cluster.start_timeout_s),
                   "epoch " + std::to_string(trainer.group_epoch)});
    }
  }
  return ready && trainer.forming.empty();
}

void Controller::Impl::On(const event::GroupFormed& e) {
  if (!health.IsCurrent(e.worker) || e.group_epoch != trainer.group_epoch ||
      trainer.forming.erase(e.worker) == 0) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kGroup, e.worker.worker.value});
  if (e.error.empty()) {
    if (trainer.forming.empty()) trainer.group_tries = 0;
    return;
  }
  out.Warn("worker=" + ToString(e.worker) + " event=group_failed epoch=" + std::to_string(e.group_epoch) +
           " why=\"" + e.error + "\"");
  for (const WorkerRef& ref : trainer.forming) waits.End({WaitKind::kGroup, ref.worker.value});
  trainer.forming.clear();
  trainer.group.clear();
  if (++trainer.group_tries >= kTries) {
    trainer.group_tries = 0;
    Replace(e.worker, "it could not join the training group: " + e.error);
  }
}

}  // namespace tidepool::scheduler
