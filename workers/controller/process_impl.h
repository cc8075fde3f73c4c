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
//   steps.cc        slots, optimizer steps, weights
//   outputs.cc      metrics, samples, status, summary
//   process_log.cc  the log, warnings
//   pages.cc        what it shows over HTTP

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/call_watch.h"
#include "core/base/disk_thread.h"
#include "core/base/places.h"
#include "core/base/real_file_system.h"
#include "core/base/thread_annotations.h"
#include "core/observe/learning_watch.h"
#include "core/observe/log.h"
#include "core/observe/progress.h"
#include "core/observe/samples_writer.h"
#include "core/storage/journal.h"
#include "scheduler/controller.h"
#include "scheduler/run_state.h"
#include "workers/controller/checkpoints.h"
#include "workers/controller/effects.h"
#include "workers/controller/fragments.h"
#include "workers/controller/held_folder.h"
#include "workers/controller/launcher.h"
#include "workers/controller/logged_samples.h"
#include "workers/controller/loop_clock.h"
#include "workers/controller/open_meeting.h"
#include "workers/controller/process.h"
#include "workers/controller/recorded_samples.h"
#include "workers/controller/run_log.h"
#include "workers/controller/run_metrics.h"
#include "workers/controller/run_storage.h"
#include "workers/controller/sample_store.h"
#include "workers/controller/step_rows.h"
#include "workers/controller/token_intake.h"
#include "workers/controller/turns.h"
#include "workers/controller/waiting_fragments.h"
#include "workers/controller/worker_places.h"
#include "workers/data/row_source.h"
#include "workers/net/certificates.h"
#include "workers/net/hub.h"
#include "workers/net/join_service.h"
#include "workers/net/mailbox.h"
#include "workers/net/watch_pages.h"

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
struct Heard {
  HubEvent event;
  Clock::time_point at;
};
using Incoming = std::variant<Heard, StorageDone, Answer>;

class ControllerProcess {
 public:
  explicit ControllerProcess(const RunRequest& request)
      : request_(request), config_(request.config), launcher_(request.config.cluster.reattach_grace_s > 0) {}
  ~ControllerProcess();
  ControllerProcess(const ControllerProcess&) = delete;
  ControllerProcess& operator=(const ControllerProcess&) = delete;
  StatusOr<RunResult> Run();

 private:
  // --- start and end
  Status Open();
  [[nodiscard]] observe::LogOptions LogFile() const;
  Status Prepare();
  Status OpenDoors();
  [[nodiscard]] Status Rehearse(StorageOptions& storage);
  Status Read(const JournalEntry& entry);
  [[nodiscard]] StatusOr<std::unique_ptr<scheduler::Controller>> MakeController(
      scheduler::RunState folded) const;
  Status Claim(StorageOptions storage);
  Status Begin();
  void Close();

  // --- the loop
  void Drive();
  TimePoint Now() { return clock_.At(Clock::now()); }
  [[nodiscard]] double PermitSeconds() const { return 3 * config_.cluster.heartbeat_s; }
  void Feed(scheduler::Event event);
  std::optional<int64_t> Append(const std::vector<Effects::Decided>& decided);
  void CarryOut(std::vector<Effects::Decided>& decided);
  void OnStorage(StorageDone& done);
  void NoteAbsence();
  std::chrono::milliseconds Begun();  // the time of day, since 1970, at which Now() was 0
  void FollowTimeOfDay();
  void RenewCertificates();
  Status OpenForNewcomers();
  void NoteSuspension();
  void WatchDisk();
  void EndForStorage(const std::string& what, bool journal);
  void OnMoved(const std::string& to, bool journal);
  void LookForFolder();
  void NoteMoved(const std::string& to);
  // A call for the loop, for threads: they may outlive this object.
  [[nodiscard]] auto Post() const {
    return [inbox = inbox_](std::function<void()> call) { inbox->Put(Answer(std::move(call))); };
  }

  // --- processes
  void Do(const cmd::StartWorker& c);
  void StartDueWorkers();
  [[nodiscard]] std::vector<std::string> WorkerCommand(int64_t place) const;
  void NameMissing(const std::vector<WorkerId>& absent);
  [[nodiscard]] std::string PlaceName(int64_t place) const;
  void CheckChildren();
  void Do(const cmd::KillWorker& c);
  void Do(const cmd::Welcome& c);
  void Do(const cmd::RefuseWorker& c) { places_->Refuse(c); }

  // --- the wire
  void OnAttachment(Attachments::Event& event);
  void OnArrived(Attachments::Arrived& e);
  void OnMessage(Attachments::Message& e);
  void OnWaitsFor(int64_t place, const std::vector<up::Unreachable>& said);
  void OnVerdict(up::Graded& verdict);  // that is awaited
  void OnGradeEnded(const up::Graded& graded);
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
  void Do(const cmd::CancelChunk& c);
  void Do(const cmd::ForgetGroup& c);
  void Do(const cmd::StorePayload& c);
  void Do(const cmd::DiscardTokens& c);
  [[nodiscard]] StatusOr<sample::Trajectory> InMemory(const SampleId& tid);
  void Do(const cmd::Grade& c);
  void GradeHere(const cmd::Grade& c, bool unread = false);
  void OnTurn(const WorkerRef& worker, up::EnvStepped reply);
  void Grade(const cmd::Grade& c, const StatusOr<sample::Trajectory>& recorded);
  [[nodiscard]] down::Grade Message(const cmd::Grade& c, const std::vector<int32_t>& ids, bool ended) const;
  void Do(const cmd::EnvStep& c);
  void Do(const cmd::EndEpisode& c) { Send(c.worker, c); }
  void Do(const cmd::AppendObservation& c);

  // --- pool, training, weights
  void Do(const cmd::Release& c);
  void Do(const cmd::Grant& c);
  void Do(const cmd::FetchState& c);
  void Do(const cmd::FormGroup& c);
  void Do(const cmd::RestoreState& c);
  void Do(const cmd::Pull& c);
  void Do(const cmd::Load& c);
  void Do(const cmd::Train& c) { step_rows_->Add(c); }
  void Do(const cmd::Preview& c);
  void Judge(const SampleId& tid, BatchRow& row) const;  // what a row is worth
  void Do(const cmd::WriteCheckpoint& c) { checkpoints_->Write(c); }
  void Do(const cmd::VerifyCheckpoint& c) { checkpoints_->Verify(c); }
  void Do(const cmd::DeleteCheckpoint& c) { checkpoints_->Delete(c); }
  void Do(const cmd::KeepBest& c) { checkpoints_->KeepBest(c); }
  void Do(const cmd::SaveFinal& c) { checkpoints_->SaveFinal(c); }
  [[nodiscard]] storage::FirstFiles NeededOfPayload() const;
  void PruneTokens();
  // Workers that this process started end with it, hence with the machine.
  [[nodiscard]] bool EndsWithTheMachine() const {
    return config_.cluster.launch_workers && config_.cluster.reattach_grace_s <= 0;
  }
  void MakeLoggedSamples();
  // kInvalidArgument: tokens that neither an engine nor an environment can have made.
  [[nodiscard]] Status CheckTokens(const sample::Trajectory& t) const;
  void ReadTokens(const LoggedAttempt& a, std::function<void(LoggedSamples::Chain)> then);

  // --- to people and files
  void Do(const cmd::Append&) {}  // written before
  void Do(const cmd::StepReport& c);
  void Do(const cmd::EvalReport& c);
  void Remember(const JournalRecord& r);
  void Do(const cmd::Log& c);
  void LogStart();
  void LogRecord(const JournalRecord& r);  // live ones
  void LogEnd();
  // A line of logs/controller.log, of this moment. The sentence `text` stands last.
  void Log(LogLevel level, const std::string& event, LogFields fields, const std::string& text = "");
  // A warning: the newest one is shown.
  void Warn(const std::string& text, const std::string& event = "warning", const LogFields& fields = {});
  void TellHeld(const PluginCall& call);  // of the loop's thread, on another one
  // Stays on the terminal: a warning is replaced by the next one.
  void Tell(const std::string& text, const std::string& event = "note", const LogFields& fields = {});
  void Do(const cmd::Finish& c);
  void CheckSignals();
  // A row that people are shown, and what is known of its sample now: later that may be gone.
  struct ShownRow {
    BatchRow row;
    std::optional<EncodedRow> source;
    std::map<std::string, double> rewards;
    std::map<std::string, std::string> details;
  };
  [[nodiscard]] observe::SampleRow SampleLine(ShownRow shown) const;
  void WriteSamples(StepNumber step, const std::vector<BatchRow>& batch);
  void Show();
  void TakeFigures();
  void WriteStatus();
  Status OpenPages(const std::string& operator_token);
  [[nodiscard]] observe::Exposition Metrics(const scheduler::ControllerView& view);
  [[nodiscard]] std::vector<std::string> Unready(const scheduler::ControllerView& view) const;
  void ShowPages(const scheduler::ControllerView& view);
  void WriteSummary();

  RunRequest request_;
  JobConfig config_;
  scheduler::ControllerOptions options_;
  bool greedy_first_ = false;  // the first sample of a group is the greedy baseline of the others (ReMax)
  std::shared_ptr<FileSystem> fs_ = std::make_shared<RealFileSystem>();
  std::shared_ptr<storage::PayloadReader> payloads_;                                  // keeps fs_
  const std::shared_ptr<DiskThread> payload_reads_ = std::make_shared<DiskThread>();  // of Rows.Read
  LoopClock clock_;
  SuspendWatch suspend_watch_;
  std::chrono::milliseconds begun_{};  // as the journal has it
  std::unique_ptr<RowSource> rows_;
  std::shared_ptr<Mailbox<Incoming>> inbox_ = std::make_shared<Mailbox<Incoming>>();
  std::shared_ptr<const HeldFolder> folder_;     // the run's
  std::unique_ptr<RunStorage> storage_;          // journal and payload
  storage::JournalSummary earlier_;              // what was there
  scheduler::RunState folded_;                   // and what it comes to, for the controller
  std::shared_ptr<CertificateRenewal> renewal_;  // none: nothing is encrypted
  std::string renewal_trouble_;                  // that was told last
  DiskThread files_;                             // for people: metrics, samples, status, summary
  std::unique_ptr<scheduler::Controller> controller_;
  std::unique_ptr<RunMetrics> metrics_;
  observe::LearningWatch learning_;
  SampleStore samples_;
  std::unique_ptr<RecordedSamples> recorded_;
  std::unique_ptr<TokenIntake> intake_;
  std::unique_ptr<LoggedSamples> logged_;
  DiskThread token_files_;   // reads and removes those of tokens/
  std::string token_proof_;  // empty: tokens come to the controller
  std::unique_ptr<Turns> turns_;
  bool environment_ = false;              // samples are episodes of several turns
  std::unique_ptr<Fragments> fragments_;  // of a policy of control tasks
  std::unique_ptr<WaitingFragments> waiting_fragments_;
  Launcher launcher_;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<JoinServer> join_;  // none: newcomers get no certificates
  std::unique_ptr<Attachments> attachments_;
  std::unique_ptr<WorkerPlaces> places_;
  std::unique_ptr<Effects> effects_;

  static constexpr double kMissedPace =
      0.01;  // of the steps of a paced run, beyond which its times mean nothing
  static constexpr double kMissedSeconds = 10;  // until a worker that others are to start is missed
  static constexpr double kMeetSeconds = 20;    // for the ranks of a training group to find each other
  // For slots of an engine to meet, and for each thing that they do together: less than a grant may take.
  static constexpr double kEngineSeconds = 45;
  // Work on a disk: after kSlowDisk_s the user is warned, after kHangingDisk_s the run ends. Journals of an
  // overloaded disk were seen to wait ten seconds.
  static constexpr double kSlowDisk_s = 1.5, kHangingDisk_s = 30, kSlowCheckpoint_s = 10;
  bool slow_disk_told_ = false, slow_checkpoint_told_ = false;

  // The hub's threads have them.
  const std::shared_ptr<OpenMeeting> meeting_ = std::make_shared<OpenMeeting>();
  const std::shared_ptr<EngineMeetings> engine_meetings_ = std::make_shared<EngineMeetings>();
  std::unique_ptr<StepRows> step_rows_;
  std::atomic<bool> has_rows_ = false;  // step_rows_ is there, for the hub's threads
  int64_t newest_payload_file_ = -1;    // of those that were reported as stored
  std::string shared_memory_;           // folder of weights and recovery copies
  std::unique_ptr<Checkpoints> checkpoints_;

  RunResult result_;
  bool finished_ = false;
  std::string moved_;             // what somebody did to the run directory; empty: nothing that is known
  bool storage_failing_ = false;  // the scheduler was told, and the journal takes its last records
  bool storage_failed_ = false;   // the journal takes no more
  void TakenOver(const std::string& why);
  bool superseded_ = false;  // another controller has this run
  static constexpr double kOneStop_s = 0.2;
  int stop_seen_ = 0, stops_told_ = 0;  // told apart; of the count of signals
  TimePoint stopped_at_;
  StepNumber committed_;                                       // by the records so far
  double checkpoint_s_ = 0;                                    // that the last one took
  std::set<int64_t> started_;                                  // places that a process was started for
  std::set<SlotId> granted_;                                   // slots whose first role was told
  std::map<int64_t, std::vector<up::Unreachable>> waits_for_;  // of workers that wait, by place
  bool any_graded_ = false, grades_fail_ = false;              // in this life; just now
  std::optional<TimePoint> fail_told_;
  std::map<StepNumber, record::EvalResult> evals_;
  std::map<std::string, std::string> lost_;  // what was said of the newest sample that was lost, by reason
  struct Missing {                           // workers that others are to start
    std::vector<WorkerId> places;
    TimePoint since;
    bool told = false;
  };
  Missing missing_;
  observe::TimeLeft time_left_;
  observe::StatusFile status_;  // as it was shown last

  std::optional<Identity> identity_;  // where calls are encrypted
  std::string operator_digest_;
  std::string targets_;  // as prometheus_targets.json has it
  struct Disk {
    std::atomic<int64_t> free = -1, size = -1;  // bytes
  };
  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();  // the thread for files may outlive this
  Clock::time_point next_disk_look_;
  std::unique_ptr<WatchPages> pages_;
};

}  // namespace tidepool::workers
