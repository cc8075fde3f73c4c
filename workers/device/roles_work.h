#pragma once
// The work of a device (device_machine.h) done by the real roles: engine and trainer of device_roles.h, with
// pacing, trace, pulse, collectives and served weights around them. Owned by the device thread, but Read and
// heartbeat, which any thread may call. A checkpoint is written by a thread of its own.

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/thread_annotations.h"
#include "core/comm/collective.h"
#include "core/engine/ranks.h"
#include "core/observe/trace_writer.h"
#include "core/storage/checkpoint_store.h"
#include "core/train/part_ranks.h"
#include "workers/data/offered_state.h"
#include "workers/data/stored_rows.h"
#include "workers/data/weights_service.h"
#include "workers/device/device_machine.h"
#include "workers/device/device_pool.h"
#include "workers/device/device_roles.h"
#include "workers/device/gang_rows.h"
#include "workers/device/gpus.h"
#include "workers/device/memory_plan.h"
#include "workers/device/pacer.h"
#include "workers/device/pulse.h"
#include "workers/device/sample_log.h"
#include "workers/net/certificates.h"
#include "workers/net/link.h"
#include "workers/net/worker_pages.h"

namespace tidepool::workers {

class RolesWork : public DeviceWork {
 public:
  // called_off: whether a command has come that calls off the step of this lease.
  // evaluation_ended: whether one has come that wants the step's result without its evaluation.
  using AboutLease = std::function<bool(int64_t lease)>;
  // host: the address of this worker that others of the run can reach.
  // controller: the address that was dialled.
  // gpu: of those that the driver shows; negative: that of the place's number.
  // pool: that the process serves, with this among others; null: it does not.
  RolesWork(Credentials credentials, std::string controller, std::string host, int64_t gpu, DevicePool* pool,
            AboutLease called_off, AboutLease evaluation_ended)
      : credentials_(std::move(credentials)),
        controller_(std::move(controller)),
        host_(std::move(host)),
        gpu_(gpu),
        pool_(pool),
        called_off_(std::move(called_off)),
        evaluation_ended_(std::move(evaluation_ended)) {}

  // Before anything else; outlives this.  requires FinishCheckpoint, EndPull, LeaveGroup and EndLog before
  // the link ends
  void Use(Link* link) { link_ = link; }
  void EndLog() { log_.reset(); }
  Pulse& pulse() { return pulse_; }
  WorkerPages& pages() { return pages_; }
  // What is said of a device that had no memory for a computation; `why`: its own words.
  [[nodiscard]] std::string OutOfMemory(const std::string& why) const;
  // The same of one on which something else failed: which, and the first line of what was thrown.
  [[nodiscard]] std::string DeviceFailed(const std::exception& e) const;
  // What others may fetch. kNotFound: it is not here.
  StatusOr<PublishedBytes> Read(const WantedBytes& wanted);
  // The run is over. The controller removes what is on its own host.
  void RemoveSharedMemory() const { SharedBlock::RemoveAll(shared_folder_); }
  [[nodiscard]] std::chrono::milliseconds heartbeat() const {
    return std::chrono::milliseconds(heartbeat_ms_.load());
  }

  void Begin(int64_t ctl_epoch) override { link_->Begin(ctl_epoch); }
  void Say(FromWorkerBody message) override { link_->Send(std::move(message)); }

  Status Welcomed(const down::Welcome& welcome, bool anew) override;
  [[nodiscard]] bool OutlivesController() const override { return config_.cluster.reattach_grace_s > 0; }
  void FinishCheckpoint() override;
  void ForgetAll() override;

  StatusOr<uint64_t> WeightsDigest() override { return roles_->WeightsDigest(); }
  [[nodiscard]] StepNumber StateStep() const override {  // also of a state that is parked
    const auto state = roles_->state();
    return state ? state->step : StepNumber{};
  }
  [[nodiscard]] Shard StateShard() const override { return roles_->shard(); }
  void Pull(const down::Pull& c) override;
  void EndPull() override;
  StatusOr<Copied> Load(const down::Load& c) override;
  void UseVersion(const Version& v) override { roles_->UseVersion(v); }
  Status Publish(const down::Publish& c) override;

  Status PrepareRollout(const down::Grant& c) override;
  void PrepareActor() override;
  int64_t Release(Role role, int64_t need_bytes) override;

  [[nodiscard]] bool Serves() const override { return roles_->rollout() != nullptr; }
  Status Add(down::StartChunk chunk) override;
  bool Cancel(const SampleId& tid, int32_t att) override;
  void ForgetGroup(GroupId gid) override;
  std::vector<std::pair<SampleId, int32_t>> Drain() override;
  [[nodiscard]] bool HasWork() const override { return roles_->rollout()->HasWork() && roles_->loaded(); }
  up::StepTokens Step() override;
  [[nodiscard]] bool Follows() const override { return roles_->follower() != nullptr; }
  void Follow() override;
  [[nodiscard]] const std::string& EngineLost() const override { return engine_lost_; }
  void LeaveEngine();  // the others see it, and do not wait for this one

  [[nodiscard]] bool SeesRun() const override { return log_ != nullptr && !log_failed_; }
  Status Log(const std::vector<ToLog>& deltas) override;
  void Store(HeldTokens::Finished finished) override { log_->Store(std::move(finished)); }
  void Read(const ToRead& what) override { log_->Read(what); }
  std::vector<WasRead> TakeRead() override {
    return log_ == nullptr ? std::vector<WasRead>() : log_->TakeRead();
  }

  StatusOr<uint64_t> InitState(const down::InitState& c) override;
  StatusOr<uint64_t> RestoreState(const down::RestoreState& c) override;
  StatusOr<uint64_t> FetchState(const down::FetchState& c) override;
  Status FormGroup(const down::FormGroup& c) override;
  void LeaveGroup() override;
  Trained Train(const down::Train& c) override;
  void Preview(down::Preview c) override;
  [[nodiscard]] bool HasPreview() const override {
    return !previews_.empty() || (roles_ != nullptr && roles_->HasPreview());
  }
  void PreviewPiece() override;
  Status CopyRecovery(StepNumber step) override;
  void WriteCheckpoint(const down::WriteCheckpoint& c) override;
  Status SaveFinal(const down::SaveFinal& c) override;

 private:
  using Clock = std::chrono::steady_clock;
  // An operation of the device thread: the heartbeat names it, the time line shows it.
  struct Operation {
    RolesWork* work;
    const char* name;
    std::string_view category;
    TimePoint begin;
    ~Operation();
  };
  Operation Begins(const char* name, std::string_view category);
  void OpenLog(const down::Welcome& welcome);
  // The files of a checkpoint are written: the state may change while they go to the store.
  void AwaitFiles();
  StatusOr<std::string> WriteFiles(const down::WriteCheckpoint& c, storage::Staging& staging,
                                   up::CheckpointFiles& done);
  static Status PutFiles(const std::string& dir, const std::string& folder, const std::stop_token& stop,
                         up::CheckpointFiles& done);
  Status RestoreFrom(const down::RestoreState& c);
  // Nobody reads the state from now on: waits for those that do. False: one is still there at its deadline.
  bool Withdraw() { return state_.Withdraw(std::chrono::seconds(30)); }
  void Offer(StepNumber step);
  StatusOr<uint64_t> Made(StepNumber step, const Status& status);
  [[nodiscard]] bool offloads() const { return config_.train.offload_optimizer == Offload::kDisk; }
  void Park();
  int64_t FreeBytes(Role next);
  Status JoinEngine(const down::Grant& c);
  Status PrepareRanks(const down::Grant& c);
  void LoseEngine(const Status& why);
  [[nodiscard]] Status EngineWhole() const;
  StatusOr<Copied> LoadHere(const down::Load& c);
  StatusOr<Copied> LoadWithRanks(const down::Load& c);
  int64_t Grown(const up::ChunkDelta& c);
  // Of the changes of phases since the last step; `least`: of these bytes, those that had to move.
  void CountMoved(int64_t bytes, int64_t least, Clock::time_point since);
  struct WeightTraffic {
    comm::Collective::Gathered made;   // new weights of this slot's part, which other ranks made (train.zero)
    comm::Collective::Gathered parts;  // the other parts of the model
    int64_t updates = 0;
  };
  [[nodiscard]] WeightTraffic GatheredWeights() const;
  Status FormExperts(const down::FormGroup& c, comm::GroupOptions options);
  // Ends the count. Nothing of a slot that never generates.
  up::PhaseChange TakeChange(const WeightTraffic& before);
  StatusOr<up::TrainDone> TrainOn(const down::Train& c, std::vector<BatchRow> rows, Clock::time_point start,
                                  std::vector<BadRow>& bad);
  // The batch, with the payloads of this rank's rows, and outlines of the others' from their ranks.
  // read_bytes: of payloads that were read here, none where the first rank of the gang (gang_rows.h) did.
  // kInvalidArgument: rows, of any rank, cannot be read anywhere, and `bad` has them on every rank;
  // kUnavailable: the controller has no answer now; kAborted: the step is called off.
  StatusOr<std::vector<BatchRow>> ReadRows(const down::Train& c, std::vector<BadRow>& bad,
                                           int64_t& read_bytes);
  // From where they are, by the rank that does it for its gang. Errors as above.
  StatusOr<FetchedRows> FetchRows(const down::Train& c, int64_t& read_bytes);
  // The next hint's rows, if they can be read here.
  StatusOr<std::vector<BatchRow>> ReadPreview(const down::Preview& c);

  const Credentials credentials_;
  const std::string controller_, host_;
  const int64_t gpu_;  // negative: that of the place's number
  DevicePool* const pool_;
  const AboutLease called_off_, evaluation_ended_;
  Link* link_ = nullptr;
  JobConfig config_;
  Pulse pulse_;
  WorkerPages pages_;
  std::atomic<int64_t> heartbeat_ms_{500};
  SlotId slot_;                // this incarnation's
  ProcessMemory plan_;         // of this slot
  int64_t shared_memory_ = 0;  // bytes in /dev/shm of the whole job, by the plan
  std::string shared_folder_;  // of this host, there
  SlotDevice device_;
  // The slots that are one engine, where this one is of several.
  struct EngineRanks {
    std::string meeting;
    double timeout_s;  // of a grant
    std::unique_ptr<comm::Collective> group;
    train::PartRanks peers;
    engine::Ranks ranks;
    bool kept = false;  // keys and values are those of the last grant
    EngineRanks(std::string name, double limit_s, std::unique_ptr<comm::Collective> made)
        : meeting(std::move(name)),
          timeout_s(limit_s),
          group(std::move(made)),
          peers(*group),
          ranks(*group, peers) {}
  };
  std::unique_ptr<EngineRanks> engine_ranks_;
  std::unique_ptr<DeviceRoles> roles_;  // its engine uses engine_ranks_

  std::unique_ptr<StoredRows> stored_;            // payloads of the run
  std::unique_ptr<SampleLog> log_;                // null: the run's folder is not seen here
  bool log_failed_ = false;                       // it takes no more tokens
  std::deque<down::Preview> previews_;            // nothing was done about yet
  double early_s_ = 0;                            // of PreviewPiece, since the last step
  up::PhaseChange change_;                        // since the last step
  OfferedState state_{DeviceRoles::StateDigest};  // none while a step is under way
  Mutex published_mu_;
  std::shared_ptr<HostWeights> published_ TP_GUARDED_BY(published_mu_);  // of roles_

  // Of two ranks or more: with other rows of a batch, with other parts of the model.
  std::unique_ptr<comm::Collective> group_, tensor_group_, experts_group_, same_experts_group_;
  int64_t group_epoch_ = 0;
  std::string engine_lost_;  // why; empty: it is whole

  std::unique_ptr<Pacer> pacer_;                           // cluster.pace
  std::map<std::pair<SampleId, int32_t>, int64_t> paced_;  // tokens of the samples in the engine
  std::unique_ptr<observe::TraceWriter> trace_;
  std::future<void> written_;  // waits: for the files of checkpoint_, see AwaitFiles
  std::jthread checkpoint_;    // waits: for the disk and the store, see FinishCheckpoint
  std::jthread pull_;          // waits: for a source that sends nothing, but no longer than EndPull lets it
};

}  // namespace tidepool::workers
