#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

void TrainerState::CloseOpenStep() {
  left_open_ = state_.open_step();
  if (left_open_) {
    for (const auto& [key, group] : state_.ledger().groups()) {
      if (group.phase != GroupPhase::kLeased) continue;
      for (size_t k = 0; k < group.samples.size(); ++k)
        if (group.samples[k].phase == SamplePhase::kReady) left_open_rows_.push_back(group.Tid(k));
    }
  }
  if (left_open_) out_.Record(record::StepAbort{left_open_->step, "controller restarted"});
  if (state_.open_lease() >= 0) out_.Record(record::Unlease{state_.open_lease(), "controller restarted"});
}

bool TrainerState::VersionStands() const {
  return !must_restore_ && phase_ != StatePhase::kNone && phase_ != StatePhase::kVerifying;
}

void TrainerState::Plan(bool restore) {
  must_restore_ = must_restore_ || restore;
  phase_ = StatePhase::kNone;
  digest_ = 0;
  loaded_ = {};
  ForgetCopies();
  published_ = {};
  publishing_ = copying_ = false;
  for (const WaitKind kind : {WaitKind::kPublish, WaitKind::kRecoveryCopy}) waits_.End({kind, 0});
  publish_tries_ = state_tries_ = 0;
  unverified_.clear();
  if (restore && state_.ever_checkpointed() && all_.workers.DevicesReattach()) {
    step_ = state_.step();
    digest_ = state_.WeightsDigest(state_.version());
    phase_ = StatePhase::kReattaching;
    return;
  }
  if (!state_.ever_checkpointed()) {
    if (state_.step().value > 0) {
      all_.life.Fail("no_checkpoint", "controller",
                     "the journal has steps but no checkpoint; start anew with --fresh");
      return;
    }
    ckpt_ = -2;
    step_ = {0};
    phase_ = StatePhase::kPlanned;
    return;
  }
  const int64_t behind = state_.step().value - recovery_.value;
  if (!must_restore_ && recovery_.valid() && (behind == 0 || behind == 1)) {
    if (behind == 1) Restore(-1, recovery_);
    ckpt_ = -1;
    step_ = recovery_;
    digest_ = state_.WeightsDigest(state_.version());
    phase_ = StatePhase::kPlanned;
    return;
  }
  VerifyNext();
}

void TrainerState::VerifyNext() {
  const CommittedCheckpoints& committed = state_.checkpoints();
  const auto next = std::find_if(committed.rbegin(), committed.rend(),
                                 [&](const auto& entry) { return !unverified_.contains(entry.first); });
  if (next == committed.rend()) {
    const std::string newest =
        unverified_.empty() ? "" : " (the newest: " + unverified_.rbegin()->second + ")";
    all_.life.Fail("no_checkpoint", "controller",
                   "no checkpoint of this run can be read" + newest +
                       "; repair that and --resume, or start anew with --fresh");
    return;
  }
  const record::CheckpointCommit* c = &next->second;
  phase_ = StatePhase::kVerifying;
  ckpt_ = c->ckpt;
  step_ = c->step;
  digest_ = c->weights_digest;
  out_.Do(command::VerifyCheckpoint{c->ckpt, c->step, c->manifest_digest});
  waits_.Begin({WaitKind::kVerify, 0},
               {{}, now_, In(options_.fleet.start_timeout_s), "checkpoint " + std::to_string(c->ckpt)});
}

void TrainerState::On(const event::CheckpointVerified& e) {
  if (phase_ != StatePhase::kVerifying || e.ckpt != ckpt_) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kVerify, 0});
  if (e.out_of_reach) return OutOfReach({}, e.error);
  if (!e.error.empty()) {
    out_.Warn("checkpoint_unreadable",
              "checkpoint " + std::to_string(e.ckpt) + " is not used, and an older one is tried: " + e.error,
              {{"ckpt", std::to_string(e.ckpt)}});
    unverified_[e.ckpt] = e.error;
    VerifyNext();
    return;
  }
  for (const auto& [ckpt, error] : unverified_) out_.Record(record::CheckpointReject{ckpt, error});
  unverified_.clear();
  // Nothing is undone if the newest step is in it; a new life opens a lineage all the same.
  if (must_restore_ || step_ < state_.step()) Restore(ckpt_, step_);
  must_restore_ = false;
  phase_ = StatePhase::kPlanned;
}

void TrainerState::Restore(int64_t ckpt, StepNumber step) {
  out_.Record(record::Restore{ckpt, step, state_.version().lineage, state_.lineages()});
  recovery_ = ckpt >= 0 ? StepNumber{} : step;
  all_.evaluations.Cancel("its step was undone");
  all_.samples.RestartUndone();
}

void TrainerState::Advance() {
  if (phase_ == StatePhase::kReattaching) ElectAdopted();
  if (all_.life.over() || phase_ != StatePhase::kPlanned) return;
  // The holder of a slot may be one of an earlier life that has not come back.
  const std::vector<command::GroupMember> members = all_.slots.Members();
  if (members.empty()) return;
  if (options_.fleet.parted() && members.size() < all_.slots.Trainers().size())
    return;  // each takes its part
  leader_ = SlotOf(members.front());
  phase_ = StatePhase::kLoading;
  loading_ = ++requests_;
  loaded_ = step_;
  Load(leader_, loading_);
  waits_.Begin({WaitKind::kState, leader_.slot.value},
               {leader_.worker, now_, In(options_.fleet.start_timeout_s), ckpt_ == -2 ? "init" : "restore"});
}

void TrainerState::Load(const SlotRef& ref, int64_t request) {
  all_.rollouts.Forget(ref.slot);
  const Shard shard = all_.slots.ShardOf(ref.slot);
  if (ckpt_ == -2) {
    out_.Do(command::InitState{ref.worker, ref.slot, request, shard});
  } else {
    out_.Do(command::RestoreState{ref.worker, ref.slot, ckpt_, step_, digest_, request, shard});
  }
}

void TrainerState::On(const event::StateReady& e) {
  // An answer to what was asked before speaks of a state that is about to be written over.
  const auto fetching = fetching_.find(SlotOf(e));
  const bool fetched = fetching != fetching_.end() && fetching->second.request == e.request;
  const bool leads = phase_ == StatePhase::kLoading && SlotOf(e) == leader_ && e.request == loading_;
  if (!fleet_.IsLive(SlotOf(e)) || (!fetched && !leads)) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kState, e.slot.value});
  std::string error = e.error;
  if (error.empty() && e.step != step_)
    error = "it holds step " + std::to_string(e.step.value) + ", not " + std::to_string(step_.value);
  if (error.empty() && digest_ != 0 && e.weights_digest != digest_)
    error = "its weights differ from the committed ones";
  if (error.empty()) {
    CopyOf(e.slot) = {e.step, e.weights_digest};
    fetching_.erase(SlotOf(e));
    all_.workers.Admitted(e.worker.worker);
    if (!leads) return;
    phase_ = StatePhase::kReady;
    digest_ = e.weights_digest;
    state_tries_ = 0;
    if (ckpt_ == -2) return;  // it made step 0
    const std::string from = ckpt_ == -1 ? "recovery copy" : "checkpoint " + std::to_string(ckpt_);
    out_.Say(LogLevel::kInfo, e.worker, "restored",
             "has the trainer's state of step " + std::to_string(step_.value) + ", from " +
                 (ckpt_ == -1 ? "the " : "") + from,
             {{"step", std::to_string(step_.value)}, {"from", from}});
    return;
  }
  out_.Say(LogLevel::kWarn, e.worker, "state_failed",
           "could not take the trainer's state of step " + std::to_string(step_.value) + ": " + error,
           {{"step", std::to_string(step_.value)}});
  if (!leads) {
    if (++fetching->second.tries >= kTries)
      all_.workers.Replace(e.worker, "it could not take the trainer's state: " + error);
    return;  // Steps asks again
  }
  LeaderFailed(e, error);
}

void TrainerState::LeaderFailed(const event::StateReady& e, const std::string& error) {
  if (++state_tries_ < kTries && ckpt_ != -1) {
    phase_ = StatePhase::kPlanned;
    return;
  }
  if (ckpt_ >= 0 && e.out_of_reach) {
    OutOfReach(e.worker, error);
  } else if (ckpt_ == -2) {
    all_.life.Fail("state", e.worker, "the model could not be made: " + error);
  } else if (ckpt_ == -1) {
    recovery_ = {};  // the copy is of no use; the newest checkpoint then
    Plan(false);
  } else {
    out_.Record(record::CheckpointReject{ckpt_, error});
    Plan(true);
  }
}

// An older one would cost steps, and may be as far away: nothing is rejected, and --resume finds all as it
// is.
void TrainerState::OutOfReach(const std::optional<WorkerRef>& who, const std::string& error) {
  const std::string what = "checkpoint " + std::to_string(ckpt_) + " of step " + std::to_string(step_.value) +
                           " cannot be reached: " + error + "; --resume goes on from it once it can be";
  if (who) return all_.life.Fail("checkpoint", *who, what);
  all_.life.Fail("checkpoint", "controller", what);
}

StateCopy& TrainerState::CopyOf(SlotId slot) { return all_.fleet.devices.at(slot).copy_; }

void TrainerState::ForgetCopies() {
  for (const auto& [ref, fetching] : fetching_) waits_.End({WaitKind::kState, ref.slot.value});
  fetching_.clear();
  for (auto& [slot, d] : all_.fleet.devices) d.copy_ = {};
}

bool TrainerState::Has(const SlotRef& ref) const {
  if (!fleet_.IsLive(ref)) return false;
  const StateCopy& copy = fleet_.devices.at(ref.slot).copy();
  return copy.step == step_ && copy.digest == digest_;
}

bool TrainerState::AllHave() const {
  return std::ranges::all_of(fleet_.devices, [&](const auto& entry) {
    const SlotRef ref = fleet_.Ref(entry.first);
    return fleet_.IsLive(ref) && Has(ref);
  });
}

bool TrainerState::Whole() const {
  if (!options_.fleet.parted()) return true;
  return std::ranges::all_of(all_.slots.Trainers(), [&](SlotId slot) { return Has(fleet_.Ref(slot)); });
}

bool TrainerState::Idle() const {
  return phase_ == StatePhase::kReady && Whole() && !all_.steps.open() && aborting_.empty() && !publishing_ &&
         !copying_ && !all_.checkpoints.busy();
}

}  // namespace tidepool::scheduler
