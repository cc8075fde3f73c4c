#pragma once
// The state machine of a device worker with one slot: it rejects outdated commands, keeps the tokens of each
// attempt, tracks which weights are whole, answers and offers (docs/worker_protocol.md). It has no threads,
// sockets, clocks or tensors: all that happens happens through DeviceWork. The worker process
// (device_worker.cc) and the simulated network run this very class. Not thread-safe.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "workers/device/held_tokens.h"
#include "workers/net/messages.h"
#include "workers/net/worker_session.h"

namespace tidepool::workers {

// What a device can do, and to whom it is said. Everything returns when it is done, except WriteCheckpoint
// and Pull.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;

  // --- to the controller
  virtual void Begin(int64_t ctl_epoch) = 0;  // WorkerSession::Begin
  virtual void Say(FromWorkerBody message) = 0;

  // --- life
  // `anew`: this incarnation begins, with nothing. Else it goes on under the same terms. An error: it cannot
  // work for this job.
  virtual Status Welcomed(const down::Welcome& welcome, bool anew) = 0;
  // May what is here outlive the controller (cluster.reattach_grace_s)?
  [[nodiscard]] virtual bool OutlivesController() const = 0;
  virtual void FinishCheckpoint() = 0;  // waits for one that is being written
  virtual void ForgetAll() = 0;         // roles, states, groups, published weights

  // --- weights and states
  virtual StatusOr<uint64_t> WeightsDigest() = 0;      // kFailedPrecondition: they are torn
  [[nodiscard]] virtual Shard StateShard() const = 0;  // of the optimizer's state, as it was asked for last
  [[nodiscard]] virtual StepNumber StateStep() const = 0;  // whose training state is whole; invalid: none is
  struct Copied {
    uint64_t digest = 0;  // of what is in memory now
    int64_t bytes = 0;
    double seconds = 0;
  };
  // Brings weights to this host, beside all else: says Pulled while they come and when they are whole, or not
  // coming. One that is under way is called off.
  virtual void Pull(const down::Pull& c) = 0;
  virtual void EndPull() = 0;  // nothing more is said of one that is under way
  virtual StatusOr<Copied> Load(const down::Load& c) = 0;
  virtual void UseVersion(const Version& v) = 0;  // what was loaded is `v`
  virtual Status Publish(const down::Publish& c) = 0;

  // --- the slot
  // Of an engine of several slots: with the others, which are told at the same time, and also where this one
  // holds the role already.
  virtual Status PrepareRollout(const down::Grant& c) = 0;
  // What of the trainer's state was put aside comes back, for this worker and for those that fetch it. Where
  // it does not, StateStep says that no state is here.
  virtual void PrepareActor() = 0;
  virtual int64_t Release(Role role, int64_t need_bytes) = 0;  // returns the bytes that are free

  // --- rollout: workers/device/rollout.h. Nothing happens while the role is not prepared.
  [[nodiscard]] virtual bool Serves() const = 0;
  virtual Status Add(down::StartChunk chunk) = 0;
  virtual bool Cancel(const SampleId& tid, int32_t att) = 0;  // false: it is over, or was never here
  virtual void ForgetGroup(GroupId gid) = 0;
  virtual std::vector<std::pair<SampleId, int32_t>> Drain() = 0;
  [[nodiscard]] virtual bool HasWork() const = 0;
  virtual up::StepTokens Step() = 0;  // requires HasWork()
  // The slot is one of an engine's, and not the first: instead of all of the above it does what that one
  // tells it. Follow waits a moment for it.
  [[nodiscard]] virtual bool Follows() const = 0;
  virtual void Follow() = 0;  // requires Follows()
  // Why the slots of its engine have lost each other: this one does nothing for it any more. Empty: they have
  // not.
  [[nodiscard]] virtual const std::string& EngineLost() const = 0;

  // --- the token log of this incarnation (core/storage/token_log.h)
  [[nodiscard]] virtual bool SeesRun() const = 0;
  // One entry for each delta, behind the entry `before`: what is left in the deltas is an outline, and the
  // place. An error is for good: SeesRun is false from then on, and the deltas are as they were.
  struct ToLog {
    up::ChunkDelta* delta;  // with tokens
    storage::TokenPlace before;
  };
  virtual Status Log(const std::vector<ToLog>& deltas) = 0;
  // Writes the payload of the attempt, beside all else, and says Stored.
  virtual void Store(HeldTokens::Finished finished) = 0;
  // Reads the entries of an attempt behind `known` up to `newest`, by whomever they are, beside all else;
  // what came of it is there for TakeRead before long.
  struct ToRead {
    SampleId tid;
    int32_t att = 0;
    storage::TokenPlace known, newest;
  };
  struct WasRead {
    ToRead what;
    StatusOr<std::vector<sample::Segment>> segments;
  };
  virtual void Read(const ToRead& what) = 0;
  virtual std::vector<WasRead> TakeRead() = 0;

  // --- training. Digests are of the weights of the state that is here then.
  virtual StatusOr<uint64_t> InitState(const down::InitState& c) = 0;
  virtual StatusOr<uint64_t> RestoreState(const down::RestoreState& c) = 0;
  virtual StatusOr<uint64_t> FetchState(const down::FetchState& c) = 0;
  virtual Status FormGroup(const down::FormGroup& c) = 0;
  virtual void LeaveGroup() = 0;
  struct Trained {
    StatusOr<up::TrainDone> done;  // kAborted: called off; kInvalidArgument: the data is wrong
    bool changed = false;          // the weights are not those of before
    std::vector<BadRow> bad = {};  // of wrong data: the rows that are at fault; none: the batch as a whole
  };
  virtual Trained Train(const down::Train& c) = 0;
  // Notes rows whose columns may be computed while there is nothing else to do, and are forgotten with the
  // role; PreviewPiece reads one group, or computes one micro-batch.
  virtual void Preview(down::Preview c) = 0;
  [[nodiscard]] virtual bool HasPreview() const = 0;
  virtual void PreviewPiece() = 0;  // requires HasPreview()
  virtual Status CopyRecovery(StepNumber step) = 0;
  virtual void WriteCheckpoint(const down::WriteCheckpoint& c) = 0;  // says CheckpointFiles when it is done
  virtual Status SaveFinal(const down::SaveFinal& c) = 0;
};

class DeviceMachine {
 public:
  explicit DeviceMachine(DeviceWork* work) : work_(work) {}  // borrowed

  // Commands wait from Put until Work carries them out, in order; what is put meanwhile is carried out too.
  void Put(Command command) { waiting_.push_back(std::move(command)); }
  // newest: the controller epoch that the connection knows of then; commands of earlier ones are dropped.
  void Work(const std::function<int64_t()>& newest);
  // A command waits that calls off the step of `lease`, which is under way.
  [[nodiscard]] bool CalledOff(int64_t lease) const;
  // The evaluation of held-out rows in that step is not waited for any more.
  [[nodiscard]] bool EvaluationEnded(int64_t lease) const;
  // There are tokens to be made. The caller asks for its permit as well (WorkerSession::MayServe).
  [[nodiscard]] bool CanStep() const;
  // Its tokens are said with those of other steps: at the end of a chunk, before the next command is carried
  // out, and else Welcome::together_ms after the first of these began.  requires CanStep()
  void Step(const std::function<TimePoint()>& now);
  void SayTokens();  // those that wait: where no step follows
  // Another slot's engine computes here what it tells: a piece of it at a time, commands go first.
  [[nodiscard]] bool CanFollow() const { return role_ == Role::kRollout && work_->Follows(); }
  void Follow() { work_->Follow(); }  // requires CanFollow()

  [[nodiscard]] bool HasCommands() const { return !waiting_.empty(); }
  [[nodiscard]] bool HasTraining() const;  // one of them is a step of training
  // Chunks wait for their tokens to be read: Work goes on with them, also where no command comes.
  [[nodiscard]] bool Reads() const { return !reading_.empty(); }
  // A trainer that waits has columns to compute for rows to come: a piece at a time, commands go first.
  [[nodiscard]] bool CanPreview() const { return role_ == Role::kActor && work_->HasPreview(); }
  void PreviewPiece() { work_->PreviewPiece(); }  // requires CanPreview()

  [[nodiscard]] std::optional<int> exit_code() const { return exit_code_; }  // set: the process has to end
  [[nodiscard]] int64_t refused() const { return refused_; }  // commands of earlier epochs, or unknown ones
  [[nodiscard]] Role role() const { return role_; }
  [[nodiscard]] Incarnation inc() const { return inc_; }

 private:
  void On(Command& command, int64_t newest);
  void On(const down::Attached& attached);
  void On(const down::Welcome& welcome);
  void On(down::StartChunk& c);
  void On(const down::CancelChunk& c);
  void On(const down::ForgetGroup& c);
  void On(const down::Resend& c);
  void On(const down::Store& c);
  void On(const down::Drain& c);
  void On(const down::Release& c);
  void On(const down::Grant& c);
  void On(const down::InitState& c);
  void On(const down::RestoreState& c);
  void On(const down::FetchState& c);
  void On(const down::FormGroup& c);
  void On(const down::Train& c);
  void On(down::Preview& c);
  void On(const down::AbortStep& c);
  void On(const down::EndEvaluation& c) { evaluation_ended_ = c.lease; }
  void On(const down::CopyRecovery& c);
  void On(const down::Publish& c);
  void On(const down::Pull& c);
  void On(const down::Load& c);
  void On(const down::Admit& c);
  void On(const down::WriteCheckpoint& c);
  void On(const down::SaveFinal& c);
  void On(const down::Shutdown&) { exit_code_ = 0; }
  // Not for a device, or not for a session.
  void On(const down::Grade&) { ++refused_; }
  void On(const down::EnvStep&) { ++refused_; }
  void On(const down::EndEpisode&) { ++refused_; }
  void On(const down::Refuse&) { ++refused_; }
  void On(const down::PermitRenewal&) {}

  bool Mine(SlotId slot);
  bool Current(SlotId slot, SlotEpoch epoch);
  bool Begins(SlotId slot, SlotEpoch epoch);
  void Say(up::StepTokens tokens);
  void Join(up::StepTokens tokens);
  Status Log(std::vector<up::ChunkDelta>& chunks);
  void GiveUpLog(std::vector<up::ChunkDelta>& chunks, const Status& why);
  void GoOn(const DeviceWork::WasRead& read);
  void Start(down::StartChunk& c);
  void End(const SampleId& tid, int32_t att, scheduler::event::ChunkEnd end, const std::string& why);
  void SayState(int64_t request, StepNumber step, const StatusOr<uint64_t>& digest);
  void SayTrainFailed(const down::Train& c, const Status& why, std::vector<BadRow> bad = {});
  void SayLoss();

  DeviceWork* work_;
  std::deque<Command> waiting_;
  Incarnation inc_;
  SlotId slot_;
  SlotEpoch epoch_;
  Role role_ = Role::kNone;
  Version admitted_;
  Version holds_;                                    // the weights in memory, whole; invalid: none, or torn
  std::optional<scheduler::event::TrainDone> done_;  // that was said last
  HeldTokens held_;
  std::map<std::pair<SampleId, int32_t>, down::StartChunk> reading_;  // chunks whose tokens are being read
  std::optional<up::StepTokens> unsaid_;
  std::map<std::pair<SampleId, int32_t>, size_t> unsaid_at_;  // in unsaid_->chunks, the last of each attempt
  TimePoint unsaid_since_;
  Duration together_ = std::chrono::milliseconds(100);
  int64_t refused_ = 0;
  std::optional<int> exit_code_;
  int64_t evaluation_ended_ = -1;  // lease of the last EndEvaluation
  bool loss_said_ = true;          // to this controller, that its engine is lost; not before it has welcomed
};

}  // namespace tidepool::workers
