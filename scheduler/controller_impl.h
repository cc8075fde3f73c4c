#pragma once
// The controller from inside: parts and the steps of a decision. Not included outside scheduler/.
//
// Every event changes facts; then `Advance` looks at all facts and does whatever is possible now. It is
// level-triggered on purpose: after a fault there is no script to be re-entered half way, only facts.

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/checkpoint_policy.h"
#include "scheduler/controller.h"
#include "scheduler/dispatcher.h"
#include "scheduler/episodes.h"
#include "scheduler/evaluation.h"
#include "scheduler/grading.h"
#include "scheduler/health.h"
#include "scheduler/kv_admission.h"
#include "scheduler/live_cost.h"
#include "scheduler/outbox.h"
#include "scheduler/policy.h"
#include "scheduler/pool.h"
#include "scheduler/repack.h"
#include "scheduler/run_state.h"
#include "scheduler/shutdown.h"
#include "scheduler/standing_plan.h"
#include "scheduler/waits.h"
#include "scheduler/weight_roll.h"

namespace tidepool::scheduler {

constexpr double kCancelSeconds = 2;  // a cancelled chunk is acknowledged before its worker loads weights
constexpr int64_t kTries = 3;         // of one operation on one worker

struct Controller::Impl {
  // The trainer's state and what is to become of it.
  enum class StatePhase : uint8_t {
    kNone,         // not decided yet
    kReattaching,  // a trainer of the last life may come back with the committed state
    kVerifying,    // a checkpoint's digests are being checked
    kPlanned,      // decided; waits for a slot that trains
    kLoading,      // InitState or RestoreState is under way
    kElecting,     // a step was aborted: what do its members hold?
    kReady,
  };
  struct Training {
    int64_t lease = -1;
    StepNumber step;
    Version v;
    std::vector<record::TrainedRow> rows;
    command::StepReport report;
    double tokens = 0;
    TimePoint since;
    std::vector<command::GroupMember> members;  // by rank
    std::map<WorkerRef, event::TrainDone> done;
  };
  struct StateCopy {  // of the trainer's state, in one worker's memory
    StepNumber step;
    uint64_t digest = 0;
  };
  struct Trainer {
    StatePhase phase = StatePhase::kNone;
    WorkerRef leader;   // whose copy is published and saved; where the state is (being) loaded first
    int64_t ckpt = -2;  // source: -2 the model of the config, -1 the recovery copy, else a checkpoint
    StepNumber step;
    uint64_t digest = 0;  // of the state's weights; 0: not known yet
    std::map<WorkerRef, StateCopy> copies;
    std::map<WorkerRef, int64_t> fetching;    // -> tries
    std::set<WorkerRef> aborting;             // were told to leave a step, have not answered
    std::vector<command::GroupMember> group;  // that has communicators, or is getting them
    std::set<WorkerRef> forming;              // of them, have not answered
    int64_t group_epoch = 0, group_tries = 0;
    std::optional<Training> training;
    Version published;  // bytes that others can fetch from `leader`
    bool publishing = false, copying = false;
    int64_t publish_tries = 0, state_tries = 0;
  };
  struct WritingCheckpoint {
    int64_t ckpt = 0;
    StepNumber step;
    Lsn cut;
  };
  struct Preparing {  // a row that is being read
    GroupId gid;
    bool again = false;  // the group exists (controller restart): only its prompt is missing
    std::vector<event::PayloadStored> stored;  // sft: came before RowReady
  };
  // By group. How many of them are new groups is asked for at every event.
  class PreparingRows {
   public:
    void Add(const GroupKey& key, const Preparing& p) {
      Take(key);
      fresh_ += p.again ? 0 : 1;
      rows_[key] = p;
    }
    [[nodiscard]] Preparing* Find(const GroupKey& key) {
      const auto it = rows_.find(key);
      return it == rows_.end() ? nullptr : &it->second;
    }
    std::optional<Preparing> Take(const GroupKey& key) {
      auto row = rows_.extract(key);
      if (row.empty()) return std::nullopt;
      fresh_ -= row.mapped().again ? 0 : 1;
      return std::move(row.mapped());
    }
    [[nodiscard]] bool contains(const GroupKey& key) const { return rows_.contains(key); }
    [[nodiscard]] size_t size() const { return rows_.size(); }
    [[nodiscard]] bool empty() const { return rows_.empty(); }
    [[nodiscard]] int64_t fresh() const { return fresh_; }

   private:
    std::map<GroupKey, Preparing> rows_;
    int64_t fresh_ = 0;
  };
  struct Finished {  // a sample whose attempt ended, until it is in the ledger
    int32_t att = 0;
    Version v_min, v_max;
    int64_t generated = 0;
    std::optional<event::Graded> graded;
  };

  Impl(const ControllerOptions& options);

  // --- controller.cc: events and the order of decisions
  void On(const event::Started&);
  void On(const event::WorkerJoined&);
  void On(const event::WorkerLost&);
  void On(const event::WorkerStartFailed&);
  void On(const event::Heartbeat&);
  void On(const event::ChunkProgress&);
  void On(const event::ChunkFinished&);
  void On(const event::PayloadStored&);
  void On(const event::RowReady&);
  void On(const event::RowInvalid&);
  void On(const event::Graded&);
  void On(const event::EnvStepped&);
  void On(const event::Drained&);
  void On(const event::Released&);
  void On(const event::Granted&);
  void On(const event::Loaded&);
  void On(const event::StateReady&);
  void On(const event::GroupFormed&);
  void On(const event::StepAborted&);
  void On(const event::TrainDone&);
  std::string OtherRow(const std::vector<std::pair<SampleId, uint64_t>>& given);
  void On(const event::TrainFailed&);
  void On(const event::Published&);
  void On(const event::RecoveryCopied&);
  void On(const event::CheckpointWritten&);
  void On(const event::CheckpointFailed&);
  void On(const event::CheckpointVerified&);
  void On(const event::FinalSaved&);
  void On(const event::StopRequested&);
  void On(const event::StorageFailed&);
  void On(const event::Tick&);
  void Advance();
  bool Refuse();                            // counts; always false
  void Moved() { watchdog.Progress(now); }  // something that brings the run on
  void Fail(const std::string& kind, const std::string& actor, Incarnation inc, const std::string& what);
  void Finish(int code, const std::string& why, bool complete = false);

  // --- controller_start.cc: a new life
  void Resume();
  void StartWorkers();
  void AddSideWorker(const WorkerRef& ref);
  void ReattachOver();
  void ResumeRows();

  // --- controller_attach.cc: what a worker of the last life brings back
  bool Reattach(const event::WorkerJoined& e);
  [[nodiscard]] Version Verified(const event::WorkerJoined& e) const;
  void AdoptEngine(const WorkerRef& ref, SlotId slot, const event::WorkerJoined& e);
  void AdmitVerified(const WorkerRef& ref, const Version& v);
  void AdoptChunk(const WorkerRef& ref, const event::HeldChunk& held);
  void AdoptState(const WorkerRef& ref, SlotId slot, const event::WorkerJoined& e);
  [[nodiscard]] bool DevicesReattach() const;
  void ElectAdopted();

  // --- controller_workers.cc
  void Crashed(const WorkerRef& ref, const std::string& why, bool by_exit);
  void DropPoison(const SampleId& tid, const std::string& why);
  void Lose(const WorkerRef& ref, const std::string& why, bool by_exit);
  void AfterDeath(WorkerId worker, const std::string& why);
  void Replace(const WorkerRef& ref, const std::string& why);  // kill, then as lost
  void CheckFleet();
  void CheckHealth();
  void CheckDeadlines();
  [[nodiscard]] SlotId SlotOf(WorkerId worker) const { return {worker.value}; }

  // --- controller_pool.cc
  [[nodiscard]] SlotView ViewSlot(SlotId id, const Pool::Slot& s) const;
  [[nodiscard]] PoolView ViewPool() const;
  [[nodiscard]] LedgerView ViewLedger();
  // Slots whose roles have to be looked at; nothing: all.
  std::optional<std::vector<SlotId>> DecidePlan(const LedgerView& ledger, bool by_slot);
  void AdvancePool(bool again = false);
  void ServeAgain(const WorkerRef& ref, SlotId slot);
  [[nodiscard]] bool Eligible(SlotId slot, Role role) const { return policy.eligible(fleet, slot, role); }

  // --- controller_rollout.cc
  void Admit();
  void AddRequest(const Group& g, size_t k, int64_t generated);
  void Dispatch();
  [[nodiscard]] int64_t ComingEngines() const;  // that will generate within a grant or a load
  void DropOrphans();
  void DropPinnedOn(WorkerId worker);
  void AssignGrades();
  void SampleEnded(const Request& r, EndStatus status);
  void TakeGrade(const SampleId& tid, const event::Graded& e);
  void DropSample(const SampleId& tid, DropReason reason);
  void DropGroup(const GroupKey& key, DropReason reason);
  void DropRow(const GroupKey& key, DropReason reason, const std::string& why);
  void CheckGroup(const GroupKey& key, DropReason last);
  void WithdrawRequest(const SampleId& tid);
  void GroupDone(GroupId gid);
  [[nodiscard]] bool Expired(const Group& g) const;
  void ExpireOld();
  void ReleaseAhead();
  void RestartUndone();
  void CountOutcome(bool infra);
  [[nodiscard]] bool MayServe(const Version& v) const;
  [[nodiscard]] bool TooEarly();  // to generate anything for training

  // --- controller_load.cc
  void SampleEngine(const event::Heartbeat& e);
  void UnitDone(int64_t tokens);  // a chunk ended
  void HedgeChunks(WorkerId worker);
  void WeighWorkers();
  void Repack();
  [[nodiscard]] bool Worthwhile(const std::vector<Move>& moves,
                                const std::vector<RepackWorker>& workers) const;
  [[nodiscard]] Forecast MakeForecast(const LedgerView& ledger);

  // --- controller_environment.cc
  void PrepareRow(const GroupKey& key, GroupId gid);
  void RowStepped(const event::EnvStepped& e);
  void BeginEpisode(const Request& r);  // an evaluation's: its prompt comes from its own reset
  void TurnEnded(const Request& r);
  void EpisodeLost(const Request& r, GradeOutcome outcome, const std::string& why);
  void EpisodeEnded(const Request& r, const event::EnvStepped& e, EndStatus status);
  void CheckEpisodes();  // deadlines

  // --- controller_serving.cc
  void RollWeights();
  void AdvanceEvaluation();
  void CancelEvaluation(const std::string& why);
  void PlanEvaluation();
  [[nodiscard]] bool TargetReached() const;  // eval.stop_at_accuracy, by an evaluation on record
  [[nodiscard]] bool StepsDone() const;      // train.steps, or the target: no further step begins

  // --- controller_training.cc
  void PlanState(bool must_restore);
  void VerifyNext();
  void Restore(int64_t ckpt, StepNumber step);
  void AdvanceState();
  void ForgetState();  // all copies of it
  [[nodiscard]] bool HasState(const WorkerRef& ref) const;
  void ElectLeader();
  [[nodiscard]] std::vector<command::GroupMember> Members() const;
  bool PrepareGroup();  // true: a step may begin on the slots that train now
  void AdvanceTraining();
  [[nodiscard]] bool TrainerIdle() const;
  [[nodiscard]] Duration TrainPatience() const;  // for an optimizer step without a sign of progress
  [[nodiscard]] bool MayTrain() const;           // all but the slot
  [[nodiscard]] const std::vector<GroupKey>& Batch();
  [[nodiscard]] bool WaitForStraggler();
  [[nodiscard]] bool StragglerIsWorthIt();
  [[nodiscard]] bool WouldLean() const;
  void MarkUrgent();
  void StartTraining(const std::vector<GroupKey>& keys);
  void AbortStep(const std::string& why, const WorkerRef& but = {});
  void WaitForAbort(const WorkerRef& ref, StepNumber step);
  void TrainerLost(const WorkerRef& ref, const std::string& why);
  void SetAside(const std::set<GroupKey>& keys, DropReason reason);

  // --- controller_end.cc
  void AdvanceCheckpoint();
  [[nodiscard]] bool CheckpointDue() const;
  void AdvanceEnd();
  void AdvanceFinal();
  void DropLeftovers();

  const ControllerOptions options;
  const bool rl;
  const NamedPolicy policy;
  PoolView fleet;  // the part of it that does not change
  const int64_t eval_questions;
  const bool environment;                  // samples are episodes of several turns (text; not model.policy)
  const bool needs_rollout, needs_reward;  // needs_reward: processes that grade single turns
  const int64_t max_new;

  RunState state;
  Outbox out;
  Waits waits;
  Health health;
  Pool pool;
  Dispatcher dispatcher;
  Grading grading;
  Episodes episodes;
  WeightRoll weights;
  Evaluation evaluation;
  CheckpointPolicy checkpoints;
  Watchdog watchdog;
  Shutdown shutdown;

  TimePoint now;
  bool started = false, finished = false;
  Trainer trainer;
  StandingPlan plan;
  std::string plan_refused;  // why the policy's newest was not taken
  TimePoint plan_made;
  bool takes_held_back = false;  // the plan takes slots, and another transition has to end first
  std::vector<GroupKey> batch;   // what would be trained now, as of ...
  std::pair<int64_t, Version> batch_of{-1, {}};  // ... these changes of the ledger, this version
  std::optional<std::tuple<int64_t, TrainerNeed, bool, bool, int64_t>> planned;  // for what `plan` was made
  int64_t group_checked = -1;                 // changes of the pool that PrepareGroup has seen
  std::optional<TimePoint> straggling_since;  // a batch waits for a group that would expire
  std::pair<StepNumber, bool> foreseen{{-1},
                                       false};  // WouldLean when this step's successor first had a batch
  std::optional<StepNumber> not_waiting;        // this step's successor does not, or no longer
  bool must_restore = false;                    // a new life always opens a lineage
  StepNumber recovery;                          // newest known recovery copy; invalid: none
  StepNumber recovery_failed;                   // the step whose copy could not be made
  std::optional<WritingCheckpoint> writing;
  PreparingRows preparing;
  int64_t next_gid = 0;
  std::map<SampleId, Finished> finishing;           // ended, payload not durable yet
  FlatTable<SampleId, std::monostate> tokens_kept;  // the caller still holds them in memory
  std::set<WorkerId> reattaching;                   // of the last life, may come back
  TimePoint reattach_until;
  std::optional<RunState::OpenStep> left_open;  // by the last life: its members may still be inside of it
  // Weights in a worker's memory whose digest was compared with that of their PUBLISH in this life.
  std::map<WorkerId, Version> verified;
  bool rows_resumed = false;
  std::map<WorkerId, TimePoint> ghosts_until;  // cancelled chunks to be acknowledged before a load
  int64_t nonfinite = 0, train_failures = 0;
  std::set<GroupId> urgent;  // would expire at the next version, and its batch is not chosen yet
  double token_s = 0;        // smoothed seconds of an engine step
  double train_s = 0;        // of a step
  LiveCost live;
  std::optional<KvAdmission> kv;  // rollout.admission: adaptive
  Version repacked_version;
  TimePoint repacked_at;
  std::deque<bool> outcomes;  // of the last samples: infrastructure failure?
  int64_t infra_in_window = 0;
  bool infra_alarmed = false;
  int64_t lives = 1;  // of controllers of this run
  bool final_saved = false, final_saving = false;
  int64_t refused = 0;
};

}  // namespace tidepool::scheduler
