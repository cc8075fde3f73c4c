#pragma once
// The controller process from inside: it feeds the pure controller (scheduler/) with what happens and carries
// out what that decides. One thread, the loop of Drive, owns everything here and waits for no disk: journal,
// payload, checkpoints and files for people are written and read by threads (run_storage.h, disk_thread.h)
// that put results into its mailbox, as the hub does. Reads of workers are answered from OpenLease. Not
// included outside this folder.
//
//   process.cc      start and end, the loop, effects in the order in which their records become durable
//   connections.cc  processes and the wire
//   samples.cc      rows, chunks, turns, grades
//   steps.cc        slots, optimizer steps, weights, checkpoints
//   outputs.cc      metrics, samples, status, summary

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/base/thread_annotations.h"
#include "core/observe/progress.h"
#include "core/storage/checkpoint.h"
#include "core/storage/payload.h"
#include "scheduler/controller.h"
#include "workers/controller/disk_thread.h"
#include "workers/controller/effects.h"
#include "workers/controller/fragments.h"
#include "workers/controller/launcher.h"
#include "workers/controller/loop_clock.h"
#include "workers/controller/process.h"
#include "workers/controller/run_metrics.h"
#include "workers/controller/run_storage.h"
#include "workers/controller/sample_store.h"
#include "workers/controller/step_rows.h"
#include "workers/controller/token_intake.h"
#include "workers/controller/turns.h"
#include "workers/controller/worker_places.h"
#include "workers/data/row_source.h"
#include "workers/net/hub.h"
#include "workers/net/mailbox.h"

namespace tidepool::workers {

namespace ev = scheduler::event;
namespace cmd = scheduler::command;
using Clock = std::chrono::steady_clock;

template <typename... F>
struct Overload : F... {
  using F::operator()...;
};
template <typename... F>
Overload(F...) -> Overload<F...>;

// What came of work on a disk, said to the loop.
using Answer = std::function<void()>;
using Incoming = std::variant<HubEvent, StorageDone, Answer>;

class ControllerProcess {
 public:
  explicit ControllerProcess(const RunRequest& request)
      : request_(request),
        config_(request.config),
        launcher_(request.config.cluster.reattach_grace_s > 0),
        checkpoints_(request.run_dir + "/checkpoints") {}
  StatusOr<RunResult> Run();

 private:
  // --- start and end
  Status Open();
  void Close();

  // --- the loop
  void Drive();
  std::string CheckpointDir(StepNumber step) const;
  TimePoint Now() { return clock_.At(Clock::now()); }
  [[nodiscard]] double PermitSeconds() const { return 3 * config_.cluster.heartbeat_s; }
  void Feed(scheduler::Event event);
  std::optional<int64_t> Append(const std::vector<Effects::Decided>& decided);
  void CarryOut(std::vector<Effects::Decided>& decided);
  void OnStorage(StorageDone& done);
  void WatchDisk();
  void EndForStorage(const std::string& what, bool journal);
  // Does `work` on the thread for checkpoints, then `then` with its result on the loop. `work` owns all that
  // it uses, because a disk that hangs may outlast this object.
  template <typename Work, typename Then>
  void OnDisk(std::string operation, Work work, Then then) {
    checkpoint_disk_.Do(std::move(operation), [inbox = inbox_, work = std::move(work),
                                               then = std::move(then)](const DiskThread::Say&) mutable {
      auto result = work();
      inbox->Put(Answer([result = std::move(result), then = std::move(then)]() mutable { then(result); }));
    });
  }

  // Reads these payloads, then calls `then` on the loop. What one round of the loop asks for is read
  // together.
  void ReadPayload(std::vector<record::Enq> what, std::function<void(Trajectories)> then);
  // The same of samples, as they are on record: after its ENQ a sample is what the payload file has, and
  // never what may be left in memory. `then` is called at once if nothing has to be read.
  void WhenRecorded(const std::vector<SampleId>& tids, std::function<void(Trajectories)> then);
  void BeginReading();

  // --- processes
  void Do(const cmd::StartWorker& c);
  void StartDueWorkers();
  [[nodiscard]] std::vector<std::string> WorkerCommand(int64_t place) const;
  void NameMissing(const std::vector<WorkerId>& absent);
  [[nodiscard]] std::string SideName() const;
  [[nodiscard]] std::string PlaceName(int64_t place) const;
  void CheckChildren();
  void Do(const cmd::KillWorker& c);
  void Do(const cmd::Welcome& c);
  void Do(const cmd::RefuseWorker& c) { places_->Refuse(c); }

  // --- the wire
  void OnAttachment(Attachments::Event& event);
  void OnMessage(Attachments::Message& e);
  template <typename Body>
  void Send(const WorkerRef& worker, Body body) {
    places_->Send(worker, std::move(body));
  }

  // What a worker is told as the scheduler says it.
  template <typename C>
  requires std::is_constructible_v<ToWorkerBody, const C&>
  void Do(const C& c) { Send(c.worker, c); }

  // --- data and rollout
  void Do(const cmd::PrepareRow& c);
  bool EnsureRow(const SampleId& tid);
  void Do(const cmd::StartChunk& c);
  void PutStarts(const SampleId& tid, int32_t att, const StatusOr<std::string>& starts);
  void SendFragments();
  void GiveBackWaitingChunks();
  void Do(const cmd::CancelChunk& c);
  void Do(const cmd::StorePayload& c);
  void Do(const cmd::DiscardTokens& c);
  [[nodiscard]] StatusOr<sample::Trajectory> InMemory(const SampleId& tid);
  void Do(const cmd::Grade& c);
  void Grade(const cmd::Grade& c, const StatusOr<sample::Trajectory>& recorded);
  void Do(const cmd::EnvStep& c);
  void Do(const cmd::AppendObservation& c);

  // --- pool, training, weights
  void Do(const cmd::Release& c);
  void Do(const cmd::Grant& c);
  void Do(const cmd::FetchState& c);
  void Do(const cmd::FormGroup& c);
  void Do(const cmd::RestoreState& c);
  void Do(const cmd::Load& c);
  void Do(const cmd::Train& c) { step_rows_->Add(c); }
  void Judge(const SampleId& tid, BatchRow& row) const;  // what a row is worth
  void PrunePayload();

  // --- checkpoints
  void Do(const cmd::WriteCheckpoint& c);
  void CommitCheckpoint(const up::CheckpointFiles& files);
  void Do(const cmd::VerifyCheckpoint& c);
  void Do(const cmd::DeleteCheckpoint& c);
  void Do(const cmd::SaveFinal& c);
  void OnFinalSaved(const WorkerRef& trainer, const up::FinalSaved& saved);
  [[nodiscard]] std::string FinalTmp(const WorkerRef& trainer) const;

  // --- to people and files
  void Do(const cmd::Append&) {}  // written before
  void Do(const cmd::StepReport& c);
  void Do(const cmd::EvalReport& c);
  void TellUndone(const record::Restore& r);
  void Remember(const JournalRecord& r);
  void Do(const cmd::Warn& c);
  void Warn(const std::string& line);  // the newest one is shown
  void Log(const std::string& line);
  void Tell(const std::string& line);  // stays on the terminal: a warning is replaced by the next one
  void Do(const cmd::Finish& c);
  void CheckSignals();
  void WriteSamples(StepNumber step, const std::vector<BatchRow>& batch);
  void Show();
  void WriteSummary();
  static int64_t PeakBytes();

  RunRequest request_;
  JobConfig config_;
  scheduler::ControllerOptions options_;
  bool greedy_first_ = false;  // the first sample of a group is the greedy baseline of the others (ReMax)
  std::shared_ptr<FileSystem> fs_ = std::make_shared<RealFileSystem>();
  LoopClock clock_;
  std::unique_ptr<RowSource> rows_;
  std::shared_ptr<Mailbox<Incoming>> inbox_ = std::make_shared<Mailbox<Incoming>>();
  std::unique_ptr<RunStorage> storage_;  // journal and payload
  DiskThread checkpoint_disk_;           // checkpoints and final/
  DiskThread files_;                     // for people: metrics, samples, status, summary
  DiskThread reading_;                   // of payload
  std::shared_ptr<storage::PayloadReader> payload_reader_;
  struct Wanted {
    std::vector<record::Enq> what;
    std::function<void(Trajectories)> then;
  };
  std::vector<Wanted> wanted_;  // of this round
  std::unique_ptr<scheduler::Controller> controller_;
  std::unique_ptr<RunMetrics> metrics_;
  SampleStore samples_;
  std::unique_ptr<TokenIntake> intake_;
  std::unique_ptr<Turns> turns_;
  bool environment_ = false;              // samples are episodes of several turns
  std::unique_ptr<Fragments> fragments_;  // of a policy of control tasks
  struct WaitingChunk {
    WorkerRef worker;
    down::StartChunk message;
    std::optional<Clock::time_point> ready;  // since when it has its start states
  };
  // Fragments that wait for their start or for an environment worker.
  std::deque<WaitingChunk> waiting_chunks_;
  Launcher launcher_;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<Attachments> attachments_;
  std::unique_ptr<WorkerPlaces> places_;
  std::unique_ptr<Effects> effects_;

  static constexpr double kMissedPace =
      0.01;  // of the steps of a paced run, beyond which its times mean nothing
  static constexpr double kMissedSeconds = 10;  // until a worker that others are to start is missed
  static constexpr double kMeetSeconds = 20;    // for the ranks of a training group to find each other
  // Work on a disk: after kSlowDisk_s the user is warned, after kHangingDisk_s the run ends. Journals of an
  // overloaded disk were seen to wait ten seconds.
  static constexpr double kSlowDisk_s = 1.5, kHangingDisk_s = 30, kSlowCheckpoint_s = 10;
  bool slow_disk_told_ = false, slow_checkpoint_told_ = false;

  std::unique_ptr<StepRows> step_rows_;
  int64_t newest_payload_file_ = -1;  // of those that were reported as stored
  std::string shared_memory_;         // folder of weights and recovery copies
  std::string checkpoints_;           // folder
  std::shared_ptr<storage::CheckpointWriter> checkpoint_;
  std::optional<cmd::WriteCheckpoint> pending_checkpoint_;

  RunResult result_;
  bool finished_ = false;
  bool storage_failing_ = false;  // the scheduler was told, and the journal takes its last records
  bool storage_failed_ = false;   // the journal takes no more
  bool superseded_ = false;       // another controller has this run
  int stop_seen_ = 0;
  StepNumber committed_;  // by the records so far
  struct Missing {        // workers that others are to start
    std::vector<WorkerId> places;
    TimePoint since;
    bool told = false;
  };
  Missing missing_;
  observe::TimeLeft time_left_;
  observe::StatusFile status_;  // as it was shown last
};

}  // namespace tidepool::workers
