#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/algorithms/registry.h"
#include "core/observe/log.h"
#include "workers/controller/process_impl.h"
#include "workers/data/shared_arena.h"
#include "workers/device/memory_plan.h"
#include "workers/net/auth.h"

namespace tidepool::workers {

StatusOr<RunResult> ControllerProcess::Run() {
  TP_RETURN_IF_ERROR(Open());
  Feed(ev::Started{});
  Drive();
  Close();
  return result_;
}

// --- start and end

Status ControllerProcess::Open() {
  start_ = Clock::now();
  observe::LogOptions log;
  log.path = request_.run_dir + "/logs/controller.log";
  log.role = "controller";
  if (const auto level = observe::ParseLogLevel(config_.observe.log_level); level.ok()) log.level = *level;
  TP_RETURN_IF_ERROR(observe::SetUpLogging(log));
  TP_ASSIGN_OR_RETURN(rows_, RowSource::Create(config_, request_.model_dir));
  environment_ = config_.job == "rl" && !config_.environment.name.empty() && config_.model.policy.empty();
  if (config_.environment.name.empty()) {
    for (const std::string& warning : rows_->data().warnings()) Warn(warning);
  }
  storage::JournalContents earlier;
  TP_ASSIGN_OR_RETURN(journal_, storage::JournalWriter::Open(fs_, request_.run_dir + "/journal",
                                                             request_.run_id, {}, &earlier));
  if (earlier.summary.torn_tail)
    Warn("journal tail cut file=" + earlier.summary.torn_tail->file +
         " why=" + earlier.summary.torn_tail->why);
  TP_ASSIGN_OR_RETURN(payload_,
                      storage::PayloadWriter::Open(fs_, request_.run_dir + "/payload", request_.run_id));
  TP_RETURN_IF_ERROR(fs_.MakeDirectories(checkpoints_));
  TP_RETURN_IF_ERROR(storage::RemoveLeftovers(fs_, checkpoints_).status());
  payload_reader_ = std::make_unique<storage::PayloadReader>(fs_, request_.run_dir + "/payload");
  if (!config_.model.policy.empty()) {
    TP_ASSIGN_OR_RETURN(fragments_, Fragments::Create(config_, *payload_reader_));
  }
  scheduler::ControllerOptions options;
  options.config = config_;
  options.config.algorithm.filter = algorithms::FilterOf(config_.algorithm);
  options.run_id = request_.run_id;
  options.config_digest = request_.config_digest;
  options.data_rows = rows_->size();
  const int64_t held_out = rows_->held_out_size();
  // Supervised learning is evaluated by generation only where that is asked for: it needs an engine and a
  // grader.
  const bool wants_eval = (AnswersHeldOut(config_) && config_.eval.every_steps > 0) ||
                          (config_.job == "rl" && (config_.eval.before_train || config_.eval.after_train));
  options.eval_rows =
      wants_eval ? (config_.eval.samples > 0 ? std::min(config_.eval.samples, held_out) : held_out) : 0;
  // 0 where it cannot be predicted: then no proof is asked for.
  if (const auto plan = PlanMemory(config_); plan.ok()) {
    const RoleNeeds needs = NeedsOfRoles(*plan);
    options.device_bytes_need_rollout = needs.rollout;
    options.device_bytes_need_actor = needs.actor;
  }
  options_ = options;
  const auto algorithm = algorithms::Resolve(config_.algorithm, config_.rollout.max_new_tokens);
  greedy_first_ =
      config_.job == "rl" && algorithm.ok() && algorithm->advantage->Uses(algorithms::Provision::kGreedy);
  // Workers that this process started end with it, hence with the machine.
  group_commit_ = config_.cluster.launch_workers && config_.cluster.reattach_grace_s <= 0;
  TP_ASSIGN_OR_RETURN(controller_, scheduler::Controller::Create(options, earlier.entries));
  for (const JournalEntry& entry : earlier.entries) Remember(entry.record);
  TP_ASSIGN_OR_RETURN(metrics_, RunMetrics::Open(config_, request_.run_dir));
  turns_ = std::make_unique<Turns>(*rows_, samples_, *metrics_);
  TP_ASSIGN_OR_RETURN(const JobTokens tokens, JobTokens::OpenOrCreate(request_.run_dir + "/security"));
  shared_memory_ = SharedBlock::FolderOf(request_.run_id, tokens.Token(CallerRole::kDevice));
  HubOptions hub;
  hub.bind = config_.cluster.bind;
  hub.port = config_.cluster.port;
  hub.run_id = request_.run_id;
  hub.max_control_bytes = config_.security.max_control_bytes;
  hub.max_frame_bytes = config_.security.max_frame_bytes;
  TP_ASSIGN_OR_RETURN(
      hub_, Hub::Start(
                hub, tokens, [this](HubEvent e) { inbox_.Put(std::move(e)); },
                [this](int64_t lease, StepNumber step, Incarnation) { return LeasedRows(lease, step); }));
  AttachmentOptions attachments;
  attachments.ctl_epoch = journal_->ctl_epoch();
  attachments.device_places = options_.device_workers();
  attachments.side_places = std::max<int64_t>(options_.side_workers(), 1);
  attachments.lost_after = FromSeconds(LostAfterSeconds(3 * config_.cluster.heartbeat_s));
  attachments_ = std::make_unique<Attachments>(attachments, hub_.get());
  nlohmann::json control = {{"address", hub_->address()}, {"run_id", request_.run_id}, {"pid", getpid()}};
  TP_RETURN_IF_ERROR(fs_.WriteFile(request_.run_dir + "/control.json", control.dump(2) + "\n"));
  return OkStatus();
}

void ControllerProcess::Close() {
  JoinCheckpoint();
  for (const int64_t place : attachments_->Welcomed())
    attachments_->Send(place, down::Shutdown{"the run is over"});
  launcher_.EndAll(result_.stopped && stop_seen_ > 1 ? Duration{0} : std::chrono::seconds(2),
                   std::chrono::seconds(1));
  hub_->Stop();
  if (const Status closed = journal_->Close(); !closed.ok() && result_.exit_code == 0) {
    result_.exit_code = 3;
    result_.why = closed.message();
  }
  if (superseded_) return;  // what is left here is another controller's
  std::error_code error;    // a control file that is left behind misleads nobody: its pid is dead
  std::filesystem::remove(request_.run_dir + "/control.json", error);
  SharedBlock::RemoveAll(shared_memory_);
  WriteSummary();
}

// --- the loop

void ControllerProcess::Drive() {
  auto next_tick = Clock::now();
  auto next_show = Clock::now();
  while (!finished_) {
    Execute();
    if (finished_) break;
    // Everything that was taken is decided, and stored if it has to be.
    attachments_->Acknowledge(attachments_->Taken());
    CommitGroup();
    for (Incoming& in : inbox_.TakeAll(std::chrono::milliseconds(10))) {
      if (auto* hub = std::get_if<HubEvent>(&in)) {
        for (Attachments::Event& event : attachments_->On(std::move(*hub), Now())) OnAttachment(event);
      } else {
        auto& done = std::get<CheckpointResult>(in);
        metrics_->OnCheckpoint(done.seconds);
        Feed(std::move(done.event));
      }
    }
    const auto now = Clock::now();
    if (now >= next_tick) {
      next_tick = now + std::chrono::milliseconds(50);
      CheckChildren();
      for (Attachments::Event& event : attachments_->Tick(Now())) OnAttachment(event);
      CheckSignals();
      StartDueWorkers();
      GiveBackHeldChunks();
      Feed(ev::Tick{});
    }
    if (now >= next_show) {
      next_show = now + std::chrono::milliseconds(250);
      attachments_->Renew();
      Show();
    }
  }
}

std::string ControllerProcess::CheckpointDir(StepNumber step) const {
  return checkpoints_ + "/" + storage::CheckpointName(step);
}

TimePoint ControllerProcess::Now() const { return {Clock::now() - start_}; }

void ControllerProcess::Feed(scheduler::Event event) {
  const auto begin = Clock::now();
  const TimePoint now = Now();
  std::vector<scheduler::Command> commands = controller_->Handle(event, now);
  metrics_->OnHandle(std::chrono::duration<double>(Clock::now() - begin).count());
  for (auto& c : commands) todo_.push_back({std::move(c), now});
}

// Carries out what was decided: records first, made durable, then their effects. Effects that answer at
// once feed the controller again, until nothing is left.
void ControllerProcess::Execute() {
  while (!todo_.empty() && !finished_) {
    std::vector<Decided> batch;
    batch.swap(todo_);
    bool sync = false;
    bool any = false;
    for (const Decided& c : batch) {
      const auto* append = std::get_if<cmd::Append>(&c.command);
      if (append == nullptr) continue;
      // The time of the decision, not of the writing: what was decided to last so long lasts so long in the
      // journal too.
      journal_->Append(append->record, static_cast<uint64_t>(c.at.since_start.count()));
      Remember(append->record);
      sync = sync || !(group_commit_ ? EndsWithTheMachine(append->record) : IsLazy(append->record));
      any = true;
    }
    if (any && !Store(sync)) return;
    const auto together = hub_->Hold();
    for (Decided& c : batch) {
      std::visit([this](auto& command) { Do(command); }, c.command);
      if (finished_) return;
    }
    if (!stored_.empty()) {
      if (!group_commit_ && !SyncPayload()) return;
      for (auto& event : std::exchange(stored_, {})) Feed(std::move(event));
    }
  }
}

// Records that speak of things on disk, which a machine that fails does not take with it. All others
// tell of this run's processes: where those cannot outlive the machine either, a failure that loses
// the newest records loses their effects too, so it is enough that they are durable soon.
bool ControllerProcess::EndsWithTheMachine(const JournalRecord& r) {
  return !std::holds_alternative<record::CheckpointCommit>(r) &&
         !std::holds_alternative<record::CheckpointReject>(r) &&
         !std::holds_alternative<record::CheckpointDelete>(r) &&
         !std::holds_alternative<record::Restore>(r) && !std::holds_alternative<record::EndRun>(r);
}

// What was appended goes to the operating system (safe from the death of this process), with `sync` to the
// disk.
bool ControllerProcess::Store(bool sync) {
  if (sync && group_commit_ && !SyncPayload()) return false;  // a durable ENQ has durable tokens
  const auto begin = Clock::now();
  const Status written = sync ? journal_->Sync() : journal_->Flush();
  metrics_->OnSync(std::chrono::duration<double>(Clock::now() - begin).count());
  if (!written.ok()) {
    StorageFailed("journal: " + written.message());
    return false;
  }
  if (sync) {
    unsynced_since_.reset();
  } else if (!unsynced_since_) {
    unsynced_since_ = begin;
  }
  return true;
}

// Syncs in the background what is with the operating system: tokens first, then the records that name them.
void ControllerProcess::CommitGroup() {
  if (const auto done = syncing_.TakeResult(); done && !done->ok())
    StorageFailed("journal: " + done->message());
  if (!unsynced_since_ || syncing_.busy() || Clock::now() - *unsynced_since_ < kGroupCommit) return;
  unsynced_since_.reset();
  std::vector<std::string> files{journal_->current_file()};
  if (!payload_->current_file().empty()) files.insert(files.begin(), payload_->current_file());
  syncing_.Begin(std::move(files));
}

bool ControllerProcess::SyncPayload() {
  const Status synced = payload_->Sync();
  if (!synced.ok()) StorageFailed("payload: " + synced.message());
  return synced.ok();
}

// The record of what happens can no longer be kept: the one failure the controller is told of and
// whose records cannot be written any more.
void ControllerProcess::StorageFailed(const std::string& what) {
  if (storage_failed_) {
    finished_ = true;
    return;
  }
  storage_failed_ = true;
  todo_.clear();
  for (auto& c : controller_->Handle(ev::StorageFailed{what}, Now())) {
    if (auto* finish = std::get_if<cmd::Finish>(&c)) Do(*finish);
  }
  if (!finished_) Do(cmd::Finish{3, "storage failed: " + what});
}

StatusOr<RunResult> RunController(const RunRequest& request) {
  ControllerProcess process(request);
  return process.Run();
}

}  // namespace tidepool::workers
