#pragma once
// The trainer's state (weights and optimizer): where it comes from, which slots hold a copy, which of them
// leads. The leader's copy is published to rollout engines, kept as a recovery copy and written to
// checkpoints.
//
// With fleet.zero the slots that train share the optimizer's state: each takes its part of it from the model
// of the config or from a checkpoint, none can give another one its own, and all of them write a checkpoint.
// A part that is lost is nowhere but in the newest checkpoint, so all go back to it.

#include <map>
#include <optional>
#include <set>
#include <string>

#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "scheduler/machines/machine.h"

namespace tidepool::scheduler {

enum class StatePhase : uint8_t {
  kNone,         // not decided yet
  kReattaching,  // a trainer of the last life may come back with the committed state
  kVerifying,    // a checkpoint's digests are being checked
  kPlanned,      // decided; waits for a slot that trains
  kLoading,      // InitState or RestoreState is under way
  kElecting,     // a step was aborted: what do its members hold?
  kReady,
};

class TrainerState : public Machine {
 public:
  explicit TrainerState(Machines& all) : Machine(all) {}

  void On(const event::CheckpointVerified& e);
  void On(const event::StateReady& e);
  void On(const event::StepAborted& e);
  void On(const event::Published& e);
  void On(const event::RecoveryCopied& e);

  void CloseOpenStep();  // a new life of the run: the step that the last one left open is no more
  // Decides where the state comes from. `restore`: a lineage is opened even if no step is undone.
  void Plan(bool restore);
  void Advance();  // loads what was planned
  void Publish();  // and copies for recovery

  void Adopt(const WorkerRef& ref, const event::OfferedSlot& offered);  // it is back, with a copy
  // It takes a copy from the leader, or its part from where the leader has its own from; where the state has
  // moved on since, all go back to a checkpoint.
  void Fetch(const command::GroupMember& member);
  // A step ended well: these slots hold its state now.
  void Committed(StepNumber step, uint64_t digest, const std::vector<command::GroupMember>& members);
  // A member is told to leave the step; what it holds is not known until it answers.
  void LeaveStep(const command::GroupMember& member, int64_t lease, StepNumber step, int64_t group_epoch);
  void StepAborted();                 // all its members were told: who leads is decided again
  void Torn(const SlotRef& ref);      // a step that failed half-way has left no state in this slot
  void Forget(const WorkerRef& ref);  // a device worker is gone, and its copies
  void Lost(const WorkerRef& ref, const std::string& why);  // and with it, maybe, the leader
  // A device worker died in a plug-in, a loss say: the same step would take the next one along.
  // `in`: the step that it died in; none: in none.
  void CountDeath(const event::WorkerLost& e, StepNumber in);

  [[nodiscard]] bool Has(const SlotRef& ref) const;  // the committed state
  [[nodiscard]] bool Whole() const;                  // nothing of it is missing: with fleet.zero, no part
  [[nodiscard]] bool Idle() const;                   // ready, and nobody reads or changes it
  [[nodiscard]] bool ready() const { return phase_ == StatePhase::kReady; }
  [[nodiscard]] bool electing() const { return phase_ == StatePhase::kElecting; }
  [[nodiscard]] bool aborting() const { return !aborting_.empty(); }
  [[nodiscard]] bool fetching() const { return !fetching_.empty(); }
  // The newest version is the one that counts: no restore is ahead.
  [[nodiscard]] bool VersionStands() const;
  [[nodiscard]] const SlotRef& leader() const { return leader_; }
  [[nodiscard]] uint64_t digest() const { return digest_; }              // of its weights
  [[nodiscard]] const Version& published() const { return published_; }  // to be had from the leader
  // It is where other slots can read it, too; else each has it in its own memory alone.
  [[nodiscard]] bool copied() const { return copied_; }

 private:
  StateCopy& CopyOf(SlotId slot);
  [[nodiscard]] bool AllHave() const;              // every slot has a worker that has the committed state
  void Load(const SlotRef& ref, int64_t request);  // what was planned
  void VerifyNext();
  void Restore(int64_t ckpt, StepNumber step);
  void ForgetCopies();
  void Elect();
  void ElectAdopted();
  void WaitForAbort(const SlotRef& ref, StepNumber step);
  void LeaderFailed(const event::StateReady& e, const std::string& error);
  void OutOfReach(const std::optional<WorkerRef>& who, const std::string& error);  // none: the controller

  StatePhase phase_ = StatePhase::kNone;
  SlotRef leader_;     // whose copy is published and saved; where the state is (being) loaded first
  int64_t ckpt_ = -2;  // source: -2 the model of the config, -1 the recovery copy, else a checkpoint
  StepNumber step_;
  StepNumber loaded_;       // where its source is the one above; invalid: no slot of this life has read it
  bool lost_part_ = false;  // with the worker that is being lost
  uint64_t digest_ = 0;     // of the state's weights; 0: not known yet
  // Checkpoints that could not be verified, and why. They are rejected for good when another one is found: if
  // none is, a disk may be missing, and the run can still be resumed when it is back.
  std::map<int64_t, std::string> unverified_;
  struct Fetching {
    int64_t tries = 0;
    int64_t request = 0;
  };
  std::map<SlotRef, Fetching> fetching_;
  int64_t requests_ = 0;        // for states, so far
  int64_t loading_ = 0;         // the request to the leader
  std::set<SlotRef> aborting_;  // were told to leave a step, have not answered
  int64_t state_tries_ = 0;
  bool must_restore_ = false;                    // a new life always opens a lineage
  std::optional<RunState::OpenStep> left_open_;  // by the last life: its members may still be inside of it
  std::vector<SampleId> left_open_rows_;
  std::map<SlotRef, event::TrainDone> finished_;  // members that have made it
  Version published_;
  Version uncopied_;     // of which a copy was asked for later, and could not be made
  bool copied_ = false;  // published_ is in memory that others read
  bool copies_ = false;  // and so will be what is being published
  bool publishing_ = false, copying_ = false;
  int64_t publish_tries_ = 0;
  std::string blamed_;          // the plug-in that the last deaths of device workers are blamed on
  int64_t deaths_ = 0;          // of these, since a step was committed
  StepNumber recovery_;         // newest known recovery copy; invalid: none
  StepNumber recovery_failed_;  // the step whose copy could not be made
};

}  // namespace tidepool::scheduler
