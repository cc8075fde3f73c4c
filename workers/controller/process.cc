#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "core/algorithms/registry.h"
#include "core/base/limited_call.h"
#include "core/base/loopback.h"
#include "core/base/running_call.h"
#include "core/config/load.h"
#include "core/observe/log.h"
#include "core/observe/progress.h"
#include "core/storage/run_directory.h"
#include "workers/build_info.h"
#include "workers/controller/process_impl.h"
#include "workers/controller/scheduler_options.h"
#include "workers/data/row_answers.h"
#include "workers/data/shared_arena.h"
#include "workers/device/memory_plan.h"
#include "workers/net/auth.h"
#include "workers/net/certificates.h"

namespace tidepool::workers {
namespace {

// For a thread that must not hang with the disk.
StatusOr<storage::PayloadBytes> ReadWithin(DiskThread& disk,
                                           const std::shared_ptr<storage::PayloadReader>& reader,
                                           int64_t file, int64_t offset, int64_t bytes) {
  constexpr std::chrono::seconds kPatience{20};
  auto read = disk.DoWithin(kPatience, "read of payload/ for a trainer", [=] {
    auto found = reader->ReadBytes(file, offset, bytes);
    // With its folder gone or moved away, no file of it is lost.
    if (found.status().code() == StatusCode::kNotFound && !reader->CheckFolder().ok())
      found = Unavailable(found.status().message());
    return found;
  });
  if (!read)
    return Unavailable("the disk with payload/ has not answered for " + std::to_string(kPatience.count()) +
                       " s");
  return *std::move(read);
}

}  // namespace

ControllerProcess::~ControllerProcess() {
  LimitedCall::TellHeld({});
  if (hub_ != nullptr) hub_->Stop();  // its threads use what goes now
}

StatusOr<RunResult> ControllerProcess::Run() {
  if (const Status opened = Open(); !opened.ok()) {
    Log(LogLevel::kError, "not_started", {}, opened.message());
    (void)files_.Drain(DiskThread::kPatience);  // a line of a log; the caller has the message
    return opened;
  }
  FollowTimeOfDay();  // what was there before is long to read
  Feed(ev::Started{});
  Drive();
  Close();
  return result_;
}

// --- start and end

// What can be refused comes first, and changes nothing that another controller of this run relies on: one
// that is to be taken over goes on if this one cannot.
Status ControllerProcess::Open() {
  TP_RETURN_IF_ERROR(Prepare());
  MakeLoggedSamples();
  StorageOptions storage;
  if (request_.take_over) TP_RETURN_IF_ERROR(Rehearse(storage));
  TP_RETURN_IF_ERROR(Claim(std::move(storage)));
  return Begin();
}

observe::LogOptions ControllerProcess::LogFile() const {
  observe::LogOptions log;
  log.path = storage::RunPaths(request_.run_dir).logs() + "/controller.log";
  log.run = request_.run_id;
  log.host = observe::HostName();
  log.role = "controller";
  log.level = config_.observe.log_level;
  if (storage_ != nullptr) log.epoch = storage_->ctl_epoch();
  return log;
}

Status ControllerProcess::Prepare() {
  clock_.Start(Clock::now());
  const observe::LogOptions log = LogFile();
  TP_RETURN_IF_ERROR(observe::SetUpLogging(log));
  LogStart();
  // What a call of a plug-in does to this process is told by whoever watches it, without the loop.
  RunningCall::TellIn(log.path, storage::RunPaths(request_.run_dir).last_words(), observe::LogContext(log));
  LimitedCall::TellHeld([this](const PluginCall& call) { TellHeld(call); });
  LimitedCall::Usual(config::UsualLimitOf(config_));  // a warm start has its own
  TP_ASSIGN_OR_RETURN(HeldFolder folder, HeldFolder::Open(request_.run_dir, {"config.yaml", "journal/lock",
                                                                             "journal/0000.tpj"}));
  folder_ = std::make_shared<const HeldFolder>(std::move(folder));
  TP_ASSIGN_OR_RETURN(rows_, RowSource::Create(config_, request_.model_dir));
  TP_RETURN_IF_ERROR(rows_->CheckRows());
  environment_ = config_.environment() != nullptr && !config_.model.is_policy();
  if (config_.environment() == nullptr) {
    for (const std::string& warning : rows_->data().warnings()) Warn(warning, "data");
    TP_ASSIGN_OR_RETURN(const RowsWithoutAnswer without, CountRowsWithoutAnswer(config_, *rows_));
    if (without.count > 0) Warn(WarningOf(without), "data");
  }
  if (config_.model.is_policy()) {
    TP_ASSIGN_OR_RETURN(fragments_, Fragments::Create(config_));
  }
  const bool asks = rows_->HasAnswers();
  if (!asks && AnswersHeldOut(config_) && rows_->held_out_size() > 0)
    Tell("no held-out row has an `answer`, so none is generated and graded; the held-out loss is measured");
  options_ = SchedulerOptions(config_, asks ? rows_->held_out_size() : 0);
  options_.run_id = request_.run_id;
  options_.config_digest = request_.config_digest;
  options_.data_rows = rows_->size();
  // 0 where it cannot be predicted: then no proof is asked for.
  if (const auto plan = PlanMemory(config_); plan.ok()) {
    const RoleNeeds needs = NeedsOfRoles(*plan);
    options_.device_bytes_need_rollout = needs.rollout;
    options_.device_bytes_need_actor = needs.actor;
    options_.device_bytes_offload = needs.offload;
  }
  if (const RlJob* rl = config_.rl()) {
    const auto algorithm = algorithms::Resolve(rl->algorithm, config_.rollout.max_new_tokens);
    greedy_first_ = algorithm.ok() && algorithm->advantage->Uses(algorithms::Provision::kGreedy);
  }
  TP_RETURN_IF_ERROR(OpenDoors());
  const storage::StorePlace store = StoreOf(config_);
  if (!request_.take_over || !store.exists()) return OkStatus();
  return storage::TryStore(fs_, storage::NewPlace(store, request_.run_id),
                           storage::RunPaths(request_.run_dir).checkpoints());
}

// Where workers and people reach it. Who comes before the loop turns waits.
Status ControllerProcess::OpenDoors() {
  const std::string security = storage::RunPaths(request_.run_dir).security();
  TP_ASSIGN_OR_RETURN(const JobTokens tokens, JobTokens::OpenOrCreate(security));
  shared_memory_ = SharedBlock::FolderOf(request_.run_dir, tokens.Token(CallerRole::kDevice));
  payloads_ = {new storage::PayloadReader(*fs_, storage::RunPaths(request_.run_dir).payload()),
               [fs = fs_](storage::PayloadReader* reader) { delete reader; }};
  HubOptions hub;
  hub.bind = config_.cluster.bind;
  hub.port = config_.cluster.port;
  hub.advertise = config_.cluster.advertise;
  if (config_.security.tls || !IsLoopback(hub.bind)) {
    const CertificateTimes times{static_cast<int64_t>(config_.security.certificate_hours * 3600)};
    const std::string& given = request_.certificates;
    if (config_.security.newcomers && !given.empty())
      return InvalidArgument(
          "security.newcomers: true does not go with --certificates: whoever makes those makes one for "
          "another "
          "host, too; write false");
    // Those that hold stay, so a run that goes on beside loses nothing where this one is refused.
    TP_ASSIGN_OR_RETURN(hub.identity, given.empty()
                                          ? OpenOrCreateCertificates(security, request_.run_id, times)
                                          : TakeCertificates(given, security));
    identity_ = hub.identity;
    renewal_ = std::make_shared<CertificateRenewal>(security, request_.run_id, times, given);
  }
  hub.run_id = request_.run_id;
  hub.build = BuildInfo() + " on host " + observe::HostName();
  hub.max_control_bytes = config_.security.max_control_bytes;
  hub.max_frame_bytes = config_.security.max_frame_bytes;
  hub.payloads = [reader = payloads_, disk = payload_reads_](int64_t file, int64_t offset, int64_t bytes) {
    return ReadWithin(*disk, reader, file, offset, bytes);
  };
  TP_ASSIGN_OR_RETURN(
      hub_,
      Hub::Start(
          hub, tokens,
          [inbox = inbox_](HubEvent e) {
            inbox->Put(Heard{std::move(e), Clock::now()});
          },
          [this](int64_t lease, StepNumber step, Incarnation reader,
                 int64_t rank) -> StatusOr<std::shared_ptr<const std::vector<BatchRow>>> {
            if (!has_rows_.load()) return Unavailable("this controller has just begun and knows of no lease");
            return step_rows_->Read(lease, step, reader, rank);
          },
          [training = meeting_, engines = engine_meetings_](const std::string& name, Incarnation asker) {
            auto there = training->At(name, asker);
            return there.status().code() == StatusCode::kNotFound ? engines->At(name, asker) : there;
          }));
  return OpenPages(tokens.Token(CallerRole::kOperator));
}

StatusOr<std::unique_ptr<scheduler::Controller>> ControllerProcess::MakeController(
    scheduler::RunState folded) const {
  scheduler::ControllerOptions options = options_;
  TP_ASSIGN_OR_RETURN(const scheduler::Placement placement, LimitedPlacement(options.fleet));
  options.placement = &placement;  // copied
  return scheduler::Controller::CreateFrom(options, std::move(folded));
}

// Whether this controller could go on with what the journal says just now. What is read of it here is not
// read again: after the claim, workers wait for whoever takes over.
Status ControllerProcess::Rehearse(StorageOptions& storage) {
  const auto read = storage::ScanJournal(
      *fs_, storage::RunPaths(request_.run_dir).journal(), request_.run_id, Lsn{0},
      [&](JournalEntry&& entry) {
        storage.newest_payload = std::max(storage.newest_payload, OwnPayload(entry.record));
        return Read(entry);
      },
      &storage.mark);
  if (read.status().code() == StatusCode::kNotFound) return OkStatus();  // it had not begun
  TP_RETURN_IF_ERROR(read.status());
  // A controller goes on if the terms of the run are those of its config; what was folded is kept for it.
  scheduler::RunState begun;
  if (const auto& terms = folded_.config(); terms) TP_RETURN_IF_ERROR(begun.Apply(record::Config{*terms}));
  return MakeController(std::move(begun)).status();
}

// A record of an earlier life, in its order.
Status ControllerProcess::Read(const JournalEntry& entry) {
  if (pages_ != nullptr) pages_->Turned();  // a long journal takes a while
  TP_RETURN_IF_ERROR(folded_.Apply(entry));
  Remember(entry.record);
  return OkStatus();
}

// From here on the journal is this controller's.
Status ControllerProcess::Claim(StorageOptions storage) {
  begun_ = Begun();
  storage.run_dir = request_.run_dir;
  storage.run_id = request_.run_id;
  storage.begun_unix_ms = begun_.count();
  storage.take_over = request_.take_over;
  storage.ends_with_the_machine = EndsWithTheMachine();
  TP_ASSIGN_OR_RETURN(storage_,
                      RunStorage::Open(
                          fs_, storage, &earlier_, [this](const JournalEntry& entry) { return Read(entry); },
                          [inbox = inbox_](StorageDone done) { inbox->Put(std::move(done)); }));
  const observe::LogOptions log = LogFile();
  RunningCall::TellIn(log.path, storage::RunPaths(request_.run_dir).last_words(), observe::LogContext(log));
  // In its turn: lines of before are still to be written, by that thread.
  files_.Do("write of logs/controller.log",
            [log](const DiskThread::Say&) { (void)observe::SetUpLogging(log); });  // it was opened before
  if (earlier_.torn_tail)
    Warn("the last " + std::to_string(earlier_.torn_tail->bytes) + " bytes of " + earlier_.torn_tail->file +
             " are cut off: a record that was not written to its end (" + earlier_.torn_tail->why + ")",
         "journal_cut");
  return OkStatus();
}

Status ControllerProcess::Begin() {
  const storage::RunPaths paths(request_.run_dir);
  const Checkpoints::Owner owner{
      request_.run_dir, request_.run_id, request_.config_digest, rows_->identity(), storage_->ctl_epoch(),
      // A reward model begins with a head that the base model does not have, and
      // an adapter is none.
      config_.kind() == JobKind::kRewardModel || config_.model.trains_adapter() ? "" : request_.model_dir,
      config_.checkpoint.keep_best, StoreOf(config_)};
  checkpoints_ = std::make_unique<Checkpoints>(
      fs_, owner,
      Checkpoints::Ends{
          .post = Post(),
          .feed = [this](scheduler::Event e) { Feed(std::move(e)); },
          .send = [this](const WorkerRef& w, ToWorkerBody m) { Send(w, std::move(m)); },
          .warn = [this](const std::string& line) { Warn(line); },
          .took =
              [this](double seconds) {
                checkpoint_s_ = seconds;
                metrics_->OnCheckpoint(seconds);
              },
          .needed_of_payload = [this] { return std::pair(NeededOfPayload(), logged_->newest_writer()); }});
  TP_RETURN_IF_ERROR(checkpoints_->Open());
  recorded_ = std::make_unique<RecordedSamples>(
      payloads_,
      RecordedSamples::Ends{.post = Post(),
                            .find = [this](const SampleId& tid) { return controller_->FindPayload(tid); },
                            .in_memory = [this](const SampleId& tid) { return InMemory(tid); }});
  // Of a life that did not end in order. Workers that outlived it go on with what they have there.
  if (config_.cluster.reattach_grace_s <= 0) TP_RETURN_IF_ERROR(fs_->RemoveTree(paths.offload()));
  if (fragments_ != nullptr) {
    waiting_fragments_ = std::make_unique<WaitingFragments>(
        WaitingFragments::Ends{.hosts = [this] { return places_->EnvironmentHosts(); },
                               .send =
                                   [this](const WorkerRef& w, down::StartChunk m) {
                                     Send(w, std::move(m));
                                     metrics_->Count("dispatch/chunks");
                                   },
                               .feed = [this](scheduler::Event e) { Feed(std::move(e)); }});
  }
  options_.checkpoint.best = checkpoints_->Best();
  const bool resumed = !folded_.empty();
  TP_ASSIGN_OR_RETURN(controller_, MakeController(std::move(folded_)));
  step_rows_ = std::make_unique<StepRows>(
      *controller_,
      StepRows::Ends{.taught = [this](const SampleId& tid) { return InMemory(tid); },
                     .judge = [this](const SampleId& tid, BatchRow& row) { Judge(tid, row); },
                     .opened =
                         [this](StepNumber step, const std::vector<BatchRow>& rows) {
                           metrics_->OnBatch(rows);
                           WriteSamples(step, rows);
                         },
                     .send = [this](const WorkerRef& w, down::Train m) { Send(w, std::move(m)); },
                     .feed = [this](scheduler::Event e) { Feed(std::move(e)); }});
  has_rows_.store(true);
  if (resumed) {
    Log(LogLevel::kInfo, "resume",
        {{"records", std::to_string(earlier_.next.value)},
         {"step", std::to_string(std::max<int64_t>(committed_.value, 0))},
         {"checkpoint_step", result_.checkpoint_step ? std::to_string(*result_.checkpoint_step) : "none"},
         {"ctl_epoch", std::to_string(storage_->ctl_epoch())}});
  }
  TP_ASSIGN_OR_RETURN(metrics_, RunMetrics::Open(config_, request_.run_dir, files_));
  metrics_->Undo(std::max(committed_, StepNumber{0}));  // what the last life said of steps that were lost
  TokenIntake::Ends ends;
  ends.expects = [this](const SlotRef& on, const SampleId& tid, int32_t att) {
    return controller_->Expects(on, tid, att);
  };
  ends.have_row = [this](const SampleId& tid) { return EnsureRow(tid); };
  ends.check = [this](const sample::Segment& made) {
    return fragments_ != nullptr ? fragments_->judge().Check(made)
                                 : made.CheckSampled(rows_->tokenizer().vocab_size());
  };
  ends.feed = [this](scheduler::Event event) { Feed(std::move(event)); };
  ends.ask = [this](const WorkerRef& worker, down::Resend what) { Send(worker, std::move(what)); };
  if (config_.cluster.reattach_grace_s <= 0) logged_->BeginAlone();
  if (config_.rl() != nullptr) {
    TP_ASSIGN_OR_RETURN(token_proof_, storage::MakeTokenProof(*fs_, {paths.tokens(), paths.payload()}));
  }
  intake_ = std::make_unique<TokenIntake>(samples_, std::move(ends));
  turns_ = std::make_unique<Turns>(
      *rows_, samples_, [this](const char* metric) { metrics_->Count(metric); }, config_.rollout.endpoint);
  AttachmentOptions attachments;
  attachments.ctl_epoch = storage_->ctl_epoch();
  attachments.device_places = options_.device_workers();
  attachments.side_places = std::max<int64_t>(options_.side_workers(), 1);
  attachments.lost_after = FromSeconds(LostAfterSeconds(PermitSeconds()));
  attachments.offer_within = FromSeconds(config_.cluster.stall_timeout_s);
  attachments_ = std::make_unique<Attachments>(attachments, hub_.get());
  places_ = std::make_unique<WorkerPlaces>(
      *attachments_,
      WorkerPlaces::Ends{.feed = [this](scheduler::Event event) { Feed(std::move(event)); },
                         .left =
                             [this](int64_t place) {
                               metrics_->OnLeft(place);
                               meeting_->Left(places_->places().at(place).inc);
                               engine_meetings_->Left(places_->places().at(place).inc);
                               for (const auto& [slot, role] : places_->places().at(place).granted)
                                 metrics_->OnHold(slot, Role::kNone, Now());
                             }});
  effects_ = std::make_unique<Effects>(
      *attachments_, Effects::Ends{.append = [this](const auto& decided) { return Append(decided); },
                                   .carry_out = [this](auto& decided) { CarryOut(decided); },
                                   .over = [this] { return finished_; },
                                   .answered =
                                       [this](const std::vector<TimePoint>& read) {
                                         const TimePoint now{Clock::now().time_since_epoch()};
                                         for (const TimePoint at : read)
                                           metrics_->OnDecision(Seconds(now - at));
                                       }});
  Log(LogLevel::kInfo, "placement",
      {{"placement", Name(config_.scheduler.placement)},
       {"slots", std::to_string(config_.cluster.slots)},
       {"device_workers", std::to_string(options_.device_workers())},
       {SideName(config_) + "_workers", std::to_string(options_.side_workers())},
       {"address", hub_->address()}});
  if (storage_->TakenOver()) return FailedPrecondition("another controller has just taken over this run");
  TP_RETURN_IF_ERROR(request_.accepted());
  if (!identity_) RemoveCertificates(paths.security());
  if (config_.security.newcomers && identity_) TP_RETURN_IF_ERROR(OpenForNewcomers());
  // What an earlier life said of its end, and where it was to be reached, is not true any more.
  for (const std::string& said :
       {paths.summary(), paths.status(), paths.last_words(), paths.prometheus_targets()})
    TP_RETURN_IF_ERROR(fs_->RemoveTree(said));
  nlohmann::json control = {{"address", hub_->address()},
                            {"run_id", request_.run_id},
                            {"pid", getpid()},
                            {"ctl_epoch", storage_->ctl_epoch()},
                            {"shared_memory", shared_memory_}};
  if (pages_ != nullptr) control["pages"] = pages_->address();
  if (join_ != nullptr) control["join"] = join_->address();
  TP_RETURN_IF_ERROR(fs_->WriteFile(paths.control(), control.dump(2) + "\n"));
  return OkStatus();
}

void ControllerProcess::Close() {
  const bool now = storage_failed_ || stop_seen_ > 1;
  if (!result_.disk_hangs && storage_->TakenOver()) superseded_ = true;  // whatever it ends for
  // What it has to say is of no use any more; a disk that hangs does not hold the end up.
  if (!now) (void)checkpoints_->Drain(std::chrono::seconds(1));
  if (!superseded_) {  // or else they belong to another controller
    for (const int64_t place : attachments_->Welcomed())
      attachments_->Send(place, down::Shutdown{"the run is over"});
    for (const Ended& ended :
         launcher_.EndAll(now ? Duration{0} : std::chrono::seconds(2), std::chrono::seconds(1))) {
      metrics_->OnEnded(ended.place, ended.peak_bytes);
      if (!ended.blames.empty() && !ended.in_order)
        Log(LogLevel::kWarn, "end_waits",
            {{"worker", PlaceName(ended.place)},
             {"text", "the end did not wait for " + ended.blames + " to come back"}});
    }
  }
  if (join_ != nullptr) join_->Stop();
  hub_->Stop();
  const Status closed = storage_->Close(std::chrono::seconds(storage_failed_ ? 1 : 30));
  if (closed.code() == StatusCode::kDeadlineExceeded) result_.disk_hangs = true;
  if (!closed.ok() && result_.exit == 0) {
    result_.exit = 3;
    result_.why = closed.message();
  }
  if (!superseded_ && (result_.moved_to || (!storage_failed_ && !result_.disk_hangs))) LookForFolder();
  LogEnd();
  if (superseded_) {  // what is left here is another controller's
    (void)files_.Drain(DiskThread::kPatience);
    return;
  }
  (void)fs_->RemoveTree(
      storage::RunPaths(request_.run_dir).prometheus_targets());  // else the next start does
  std::error_code error;  // a control file that is left behind misleads nobody: its pid is dead
  std::filesystem::remove(storage::RunPaths(request_.run_dir).control(), error);
  (void)fs_->RemoveTree(storage::RunPaths(request_.run_dir).offload());  // else the next start does
  (void)fs_->RemoveTree(storage::RunPaths(request_.run_dir).tokens());   // nobody goes on with them
  SharedBlock::RemoveAll(shared_memory_);
  WriteSummary();
}

// --- the loop

void ControllerProcess::Drive() {
  (void)clock_.TakeAbsence();  // the start may have read long files
  auto next_tick = Clock::now();
  auto next_show = Clock::now(), next_renewal = Clock::now(), next_certificates = Clock::now(),
       next_look = Clock::now();
  const auto renewal =
      std::chrono::duration_cast<Clock::duration>(FromSeconds(RenewalSeconds(PermitSeconds()) / 2));
  while (!finished_) {
    effects_->Execute();
    recorded_->Begin();
    if (finished_) break;
    auto came = inbox_->TakeAll(std::chrono::milliseconds(10));
    NoteAbsence();  // before what came of it
    for (Incoming& in : came) {
      std::visit(Overload{[&](Heard& heard) {
                            const bool said = std::holds_alternative<HubMessage>(heard.event);
                            const size_t before = effects_->waiting();
                            for (Attachments::Event& event : attachments_->On(std::move(heard.event), Now()))
                              OnAttachment(event);
                            if (said && effects_->waiting() > before)
                              effects_->Answers({heard.at.time_since_epoch()});
                          },
                          [&](StorageDone& done) { OnStorage(done); }, [&](Answer& answer) { answer(); }},
                 in);
      if (finished_) return;
    }
    const auto now = Clock::now();
    if (pages_ != nullptr) pages_->Turned();
    if (now >= next_tick) {
      next_tick = now + std::chrono::milliseconds(50);
      CheckChildren();
      for (Attachments::Event& event : attachments_->Tick(Now())) OnAttachment(event);
      CheckSignals();
      StartDueWorkers();
      if (waiting_fragments_ != nullptr) waiting_fragments_->Tick(Now());
      logged_->Tick(Now());
      WatchDisk();
      Feed(ev::Tick{});
    }
    if (renewal_ != nullptr && now >= next_certificates) {
      next_certificates = now + std::chrono::seconds(1);
      RenewCertificates();
    }
    if (now >= next_renewal) {
      next_renewal = now + renewal;
      attachments_->Renew();
    }
    if (now >= next_look) {  // or else one that waits, and writes nothing, would not learn that it is over
      next_look = now + std::chrono::seconds(1);
      storage_->LookForSuccessor();
    }
    if (now >= next_show) {
      next_show = now + std::chrono::milliseconds(250);
      Show();
    }
  }
}

Status ControllerProcess::OpenForNewcomers() {
  const std::string security = storage::RunPaths(request_.run_dir).security();
  TP_ASSIGN_OR_RETURN(const JobTokens tokens, JobTokens::OpenOrCreate(security));
  const JoinServerOptions options{config_.cluster.bind, config_.cluster.advertise, *identity_};
  TP_ASSIGN_OR_RETURN(
      join_,
      JoinServer::Start(
          options,
          [this, security, tokens, epoch = storage_->ctl_epoch(), renewal = renewal_, inbox = inbox_,
           taken_over = storage_->AsksTakenOver()](const std::string& id, const std::string& secret,
                                                   const std::string& signing_request) -> StatusOr<Admitted> {
            if (taken_over()) return FailedPrecondition("another controller has this run");
            auto admitted = Admit(security, tokens, epoch, *renewal, id, secret, signing_request,
                                  std::chrono::system_clock::now());
            if (admitted.ok())
              inbox->Put(Answer([this, place = admitted->scope.place] {
                Log(LogLevel::kInfo, "certificate_issued", {{"worker", PlaceName(place)}},
                    "a join token was used for this place");
              }));
            return admitted;
          }));
  // On gRPC's threads, which do not hang with the disk.
  hub_->RenewBy([this, renewal = renewal_, inbox = inbox_, taken_over = storage_->AsksTakenOver(),
                 disk = std::make_shared<DiskThread>()](
                    const std::string& request, CallerRole role,
                    int64_t place) -> StatusOr<CertificateRenewal::Certified> {
    constexpr std::chrono::seconds kPatience{4};
    const Status hangs = Unavailable("the disk with security/ does not answer the controller");
    if (const auto busy = disk->Busy(); busy && busy->takes > kPatience) return hangs;
    auto certified = disk->DoWithin(
        kPatience, "renewal of a newcomer's certificate", [=]() -> StatusOr<CertificateRenewal::Certified> {
          if (taken_over()) return FailedPrecondition("another controller has this run");
          return request.empty() ? renewal->Believed()
                                 : renewal->CertifyAgain(request, NewcomerNames(role, place),
                                                         std::chrono::system_clock::now());
        });
    if (!certified) return hangs;
    if (certified->ok() && !request.empty())
      inbox->Put(Answer([this, place] {
        Log(LogLevel::kInfo, "certificate_issued", {{"worker", PlaceName(place)}},
            "a newcomer has its certificate made anew");
      }));
    return *std::move(certified);
  });
  return OkStatus();
}

// On the thread for the disk: where that hangs, the certificates have a twelfth of their life left. Who was
// taken over, and does not know it yet, leaves them alone: they are the other one's.
void ControllerProcess::RenewCertificates() {
  if (files_.Busy()) return;
  files_.Do("renewal of security/", [renewal = renewal_, inbox = inbox_, this,
                                     taken_over = storage_->AsksTakenOver()](const DiskThread::Say&) {
    if (taken_over()) return;
    auto done = renewal->Advance(std::chrono::system_clock::now());
    if (done.ok() && done->empty()) return;
    inbox->Put(Answer([this, done = std::move(done)] {
      if (done.ok()) {
        renewal_trouble_.clear();
        Log(LogLevel::kInfo, "certificates_renewed", {}, *done);
      } else if (std::exchange(renewal_trouble_, done.status().message()) != done.status().message()) {
        Warn("the certificates of the job could not be renewed, and it is tried again: " +
                 done.status().message(),
             "certificates_not_renewed");
      }
    }));
  });
}

// Nobody is held to account: what runs on this machine stood still with it.
void ControllerProcess::NoteSuspension() {
  const auto read = [](clockid_t which) {
    timespec t{};
    ::clock_gettime(which, &t);
    return Clock::duration(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
  };
  const auto monotonic =
      read(CLOCK_MONOTONIC);  // first: a suspension between the two is seen now or next time
  const auto asleep = suspend_watch_.At(read(CLOCK_BOOTTIME), monotonic);
  if (asleep == Clock::duration{0}) return;
  Warn("the machine was suspended for " + observe::DurationText(asleep) +
           ", and the run goes on from there. A reward server or a worker on another machine may have given "
           "up "
           "on it meanwhile",
       "suspended", {{"seconds", std::to_string(std::chrono::round<std::chrono::seconds>(asleep).count())}});
}

std::chrono::milliseconds ControllerProcess::Begun() {
  const TimePoint now = Now();  // first: what passes between the two is absence then
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch() - now.since_start);
}

// The journal's time of day is that of the log, whatever the time of the run stood still for, and when the
// machine's clock was set.
void ControllerProcess::FollowTimeOfDay() {
  const auto begun = Begun();
  if (std::chrono::abs(begun - begun_) < LoopClock::kAbsence) return;
  begun_ = begun;
  storage_->SetBegun(begun_.count());
}

void ControllerProcess::NoteAbsence() {
  NoteSuspension();
  FollowTimeOfDay();
  const auto away = clock_.TakeAbsence();
  if (away == Clock::duration{0}) return;
  Feed(ev::StoodStill{away});
  effects_->Execute();  // it is told before the ends of workers that it explains
}

// What is still on its way to the disk goes into the newest file that was reported, or a newer one.
storage::FirstFiles ControllerProcess::NeededOfPayload() const {
  storage::FirstFiles needed;
  for (const int64_t file : controller_->PayloadFiles()) storage::AddFile(needed, file);
  if (fragments_ != nullptr) {
    for (const int64_t file : fragments_->PayloadFiles()) storage::AddFile(needed, file);
  }
  storage::AddFile(needed, std::max<int64_t>(newest_payload_file_, 0));
  logged_->AddPayloadFiles(needed);
  return needed;
}

void ControllerProcess::Feed(scheduler::Event event) {
  const TimePoint now = Now();
  std::vector<scheduler::Command> commands = controller_->Handle(event, now);
  for (auto& c : commands) {
    // Who is in a place is known from the decision on; that it is told waits for the record of it.
    if (const auto* welcome = std::get_if<cmd::Welcome>(&c)) places_->Decided(*welcome);
    effects_->Add(std::move(c), now);
  }
}

std::optional<int64_t> ControllerProcess::Append(const std::vector<Effects::Decided>& decided) {
  std::vector<RunStorage::Record> records;
  for (const auto& [command, at] : decided) {
    if (const auto* append = std::get_if<cmd::Append>(&command))
      records.push_back({append->record, static_cast<uint64_t>(at.since_start.count())});
  }
  if (records.empty()) return std::nullopt;
  return storage_->Append(std::move(records));
}

void ControllerProcess::CarryOut(std::vector<Effects::Decided>& decided) {
  for (const auto& [command, at] : decided) {
    const auto* append = std::get_if<cmd::Append>(&command);
    if (append == nullptr) continue;
    LogRecord(append->record);
    Remember(append->record);
  }
  const auto together = hub_->Hold();
  for (auto& [command, at] : decided) {
    std::visit([this](auto& c) { Do(c); }, command);
    if (finished_) return;
  }
}

void ControllerProcess::OnStorage(StorageDone& done) {
  if (storage_failed_) return;
  std::visit(Overload{[&](BatchStored& stored) {
                        metrics_->OnSync(stored.seconds);
                        effects_->Stored(stored.batch);
                      },
                      [&](PayloadStored& p) {
                        newest_payload_file_ = p.ref.file;
                        ev::PayloadStored stored{p.tid,
                                                 p.att,
                                                 p.prompt_tokens,
                                                 p.response_tokens,
                                                 p.ref.digest,
                                                 p.ref.file,
                                                 p.ref.offset,
                                                 p.ref.bytes,
                                                 {}};
                        for (const auto& [version, tokens] : p.versions_with_loss)
                          stored.versions.push_back({version, tokens});
                        Feed(std::move(stored));
                        logged_->Stored(p.tid, p.att);
                      },
                      [&](StorageFailed& failed) {
                        if (const auto to = folder_->MovedTo()) return OnMoved(*to, failed.journal);
                        if (failed.taken_over) return TakenOver(failed.why);
                        EndForStorage(failed.why, failed.journal);
                      }},
             done);
}

// Nothing here waits for the disk, so this is looked at also while the disk hangs. Work on checkpoints may
// take long; the scheduler has a deadline for each.
void ControllerProcess::WatchDisk() {
  std::optional<DiskThread::Operation> busy = storage_->Busy();
  bool writing = busy.has_value();  // of journal and payload
  for (auto& at : {recorded_->Busy(), payload_reads_->Busy(), token_files_.Busy(), files_.Busy()}) {
    if (!at || (busy && at->takes <= busy->takes) || storage_failing_) continue;
    busy = at;
    writing = false;
  }
  const auto takes = [present = clock_.present()](const std::optional<DiskThread::Operation>& at) {
    return at ? std::chrono::duration<double>(std::min<Clock::duration>(at->takes, present)).count() : 0;
  };
  const auto since = [](double seconds) {
    char text[64];
    std::snprintf(text, sizeof(text), " has not ended for %.1f s", seconds);
    return std::string(text);
  };
  // The scheduler has deadlines for checkpoints, which may take long.
  const auto checkpoint = checkpoints_->Busy();
  if (const double seconds = takes(checkpoint); seconds < kSlowCheckpoint_s) {
    slow_checkpoint_told_ = false;
  } else if (!std::exchange(slow_checkpoint_told_, true)) {
    Warn("the disk is slow: " + checkpoint->name + since(seconds), "disk_slow");
  }
  const double seconds = takes(busy);
  if (seconds < kSlowDisk_s) {
    slow_disk_told_ = false;
    return;
  }
  const std::string text = since(seconds);
  if (seconds >= std::min(kHangingDisk_s, config_.cluster.stall_timeout_s)) {
    result_.disk_hangs = true;
    EndForStorage("the disk hangs: " + busy->name + text, writing);
  } else if (!std::exchange(slow_disk_told_, true)) {
    Warn("the disk is slow: " + busy->name + text, "disk_slow");
  }
}

// `journal`: it takes no more records, so what was decided and not recorded is lost, and nothing of it is
// carried out. Otherwise the fault and the end are recorded like any other.
void ControllerProcess::EndForStorage(const std::string& what, bool journal) {
  if (storage_failed_ || finished_) return;
  if (!journal) {
    if (!std::exchange(storage_failing_, true)) Feed(ev::StorageFailed{what});
    return;
  }
  storage_failed_ = true;
  int64_t lost = effects_->Clear();
  cmd::Finish end{3, "fault=storage actor=controller: " + what};  // it had ended before
  for (auto& c : controller_->Handle(ev::StorageFailed{what}, Now())) {
    if (std::holds_alternative<cmd::Append>(c)) ++lost;
    if (auto* finish = std::get_if<cmd::Finish>(&c)) end = std::move(*finish);
  }
  end.why += "; the journal may lack this and the last " + std::to_string(lost) +
             " records of what was decided, of which nothing was done";
  Do(end);
}

// Paths lead to where it was, in the workers too: what is open goes on where it is, what is made next would
// begin another folder. So the run ends, and says so where it is now.
void ControllerProcess::OnMoved(const std::string& to, bool journal) {
  if (finished_ || storage_failing_ || storage_failed_) return;
  NoteMoved(to);
  EndForStorage(moved_, journal);
}

// At the end of a run that nobody has told of it, or that had begun to end for something else that the move
// did (tokens that cannot be read): what it would say of its checkpoints is not so any more.
void ControllerProcess::LookForFolder() {
  if (!result_.moved_to) {
    const auto to = folder_->MovedTo();
    if (!to) return;
    NoteMoved(*to);
  }
  if (result_.why.find(moved_) != std::string::npos) return;
  const std::string failed = result_.exit == 0 ? "" : result_.why + "; ";
  result_.exit = 3;
  result_.why = failed + moved_;
}

// Takes the place where the folder is now.
void ControllerProcess::NoteMoved(const std::string& to) {
  moved_ = "its folder " + request_.run_dir + (to.empty() ? " was removed" : " was moved to " + to) +
           " while the run was at work";
  if (!to.empty()) request_.run_dir = to;
  result_.moved_to = to;
  result_.disk_hangs = to.empty();
}

StatusOr<RunResult> RunController(const RunRequest& request) {
  ControllerProcess process(request);
  return process.Run();
}

}  // namespace tidepool::workers
