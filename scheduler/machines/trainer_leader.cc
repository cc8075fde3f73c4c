#include <algorithm>
#include <utility>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

constexpr double kAbortSeconds = 30;  // to leave a collective; then the worker is replaced

}  // namespace

// Its copy of the trainer's state. Who is a member of the step that the last life left open may still be
// inside of it: it leaves the step first, and then says what it holds.
void TrainerState::Adopt(const WorkerRef& worker, const event::OfferedSlot& offered) {
  const SlotRef ref{worker, offered.slot};
  if (!state_.ever_checkpointed()) return;
  const bool part = offered.state_shard == all_.slots.ShardOf(ref.slot);  // else of a group of another size
  if (left_open_ && part && !offered.done.empty() && offered.done.front().lease == left_open_->lease &&
      offered.state_step == left_open_->step) {
    finished_[ref] = offered.done.front();
    CopyOf(ref.slot) = {offered.state_step, offered.state_digest};
  } else if (left_open_ && std::ranges::any_of(left_open_->members, [&](const record::SlotPlan& m) {
               return m.slot == ref.slot;
             })) {
    aborting_.insert(ref);
    out_.Do(command::AbortStep{worker, ref.slot,
                               all_.slots.pool().slot(all_.slots.pool().GangOf(ref.slot)).epoch,
                               left_open_->lease, left_open_->step, 0});
    WaitForAbort(ref, left_open_->step);
  } else if (part && offered.state_step.valid()) {
    CopyOf(ref.slot) = {offered.state_step, offered.state_digest};
  }
}

// The first that holds the committed state leads; nothing is restored and no lineage is opened. Nobody does:
// if all who were in the step that the last life left open have made it, it is committed now; else the state
// comes from a checkpoint.
void TrainerState::ElectAdopted() {
  const bool whole = digest_ != 0 && Whole();
  for (const auto& [slot, d] : fleet_.devices) {
    const SlotRef ref = fleet_.Ref(slot);
    if (!whole || !Has(ref)) continue;
    leader_ = ref;
    phase_ = StatePhase::kReady;
    must_restore_ = false;
    all_.workers.Admitted(ref.worker.worker);
    out_.Say(
        LogLevel::kInfo, ref.worker, "state_adopted",
        "still holds the trainer's state of step " + std::to_string(step_.value) + ", so nothing is restored",
        {{"step", std::to_string(step_.value)}});
    // What follows from a publication; the last life may have died in the middle of it.
    if (!state_.versions().IsPublished(state_.version())) return;
    all_.samples.Expire();
    all_.evaluations.Plan();
    return;
  }
  if (!aborting_.empty() || all_.workers.DevicesReattach()) return;
  // Who has made the open step is a member again when it confirms its role.
  if (!finished_.empty() && all_.slots.Confirms(Role::kActor)) return;
  if (left_open_ && all_.steps.MayCommit(*left_open_, left_open_rows_, finished_)) {
    leader_ = finished_.begin()->first;
    phase_ = StatePhase::kReady;
    must_restore_ = false;
    all_.workers.Admitted(leader_.worker.worker);
    out_.Say(LogLevel::kInfo, leader_.worker, "step_adopted",
             "has made step " + std::to_string(left_open_->step.value) +
                 ", which the last controller had not written down",
             {{"step", std::to_string(left_open_->step.value)}});
    all_.steps.CommitFinished(left_open_rows_, std::exchange(finished_, {}));
    return;
  }
  Plan(/*restore=*/true);
}

// Who holds the committed state leads; nobody: it comes from the recovery copy or a checkpoint.
void TrainerState::Elect() {
  phase_ = StatePhase::kElecting;
  if (!aborting_.empty()) return;
  SlotRef best;
  const bool whole = Whole();
  for (const auto& [slot, d] : fleet_.devices) {
    const SlotRef ref = fleet_.Ref(slot);
    if (!whole || !Has(ref)) continue;
    if (ref == leader_ || !best.worker.inc.valid()) best = ref;
    if (best == leader_) break;
  }
  if (!best.worker.inc.valid()) {
    Plan(false);
    return;
  }
  if (best != leader_) {
    leader_ = best;
    published_ = {};
    publishing_ = copying_ = false;
    publish_tries_ = 0;
  }
  phase_ = StatePhase::kReady;
}

void TrainerState::Fetch(const command::GroupMember& member) {
  if (waits_.Has({WaitKind::kState, member.slot.value})) return;
  if (options_.fleet.parted() && loaded_ != step_) return Plan(false);
  const int64_t request = fetching_[SlotOf(member)].request = ++requests_;
  std::string from;
  if (options_.fleet.parted()) {
    Load(SlotOf(member), request);
    from = ckpt_ == -2 ? "init" : "restore";
  } else {
    all_.rollouts.Forget(member.slot);
    out_.Do(command::FetchState{member.worker, member.slot, member.epoch, leader_, step_, digest_, request});
    from = "fetch from " + options_.NameOf(leader_.worker.worker);
  }
  waits_.Begin({WaitKind::kState, member.slot.value},
               {member.worker, now_, In(options_.fleet.start_timeout_s), from});
}

void TrainerState::CountDeath(const event::WorkerLost& e, StepNumber in) {
  constexpr int64_t kMost = 3;  // as of those who grade
  if (e.blames.empty()) return;
  if (std::exchange(blamed_, e.blames) != e.blames) deaths_ = 0;
  if (++deaths_ < kMost) return;
  all_.life.Fail("train", e.worker,
                 std::to_string(deaths_) + " workers in a row died in " + blamed_ +
                     ", and no step was trained in between; correct it and build again; the last: " + e.why,
                 in);
}

void TrainerState::Committed(StepNumber step, uint64_t digest,
                             const std::vector<command::GroupMember>& members) {
  step_ = step;
  digest_ = digest;
  deaths_ = 0;
  for (const command::GroupMember& m : members) CopyOf(m.slot) = {step, digest};
  if (Has(leader_)) return;
  leader_ = SlotOf(members.front());  // the old one had no part in this step
  publish_tries_ = 0;
}

void TrainerState::LeaveStep(const command::GroupMember& member, int64_t lease, StepNumber step,
                             int64_t group_epoch) {
  CopyOf(member.slot) = {};
  aborting_.insert(SlotOf(member));
  out_.Do(command::AbortStep{member.worker, member.slot, member.epoch, lease, step, group_epoch});
  WaitForAbort(SlotOf(member), step);
}

void TrainerState::StepAborted() {
  if (!aborting_.empty() && phase_ == StatePhase::kReady) phase_ = StatePhase::kElecting;
}

void TrainerState::Torn(const SlotRef& ref) {
  CopyOf(ref.slot) = {};
  if ((ref == leader_ || options_.fleet.parted()) && phase_ == StatePhase::kReady) Elect();
}

void TrainerState::Forget(const WorkerRef& ref) {
  for (const SlotId slot : fleet_.workers.at(ref.worker).slots()) {
    lost_part_ = lost_part_ || (options_.fleet.parted() && CopyOf(slot).step.valid());
    CopyOf(slot) = {};
    fetching_.erase({ref, slot});
    aborting_.erase({ref, slot});
    for (const WaitKind kind : {WaitKind::kState, WaitKind::kAbort}) waits_.End({kind, slot.value});
  }
}

void TrainerState::Lost(const WorkerRef& ref, const std::string& why) {
  const bool part = std::exchange(lost_part_, false);
  if (ref != leader_.worker) {
    if (part) all_.checkpoints.PartLost(why);
    if (phase_ == StatePhase::kElecting || (part && phase_ == StatePhase::kReady)) Elect();
    return;
  }
  all_.checkpoints.LeaderLost(ref, why);
  for (const WaitKind kind : {WaitKind::kPublish, WaitKind::kRecoveryCopy}) waits_.End({kind, 0});
  leader_ = {};
  if (phase_ == StatePhase::kVerifying || phase_ == StatePhase::kPlanned || phase_ == StatePhase::kNone)
    return;
  if (phase_ == StatePhase::kLoading) {
    phase_ = StatePhase::kPlanned;
    return;
  }
  Elect();
}

void TrainerState::On(const event::StepAborted& e) {
  if (!fleet_.IsLive(SlotOf(e)) || aborting_.erase(SlotOf(e)) == 0) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kAbort, e.slot.value});
  if (e.step.valid() && e.shard == all_.slots.ShardOf(e.slot)) CopyOf(e.slot) = {e.step, e.weights_digest};
  if (phase_ == StatePhase::kElecting) Elect();
}

void TrainerState::WaitForAbort(const SlotRef& ref, StepNumber step) {
  waits_.Begin({WaitKind::kAbort, ref.slot.value},
               {ref.worker, now_, In(kAbortSeconds), "step=" + std::to_string(step.value)});
}

void TrainerState::Publish() {
  if (all_.life.over() || phase_ != StatePhase::kReady) return;
  // Where each slot trained them no copy is made; one that comes later without them has it made then. The
  // first one is a copy, so that memory which has no room for it is found before there is anything to lose.
  const auto due = [&] {
    return published_ != state_.version() ||
           (!copied_ && uncopied_ != state_.version() && all_.rollouts.NeedsCopy());
  };
  if (!all_.steps.open() && !publishing_ && state_.ever_checkpointed() && due()) {
    publishing_ = true;
    copies_ = !published_.valid() || !AllHave();
    out_.Do(command::Publish{leader_.worker, leader_.slot, state_.version(), digest_, copies_});
    waits_.Begin({WaitKind::kPublish, 0},
                 {leader_.worker, now_, In(options_.fleet.start_timeout_s), ToString(state_.version())});
  }
  const int64_t every = options_.checkpoint.recovery_every_steps;
  if (every > 0 && !all_.steps.open() && !copying_ && recovery_ != state_.step() &&
      recovery_failed_ != state_.step() && state_.ever_checkpointed() &&
      (state_.step().value % every == 0 || !recovery_.valid()) && all_.life.running()) {
    copying_ = true;
    out_.Do(command::CopyRecovery{leader_.worker, leader_.slot, state_.step()});
    waits_.Begin({WaitKind::kRecoveryCopy, 0},
                 {leader_.worker, now_, In(options_.fleet.start_timeout_s), ""});
  }
}

void TrainerState::On(const event::Published& e) {
  if (!fleet_.IsLive(SlotOf(e)) || !publishing_ || SlotOf(e) != leader_ || e.v != state_.version()) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kPublish, 0});
  publishing_ = false;
  if (!e.error.empty()) {
    out_.Say(LogLevel::kWarn, e.worker, "publish_failed",
             "could not publish version " + ToString(e.v) + ": " + e.error, {{"version", ToString(e.v)}});
    // Who has trained them goes on with them; who lacks them fetches the state, or has the next version.
    if (published_ == e.v) {
      uncopied_ = e.v;
      return;
    }
    if (++publish_tries_ >= kTries)
      all_.workers.Replace(e.worker, "it could not publish " + ToString(e.v) + ": " + e.error);
    return;
  }
  publish_tries_ = 0;
  published_ = e.v;
  copied_ = copies_;
  if (state_.versions().IsPublished(e.v)) return;  // again, by a new process of the trainer
  out_.Record(record::Publish{e.v, digest_});
  all_.samples.Expire();
  all_.batches.MarkUrgent();
  all_.evaluations.Plan();
}

void TrainerState::On(const event::RecoveryCopied& e) {
  if (!fleet_.IsLive(SlotOf(e)) || !copying_ || SlotOf(e) != leader_ || e.step != state_.step()) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kRecoveryCopy, 0});
  copying_ = false;
  if (e.error.empty()) {
    recovery_ = e.step;
    return;
  }
  // The run goes on without this copy; the next one is made when it is due.
  recovery_failed_ = e.step;
  out_.Say(LogLevel::kWarn, e.worker, "recovery_copy_failed",
           "could not copy the trainer's state of step " + std::to_string(e.step.value) +
               ", and the run goes on without this copy: " + e.error,
           {{"step", std::to_string(e.step.value)}});
}

}  // namespace tidepool::scheduler
