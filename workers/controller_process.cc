#include "workers/controller_process.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "core/algorithms/registry.h"
#include "core/base/real_file_system.h"
#include "core/observe/log.h"
#include "core/observe/progress.h"
#include "core/observe/samples_writer.h"
#include "core/storage/checkpoint.h"
#include "core/storage/journal.h"
#include "core/storage/payload.h"
#include "workers/auth.h"
#include "workers/build_info.h"
#include "workers/fragments.h"
#include "workers/hub.h"
#include "workers/launcher.h"
#include "workers/group_commit.h"
#include "workers/mailbox.h"
#include "workers/row_source.h"
#include "workers/run_metrics.h"
#include "workers/sample_store.h"
#include "workers/shared_arena.h"
#include "workers/turns.h"

namespace tidepool::workers {
namespace {

namespace ev = scheduler::event;
namespace cmd = scheduler::command;
using Clock = std::chrono::steady_clock;

template <typename... F>
struct Overload : F... {
  using F::operator()...;
};
template <typename... F>
Overload(F...) -> Overload<F...>;

// A result of the checkpoint thread.
struct CheckpointResult { scheduler::Event event; double seconds = 0; };
using Incoming = std::variant<HubEvent, CheckpointResult>;

class ControllerProcess {
 public:
  explicit ControllerProcess(const RunRequest& request)
      : request_(request), config_(request.config), launcher_(request.config.cluster.reattach_grace_s > 0),
        checkpoints_(request.run_dir + "/checkpoints") {}

  StatusOr<RunResult> Run() {
    TP_RETURN_IF_ERROR(Open());
    Feed(ev::Started{});
    Drive();
    Close();
    return result_;
  }

 private:
  // --- start and end ---
  Status Open() {
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
    TP_ASSIGN_OR_RETURN(journal_, storage::JournalWriter::Open(fs_, request_.run_dir + "/journal", request_.run_id, {}, &earlier));
    if (earlier.summary.torn_tail) Warn("journal tail cut file=" + earlier.summary.torn_tail->file + " why=" + earlier.summary.torn_tail->why);
    TP_ASSIGN_OR_RETURN(payload_, storage::PayloadWriter::Open(fs_, request_.run_dir + "/payload", request_.run_id));
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
    // Supervised learning is evaluated by generation only where that is asked for: it needs an engine and a grader.
    const bool wants_eval = (AnswersHeldOut(config_) && config_.eval.every_steps > 0) || (config_.job == "rl" && (config_.eval.before_train || config_.eval.after_train));
    options.eval_rows = wants_eval ? (config_.eval.samples > 0 ? std::min(config_.eval.samples, held_out) : held_out) : 0;
    options_ = options;
    const auto algorithm = algorithms::Resolve(config_.algorithm, config_.rollout.max_new_tokens);
    greedy_first_ = config_.job == "rl" && algorithm.ok() && algorithm->advantage->Uses(algorithms::Provision::kGreedy);
    // Workers that this process started end with it, hence with the machine.
    group_commit_ = config_.cluster.launch_workers && config_.cluster.reattach_grace_s <= 0;
    TP_ASSIGN_OR_RETURN(controller_, scheduler::Controller::Create(options, earlier.entries));
    for (const JournalEntry& entry : earlier.entries) Remember(entry.record);
    TP_ASSIGN_OR_RETURN(metrics_, RunMetrics::Open(config_, request_.run_dir));
    turns_ = std::make_unique<Turns>(*rows_, samples_, *metrics_);
    TP_ASSIGN_OR_RETURN(const JobTokens tokens, JobTokens::OpenOrCreate(request_.run_dir + "/security"));
    HubOptions hub;
    hub.bind = config_.cluster.bind;
    hub.port = config_.cluster.port;
    hub.run_id = request_.run_id;
    hub.max_control_bytes = config_.security.max_control_bytes;
    hub.max_frame_bytes = config_.security.max_frame_bytes;
    TP_ASSIGN_OR_RETURN(hub_, Hub::Start(hub, tokens, [this](HubEvent e) { inbox_.Put(std::move(e)); },
                                         [this](int64_t lease, StepNumber step, Incarnation) { return LeasedRows(lease, step); }));
    nlohmann::json control = {{"address", hub_->address()}, {"run_id", request_.run_id}, {"pid", getpid()}};
    TP_RETURN_IF_ERROR(fs_.WriteFile(request_.run_dir + "/control.json", control.dump(2) + "\n"));
    return OkStatus();
  }

  void Close() {
    JoinCheckpoint();
    for (const auto& [connection, place] : place_of_) {
      hub_->Send(connection, ToWorker{inc_of_[place], 0, down::Shutdown{"the run is over"}});
    }
    launcher_.EndAll(result_.stopped && stop_seen_ > 1 ? Duration{0} : std::chrono::seconds(2), std::chrono::seconds(1));
    hub_->Stop();
    if (const Status closed = journal_->Close(); !closed.ok() && result_.exit_code == 0) {
      result_.exit_code = 3;
      result_.why = closed.message();
    }
    std::error_code error;  // a control file that is left behind misleads nobody: its pid is dead
    std::filesystem::remove(request_.run_dir + "/control.json", error);
    SharedBlock::RemoveAll(request_.run_id);
    WriteSummary();
  }

  // --- the loop ---
  void Drive() {
    auto next_tick = Clock::now();
    auto next_show = Clock::now();
    while (!finished_) {
      Execute();
      if (finished_) break;
      CommitGroup();
      for (Incoming& in : inbox_.TakeAll(std::chrono::milliseconds(10))) {
        if (auto* hub = std::get_if<HubEvent>(&in)) {
          OnHubEvent(*hub);
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
        CheckSignals();
        StartDueWorkers();
        GiveBackHeldChunks();
        Feed(ev::Tick{});
      }
      if (now >= next_show) {
        next_show = now + std::chrono::milliseconds(250);
        RenewLeases();
        Show();
      }
    }
  }

  std::string CheckpointDir(StepNumber step) const { return checkpoints_ + "/" + storage::CheckpointName(step); }

  TimePoint Now() const { return {Clock::now() - start_}; }

  void Feed(scheduler::Event event) {
    const auto begin = Clock::now();
    std::vector<scheduler::Command> commands = controller_->Handle(event, Now());
    metrics_->OnHandle(std::chrono::duration<double>(Clock::now() - begin).count());
    for (auto& c : commands) todo_.push_back(std::move(c));
  }

  // Carries out what was decided: records first, made durable, then their effects. Effects that answer at
  // once feed the controller again, until nothing is left.
  void Execute() {
    while (!todo_.empty() && !finished_) {
      std::vector<scheduler::Command> batch;
      batch.swap(todo_);
      bool sync = false;
      bool any = false;
      for (const auto& c : batch) {
        const auto* append = std::get_if<cmd::Append>(&c);
        if (append == nullptr) continue;
        journal_->Append(append->record, static_cast<uint64_t>(Now().since_start.count()));
        Remember(append->record);
        sync = sync || !(group_commit_ ? EndsWithTheMachine(append->record) : IsLazy(append->record));
        any = true;
      }
      if (any && !Store(sync)) return;
      for (auto& c : batch) {
        std::visit([this](auto& command) { Do(command); }, c);
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
  static bool EndsWithTheMachine(const JournalRecord& r) {
    return !std::holds_alternative<record::CheckpointCommit>(r) && !std::holds_alternative<record::CheckpointReject>(r) && !std::holds_alternative<record::CheckpointDelete>(r) &&
           !std::holds_alternative<record::Restore>(r) && !std::holds_alternative<record::EndRun>(r);
  }

  // What was appended goes to the operating system (safe from the death of this process), with `sync` to the disk.
  bool Store(bool sync) {
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
  void CommitGroup() {
    if (const auto done = syncing_.TakeResult(); done && !done->ok()) StorageFailed("journal: " + done->message());
    if (!unsynced_since_ || syncing_.busy() || Clock::now() - *unsynced_since_ < kGroupCommit) return;
    unsynced_since_.reset();
    std::vector<std::string> files{journal_->current_file()};
    if (!payload_->current_file().empty()) files.insert(files.begin(), payload_->current_file());
    syncing_.Begin(std::move(files));
  }

  bool SyncPayload() {
    const Status synced = payload_->Sync();
    if (!synced.ok()) StorageFailed("payload: " + synced.message());
    return synced.ok();
  }

  // The record of what happens can no longer be kept: the one failure the controller is told of and
  // whose records cannot be written any more.
  void StorageFailed(const std::string& what) {
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

  // --- processes ---
  void Do(const cmd::StartWorker& c) {
    if (!config_.cluster.launch_workers) return;
    due_[c.worker.value] = Clock::now() + std::chrono::duration_cast<Clock::duration>(c.delay);
    StartDueWorkers();
  }

  void StartDueWorkers() {
    for (auto it = due_.begin(); it != due_.end();) {
      if (Clock::now() < it->second) {
        ++it;
        continue;
      }
      const int64_t place = it->first;
      it = due_.erase(it);
      const bool device = place < options_.device_workers();
      const std::string name = PlaceName(place);
      const std::string security = request_.run_dir + "/security/" + (device ? "device" : SideName()) + ".token";
      std::vector<std::string> argv;
      if (device) {
        argv = {request_.worker_path, "run"};
      } else {
        argv = {request_.self_path, SideName() + "-worker"};
        if (fragments_ != nullptr) argv.push_back("--vector");
      }
      for (const std::string& word : {"--connect=" + hub_->address(), "--token-file=" + security, "--run-id=" + request_.run_id,
                                      "--place=" + std::to_string(place), "--control-file=" + request_.run_dir + "/control.json"}) {
        argv.push_back(word);
      }
      const Status started = launcher_.Start(place, argv, request_.run_dir + "/logs/" + name + ".log");
      if (!started.ok()) Feed(ev::WorkerStartFailed{{place}, started.message()});
    }
  }

  // Workers beside the devices: they grade, or host environments.
  [[nodiscard]] std::string SideName() const { return config_.environment.name.empty() ? "reward" : "environment"; }
  [[nodiscard]] std::string PlaceName(int64_t place) const {
    const int64_t devices = options_.device_workers();
    return place < devices ? "device-" + std::to_string(place) : SideName() + "-" + std::to_string(place - devices);
  }

  void CheckChildren() {
    for (const Ended& ended : launcher_.Reap()) {
      const auto it = connection_of_.find(ended.place);
      if (it == connection_of_.end()) {
        // It died before it said Hello (or its connection was already reported lost).
        if (!lost_.contains(ended.place)) Feed(ev::WorkerStartFailed{{ended.place}, ended.why + "; see " + request_.run_dir + "/logs/"});
        lost_.erase(ended.place);
        continue;
      }
      const ConnectionId connection = it->second;
      Lose(connection, ended.why, /*by_exit=*/true);
    }
  }

  void Do(const cmd::KillWorker& c) {
    Warn("kill worker=" + std::to_string(c.worker.worker.value) + " why=" + c.why);
    launcher_.Kill(c.worker.worker.value, SIGKILL);
    const auto it = connection_of_.find(c.worker.worker.value);
    if (it != connection_of_.end()) hub_->Close(it->second, c.why);
  }

  void Do(const cmd::Welcome& c) {
    const int64_t place = c.worker.value;
    const auto it = connection_of_.find(place);
    if (it == connection_of_.end()) return;
    inc_of_[place] = c.inc;
    down::Welcome w;
    w.place = place;
    w.slot = place < options_.device_workers() ? SlotId{place} : SlotId{};
    w.ctl_epoch = journal_->ctl_epoch();
    w.lease_s = 3 * config_.cluster.heartbeat_s;
    w.config_yaml = request_.config_yaml;
    w.run_dir = request_.run_dir;
    w.run_id = request_.run_id;
    w.model_dir = request_.model_dir;
    w.run_clock_ns = Now().since_start.count();
    hub_->Send(it->second, ToWorker{c.inc, 0, std::move(w)});
  }

  void Do(const cmd::RefuseWorker& c) {
    const auto it = connection_of_.find(c.worker.value);
    if (it == connection_of_.end()) return;
    hub_->Send(it->second, ToWorker{{}, 0, down::Refuse{c.why}});
    place_of_.erase(it->second);
    connection_of_.erase(it);
  }

  void Lose(ConnectionId connection, const std::string& why, bool by_exit) {
    const auto it = place_of_.find(connection);
    if (it == place_of_.end()) return;
    const int64_t place = it->second;
    place_of_.erase(it);
    connection_of_.erase(place);
    weights_address_.erase(place);
    environment_of_.erase(place);
    metrics_->OnHold(place, Role::kNone, Now());
    const Incarnation inc = inc_of_[place];
    if (!by_exit) lost_.insert(place);
    hub_->Close(connection, why);
    Feed(ev::WorkerLost{{{place}, inc}, why, by_exit});
  }

  // --- the wire ---
  void OnHubEvent(HubEvent& event) {
    std::visit(Overload{[&](HubOpened& e) { OnOpened(e); }, [&](HubMessage& e) { OnMessage(e); },
                        [&](HubClosed& e) { Lose(e.connection, e.why, /*by_exit=*/false); }},
               event);
  }

  void OnOpened(HubOpened& e) {
    const bool device = e.hello.kind == scheduler::WorkerKind::kDevice;
    const int64_t first = device ? 0 : options_.device_workers();
    const int64_t end = device ? options_.device_workers() : options_.device_workers() + std::max<int64_t>(options_.side_workers(), 1);
    int64_t place = e.hello.place;
    if (place < 0) {
      for (place = first; place < end && connection_of_.contains(place);) ++place;
    }
    if (place < first || place >= end || connection_of_.contains(place)) {
      hub_->Send(e.connection, ToWorker{{}, 0, down::Refuse{place < first || place >= end ? "the run has no such place for a worker (cluster.slots, reward.workers, environment.workers)"
                                                                                           : "that place has a worker already"}});
      return;
    }
    place_of_[e.connection] = place;
    connection_of_[place] = e.connection;
    weights_address_[place] = e.hello.weights_address;
    if (fragments_ != nullptr && !e.hello.environment_address.empty()) {
      environment_of_[place] = {e.hello.environment_address, e.hello.environment_token};
    }
    lost_.erase(place);
    ev::WorkerJoined joined;
    joined.worker = {place};
    joined.name = PlaceName(place);
    joined.kind = e.hello.kind;
    if (device) joined.slot = {place};
    joined.device_bytes = e.hello.device_bytes;
    joined.restored_inc = e.hello.restored_inc;
    for (up::Held& held : e.hello.held) {
      Version oldest;
      Version newest;
      for (const auto& [version, count] : held.generated.versions) {
        if (!oldest.valid()) oldest = version;
        newest = version;
      }
      joined.held.push_back({held.tid, held.att, held.generated.size(), oldest, newest});
      StoredSample& s = samples_.Get(held.tid, held.att);
      s.tokens = std::move(held.generated);
    }
    Feed(std::move(joined));
  }

  void OnMessage(HubMessage& e) {
    const auto it = place_of_.find(e.connection);
    if (it == place_of_.end()) return;
    const int64_t place = it->second;
    const WorkerRef worker{{place}, e.message.inc};
    if (e.message.inc != inc_of_[place]) return;  // said before it was welcomed, or by an earlier life
    last_seq_[place] = e.message.seq;
    std::visit(Overload{
                   [&](up::Hello&) {},
                   [&](up::GroupFormed& b) { Feed(ev::GroupFormed{worker, b.group_epoch, std::move(b.error)}); },
                   [&](up::StepAborted& b) { Feed(ev::StepAborted{worker, b.lease, b.step, b.weights_digest}); },
                   [&](up::Heartbeat& b) {
                     metrics_->OnHeartbeat(place, b);
                     ev::Heartbeat beat{worker, std::nullopt, std::move(b.op), b.op_seq};
                     if (b.has_engine) beat.engine = ev::EngineSample{b.kv_usage, b.running, b.waiting, 0, b.step_s};
                     Feed(std::move(beat));
                   },
                   [&](up::StepTokens& b) { OnTokens(worker, b); },
                   [&](up::Graded& b) {
                     metrics_->OnGraded(b);
                     Feed(ev::Graded{worker, b.tid, b.att, b.outcome, b.reward, std::move(b.rewards), std::move(b.why)});
                   },
                   [&](up::EnvStepped& b) { Feed(turns_->Take(worker, std::move(b))); },
                   [&](up::Drained& b) { Feed(ev::Drained{worker, b.slot, b.epoch}); },
                   [&](up::Released& b) { Feed(ev::Released{worker, b.slot, b.epoch, b.free_bytes}); },
                   [&](up::Granted& b) {
                     metrics_->OnHold(place, granted_[place], Now());
                     Feed(ev::Granted{worker, b.slot, b.epoch});
                   },
                   [&](up::Loaded& b) {
                     metrics_->OnLoaded(b);
                     Feed(ev::Loaded{worker, b.version, b.digest, std::move(b.error)});
                   },
                   [&](up::StateReady& b) { Feed(ev::StateReady{worker, b.step, b.weights_digest, std::move(b.error)}); },
                   [&](up::TrainDone& b) {
                     metrics_->OnTrainDone(b);
                     DropLease(b.lease);
                     Feed(ev::TrainDone{worker, b.step, b.lease, b.finite, b.weights_digest, b.seconds});
                   },
                   [&](up::TrainFailed& b) {
                     DropLease(b.lease);
                     Feed(ev::TrainFailed{worker, b.step, b.lease, std::move(b.why), b.data});
                   },
                   [&](up::Published& b) { Feed(ev::Published{worker, b.version, std::move(b.error)}); },
                   [&](up::RecoveryCopied& b) { Feed(ev::RecoveryCopied{worker, b.step}); },
                   [&](up::CheckpointFiles& b) { CommitCheckpoint(b); },
                   [&](up::FinalSaved& b) { Feed(ev::FinalSaved{std::move(b.error)}); },
               },
               e.message.body);
  }

  void OnTokens(const WorkerRef& worker, up::StepTokens& step) {
    metrics_->OnTokens(step, Now());
    for (up::ChunkDelta& c : step.chunks) {
      const EncodedRow* row = samples_.FindRow(c.tid);
      if (row == nullptr) continue;  // cancelled meanwhile
      // Taken back from this worker: its tokens would come twice.
      const int64_t n = controller_->Expects(worker, c.tid, c.att) ? c.tokens.size() : 0;
      std::string why = std::move(c.why);
      ev::ChunkEnd end = c.end;
      bool ended = c.ended;
      if (n > 0) {
        const Status sound = fragments_ != nullptr ? fragments_->Check(c.tokens) : c.tokens.Check(rows_->tokenizer().vocab_size());
        if (sound.ok()) {
          const Version version = c.tokens.versions.back().first;
          StoredSample& s = samples_.Get(c.tid, c.att);
          s.tokens.Append(c.tokens);
          if (environment_) s.loss_mask.resize(s.tokens.ids.size(), 1);
          Feed(ev::ChunkProgress{worker, c.tid, c.att, n, version});
        } else {
          ended = true;
          end = ev::ChunkEnd::kDataError;
          why = sound.message();
        }
      }
      if (!ended) continue;
      if (!controller_->Expects(worker, c.tid, c.att)) {
        Feed(ev::ChunkFinished{worker, c.tid, c.att, end, std::move(why)});
        continue;
      }
      StoredSample& s = samples_.Get(c.tid, c.att);
      s.finish = end == ev::ChunkEnd::kLength ? storage::FinishReason::kLength
                 : end == ev::ChunkEnd::kStop ? storage::FinishReason::kStop : storage::FinishReason::kEos;
      Feed(ev::ChunkFinished{worker, c.tid, c.att, end, std::move(why)});
    }
  }

  template <typename Body>
  void Send(const WorkerRef& worker, Body body) {
    const auto it = connection_of_.find(worker.worker.value);
    if (it == connection_of_.end() || inc_of_[worker.worker.value] != worker.inc) return;  // its loss is on its way
    hub_->Send(it->second, ToWorker{worker.inc, last_seq_[worker.worker.value], std::move(body)});
  }

  void RenewLeases() {
    for (const auto& [connection, place] : place_of_) {
      hub_->Send(connection, ToWorker{inc_of_[place], last_seq_[place], down::LeaseRenewal{}});
    }
  }

  // --- data and rollout ---
  void Do(const cmd::PrepareRow& c) {
    StatusOr<EncodedRow> row = rows_->Row(c.ordinal);
    if (!row.ok()) {
      Feed(ev::RowInvalid{c.ordinal, c.issue, row.status().message()});
      return;
    }
    const auto prompt_len = static_cast<int64_t>(row->prompt.size());
    const auto response_len = static_cast<int64_t>(row->response.size());
    const auto rejected_len = static_cast<int64_t>(row->rejected.size());
    samples_.PutRow(c.ordinal, /*eval=*/false, std::move(*row));
    Feed(ev::RowReady{c.ordinal, c.issue, prompt_len});
    // A supervised row is its own payload: it is read again from the data when it is needed.
    if (config_.job == "rl") return;
    Feed(ev::PayloadStored{{c.ordinal, c.issue, 0}, 0, prompt_len, response_len, 0, -1, 0, 0});
    if (TrainsOnPairs(config_)) Feed(ev::PayloadStored{{c.ordinal, c.issue, 1}, 0, prompt_len, rejected_len, 0, -1, 0, 0});
  }

  bool EnsureRow(const SampleId& tid) {
    if (samples_.FindRow(tid) != nullptr) return true;
    StatusOr<EncodedRow> row = tid.is_eval() ? rows_->HeldOut(tid.ordinal) : rows_->Row(tid.ordinal);
    if (!row.ok()) {
      Warn("row " + ToString(tid) + ": " + row.status().message());
      return false;
    }
    samples_.PutRow(tid.ordinal, tid.is_eval(), std::move(*row));
    return true;
  }

  void Do(const cmd::StartChunk& c) {
    if (!EnsureRow(c.tid)) {
      Feed(ev::ChunkFinished{c.worker, c.tid, c.att, ev::ChunkEnd::kDataError, "the row cannot be read"});
      return;
    }
    StoredSample& s = samples_.Get(c.tid, c.att);
    if (const Status whole = turns_->CheckPrefix(s); !whole.ok()) {
      Feed(ev::ChunkFinished{c.worker, c.tid, c.att, ev::ChunkEnd::kDataError, whole.message()});
      return;
    }
    down::StartChunk m;
    m.slot = c.slot;
    m.epoch = c.epoch;
    m.tid = c.tid;
    m.att = c.att;
    m.gid = c.gid;
    m.version = c.v;
    m.prompt = samples_.FindRow(c.tid)->prompt;
    m.generated = s.tokens.ids;
    m.routing_bytes = static_cast<int64_t>(s.tokens.routing.size());
    m.chunk_tokens = c.chunk_tokens;
    m.max_new_tokens = c.max_new_tokens;
    m.greedy = c.tid.is_eval() || (greedy_first_ && c.tid.sample == 0);
    if (fragments_ != nullptr) {
      held_chunks_.push_back({c.worker, std::move(m), Clock::now()});
      return SendFragments();
    }
    Send(c.worker, std::move(m));
    metrics_->Count("dispatch/chunks");
  }

  // Fragments go to a device with the environment worker that hosts their instances. While there is none (its place is
  // being filled again) they wait here, and go back to the dispatcher after a while, so that nobody is taken for hung.
  void SendFragments() {
    while (!held_chunks_.empty() && !environment_of_.empty()) {
      HeldChunk held = std::move(held_chunks_.front());
      held_chunks_.pop_front();
      down::StartChunk& m = held.message;
      auto starts = fragments_->Starts(m.tid);
      if (!starts.ok()) {
        Feed(ev::ChunkFinished{held.worker, m.tid, m.att, ev::ChunkEnd::kError, "its start: " + starts.status().message()});
        continue;
      }
      m.starts = std::move(*starts);
      auto host = environment_of_.begin();
      std::advance(host, static_cast<int64_t>(static_cast<uint64_t>(m.tid.ordinal) % environment_of_.size()));
      m.environment = host->second.first;
      m.environment_token = host->second.second;
      Send(held.worker, std::move(m));
      metrics_->Count("dispatch/chunks");
    }
  }
  void GiveBackHeldChunks() {
    if (fragments_ == nullptr) return;
    SendFragments();
    while (!held_chunks_.empty() && Clock::now() - held_chunks_.front().since > std::chrono::seconds(5)) {
      const HeldChunk held = std::move(held_chunks_.front());
      held_chunks_.pop_front();
      Feed(ev::ChunkFinished{held.worker, held.message.tid, held.message.att, ev::ChunkEnd::kCancelled, "no environment worker is there"});
    }
  }
  void Do(const cmd::CancelChunk& c) {
    std::erase_if(held_chunks_, [&](const HeldChunk& h) { return h.message.tid == c.tid && h.message.att == c.att; });
    Send(c.worker, down::CancelChunk{c.tid, c.att});
  }
  void Do(const cmd::ForgetGroup& c) { Send(c.worker, down::ForgetGroup{c.gid}); }

  void Do(const cmd::StorePayload& c) {
    if (!EnsureRow(c.tid)) return;
    const storage::Payload payload = samples_.ToPayload(c.tid);
    const auto ref = payload_->Append(payload);
    if (!ref.ok()) {
      StorageFailed("payload: " + ref.status().message());
      return;
    }
    stored_.push_back(ev::PayloadStored{c.tid, c.att, static_cast<int64_t>(payload.prompt.size()), samples_.Find(c.tid)->tokens.size(),
                                        ref->digest, ref->file, ref->offset, ref->bytes});

  }

  void Do(const cmd::DiscardTokens& c) {
    samples_.Drop(c.tid);
    turns_->Forget(c.tid);
    rewards_.erase(c.tid);
    // Rows are shared by a group's samples and cheap to make again; the last one takes it along.
    if (c.tid.is_eval() || c.tid.sample == 0) samples_.DropRow(c.tid.ordinal, c.tid.is_eval());
  }

  // Tokens of a sample, from memory or from its payload.
  const StoredSample* Tokens(const SampleId& tid) {
    if (const StoredSample* s = samples_.Find(tid); s != nullptr && s->tokens.size() > 0) return s;
    const record::Enq* enq = controller_->FindPayload(tid);
    if (enq == nullptr || enq->payload_file < 0) return nullptr;
    auto payload = payload_reader_->Read({enq->payload_file, enq->payload_offset, enq->payload_bytes, enq->digest});
    if (!payload.ok()) {
      Warn("payload of " + ToString(tid) + ": " + payload.status().message());
      return nullptr;
    }
    samples_.Put(tid, SampleStore::FromPayload(*payload));
    return samples_.Find(tid);
  }

  void Do(const cmd::Grade& c) {
    const StoredSample* s = EnsureRow(c.tid) ? Tokens(c.tid) : nullptr;
    if (s == nullptr) {
      Feed(ev::Graded{c.grader, c.tid, c.att, GradeOutcome::kData, 0, {}, "its tokens cannot be read"});
      return;
    }
    if (fragments_ != nullptr) {  // its environments have given their verdict step by step
      auto verdict = fragments_->Judge(c.tid, s->tokens);
      up::Graded graded{c.tid, c.att, GradeOutcome::kOk, 0, {}, "", 0};
      if (verdict.ok()) {
        graded.reward = verdict->reward;
        graded.rewards = std::move(verdict->rewards);
      } else {
        graded.outcome = GradeOutcome::kData;
        graded.why = verdict.status().message();
      }
      metrics_->OnGraded(graded);
      Feed(ev::Graded{c.grader, c.tid, c.att, graded.outcome, graded.reward, std::move(graded.rewards), std::move(graded.why)});
      return;
    }
    const EncodedRow& row = *samples_.FindRow(c.tid);
    down::Grade m;
    m.tid = c.tid;
    m.att = c.att;
    m.prompt = row.question.prompt;
    m.answer = row.question.answer;
    m.fields.assign(row.question.fields.begin(), row.question.fields.end());
    m.text = rows_->ResponseText(s->tokens.ids);
    m.response_tokens = s->tokens.size();
    m.max_new_tokens = config_.rollout.max_new_tokens;
    m.ended = s->finish != storage::FinishReason::kLength;
    m.timeout_s = Seconds(c.timeout);
    Send(c.grader, std::move(m));
  }

  void Do(const cmd::EnvStep& c) {
    StoredSample* record = nullptr;
    if (c.turn != 0) {
      if (EnsureRow(c.tid) && Tokens(c.tid) != nullptr) record = samples_.Change(c.tid);
      if (record == nullptr) {
        Feed(ev::EnvStepped{.worker = c.worker, .tid = c.tid, .att = c.att, .turn = c.turn, .outcome = GradeOutcome::kData, .why = "its tokens cannot be read"});
        return;
      }
    }
    Send(c.worker, turns_->Step(c, record));
  }
  void Do(const cmd::AppendObservation& c) { turns_->Append(c); }

  // --- pool, training, weights ---
  void Do(const cmd::Drain& c) { Send(c.worker, down::Drain{c.slot, c.epoch}); }
  void Do(const cmd::Release& c) {
    metrics_->OnHold(c.worker.worker.value, Role::kNone, Now());
    Send(c.worker, down::Release{c.slot, c.epoch, c.need_bytes});
  }
  void Do(const cmd::Grant& c) {
    granted_[c.worker.worker.value] = c.role;
    Send(c.worker, down::Grant{c.slot, c.epoch, c.role});
  }
  void Do(const cmd::PullKv&) {}  // a hint; there is no path between workers' caches, so it is computed again
  void Do(const cmd::FetchState& c) {
    Send(c.worker, down::FetchState{c.slot, c.epoch, c.step, c.weights_digest, weights_address_[c.from.worker.value]});
  }
  // The ranks meet by a file that all of them see; its name is never used again, also not by a later controller.
  void Do(const cmd::FormGroup& c) {
    const std::string dir = request_.run_dir + "/comm";
    const Status made = fs_.MakeDirectories(dir);
    if (!made.ok()) {
      Feed(ev::GroupFormed{c.worker, c.group_epoch, made.message()});
      return;
    }
    Send(c.worker, down::FormGroup{c.group_epoch, c.rank, static_cast<int64_t>(c.members.size()),
                                   dir + "/" + std::to_string(journal_->ctl_epoch()) + "-" + std::to_string(c.group_epoch), kMeetSeconds});
  }
  void Do(const cmd::AbortStep& c) { Send(c.worker, down::AbortStep{c.slot, c.epoch, c.lease, c.step, c.group_epoch}); }
  void Do(const cmd::InitState& c) { Send(c.worker, down::InitState{}); }
  void Do(const cmd::RestoreState& c) {
    Send(c.worker, down::RestoreState{c.ckpt, c.step, c.weights_digest, c.ckpt >= 0 ? CheckpointDir(c.step) : ""});
  }
  void Do(const cmd::CopyRecovery& c) { Send(c.worker, down::CopyRecovery{c.step}); }
  void Do(const cmd::Publish& c) { Send(c.worker, down::Publish{c.v, c.digest}); }
  void Do(const cmd::Load& c) {
    down::Load m{c.v, c.digest, "", c.worker.worker == c.from.worker};
    if (config_.cluster.weight_transport == "stream" && !m.alias) m.address = weights_address_[c.from.worker.value];
    Send(c.worker, std::move(m));
  }
  void Do(const cmd::Admit& c) { Send(c.worker, down::Admit{c.v}); }

  // Every member of the training group has a command of its own with its share of the batch. All of them read
  // the whole of it (train/trainer.h says why), so they are told when all shares are together.
  void Do(const cmd::Train& c) {
    GatheredStep& step = gathering_;
    if (step.lease != c.lease) step = GatheredStep{c.lease, std::make_shared<std::vector<BatchRow>>(), 0, {}};
    const std::set<SampleId> masked(c.masked.begin(), c.masked.end());
    std::vector<int64_t> groups;
    for (const std::vector<SampleId>& group : c.groups) {
      groups.push_back(step.groups++);
      for (const SampleId& tid : group) {
        StatusOr<BatchRow> row = TrainingRow(c, tid, masked.contains(tid));
        if (!row.ok()) {
          Feed(ev::TrainFailed{c.worker, c.step, c.lease, row.status().message(), true});
          return;
        }
        row->gid = {groups.back()};
        step.rows->push_back(std::move(*row));
      }
    }
    step.members.emplace_back(c.worker, down::Train{c.slot, c.epoch, c.lease, c.step, c.v, c.total_rows, c.group_epoch, c.rank, c.world, std::move(groups)});
    if (static_cast<int64_t>(step.members.size()) < c.world) return;
    {
      const std::lock_guard lock(leased_mu_);
      leased_[c.lease] = {c.step, step.rows};
    }
    metrics_->OnBatch(*step.rows);
    WriteSamples(c, *step.rows);
    for (auto& [worker, message] : step.members) Send(worker, std::move(message));
    step = GatheredStep{};
  }

  StatusOr<BatchRow> TrainingRow(const cmd::Train& c, const SampleId& tid, bool masked) {
    if (!EnsureRow(tid)) return DataLoss("row " + ToString(tid) + " cannot be read");
    BatchRow row;
    row.tid = tid;
    const EncodedRow& encoded = *samples_.FindRow(tid);
    row.prompt = encoded.prompt;
    if (TrainsOnPairs(config_)) {
      const bool chosen = tid.sample == 0;
      row.response.ids = chosen ? encoded.response : encoded.rejected;
      row.loss_mask.assign(row.response.ids.size(), 1);
      row.reward = chosen ? 1 : 0;
      return row;
    }
    if (config_.job != "rl") {
      row.response.ids = encoded.response;
      row.loss_mask = encoded.loss_mask;
      return row;
    }
    const StoredSample* s = Tokens(tid);
    if (s == nullptr) return DataLoss("the payload of " + ToString(tid) + " cannot be read");
    row.response = s->tokens;
    row.truncated = s->finish == storage::FinishReason::kLength;
    row.reward = controller_->Reward(tid);
    if (!row.response.fragment.empty()) {  // of one version: it counts, or it does not
      const Version& made = row.response.versions.front().first;
      row.loss_mask.assign(1, masked && c.v.number - made.number > c.max_lag_versions ? 0 : 1);
      return row;
    }
    if (const auto named = rewards_.find(tid); named != rewards_.end()) {
      for (const RewardFunction& f : config_.reward.functions) {
        const auto it = std::ranges::find(named->second, f.name, [](const auto& entry) { return entry.first; });
        if (it != named->second.end()) row.components.push_back(it->second);
      }
    }
    row.loss_mask = s->loss_mask;
    row.loss_mask.resize(row.response.ids.size(), 1);
    if (masked) MaskOld(c, row);
    return row;
  }

  // on_stale: mask. Tokens older than the bound carry no loss; across lineages a version's number is its
  // distance from the common root, so numbers compare.
  static void MaskOld(const cmd::Train& c, BatchRow& row) {
    size_t at = 0;
    for (const auto& [version, count] : row.response.versions) {
      for (int64_t i = 0; i < count; ++i, ++at) {
        if (c.v.number - version.number > c.max_lag_versions) row.loss_mask[at] = 0;
      }
    }
  }

  StatusOr<std::shared_ptr<const std::vector<BatchRow>>> LeasedRows(int64_t lease, StepNumber step) {
    const std::lock_guard lock(leased_mu_);
    const auto it = leased_.find(lease);
    if (it == leased_.end() || it->second.first != step) {
      return NotFound("lease " + std::to_string(lease) + " of step " + std::to_string(step.value) + " is not open");
    }
    return std::shared_ptr<const std::vector<BatchRow>>(it->second.second);
  }
  void DropLease(int64_t lease) {
    const std::lock_guard lock(leased_mu_);
    leased_.erase(lease);
  }

  // --- checkpoints ---
  void Do(const cmd::WriteCheckpoint& c) {
    JoinCheckpoint();
    auto writer = storage::CheckpointWriter::Begin(fs_, checkpoints_, c.step);
    if (!writer.ok()) {
      Feed(ev::CheckpointFailed{c.ckpt, writer.status().message()});
      return;
    }
    checkpoint_ = std::move(*writer);
    pending_checkpoint_ = c;
    Send(c.worker, down::WriteCheckpoint{c.ckpt, c.step, checkpoint_->dir()});
  }

  // The trainer's files are there: the rest (sync, manifest, rename, read back) needs no tensor and runs
  // beside the loop.
  void CommitCheckpoint(const up::CheckpointFiles& files) {
    if (!pending_checkpoint_ || pending_checkpoint_->ckpt != files.ckpt) return;
    const cmd::WriteCheckpoint c = *std::exchange(pending_checkpoint_, std::nullopt);
    if (!files.error.empty()) {
      Feed(ev::CheckpointFailed{c.ckpt, files.error});
      return;
    }
    storage::Manifest manifest;
    manifest.run_id = request_.run_id;
    manifest.ckpt = c.ckpt;
    manifest.step = c.step;
    manifest.version = c.v;
    manifest.cut = journal_->next_lsn();
    manifest.config_digest = request_.config_digest;
    manifest.weights_digest = files.weights_digest;
    manifest.instruction_set = files.instruction_set;
    manifest.notes["data_identity"] = rows_->identity();
    checkpoint_thread_ = std::jthread([this, manifest, c, write_s = files.seconds](std::stop_token) {
      const auto begin = Clock::now();
      const auto committed = checkpoint_->Commit(manifest);
      const double seconds = write_s + std::chrono::duration<double>(Clock::now() - begin).count();
      if (committed.ok()) {
        inbox_.Put(CheckpointResult{ev::CheckpointWritten{c.ckpt, c.step, *committed, manifest.weights_digest}, seconds});
      } else {
        inbox_.Put(CheckpointResult{ev::CheckpointFailed{c.ckpt, committed.status().message()}, seconds});
      }
    });
  }
  void JoinCheckpoint() {
    if (checkpoint_thread_.joinable()) checkpoint_thread_.join();
  }

  void Do(const cmd::VerifyCheckpoint& c) {
    const std::string dir = CheckpointDir(c.step);
    auto verified = storage::VerifyCheckpoint(fs_, dir, c.manifest_digest);
    Status status = verified.status();
    if (verified.ok() && verified->notes["data_identity"] != rows_->identity()) {
      status = FailedPrecondition(dir + " belongs to other data (identity " + verified->notes["data_identity"] + ", now " + rows_->identity() + ")");
    }
    Feed(ev::CheckpointVerified{c.ckpt, status.ok() ? "" : status.message()});
  }
  void Do(const cmd::DeleteCheckpoint& c) {
    const Status removed = storage::RemoveCheckpoint(fs_, checkpoints_, c.step);
    if (!removed.ok()) Warn("checkpoint: " + removed.message());
  }
  void Do(const cmd::SaveFinal& c) { Send(c.worker, down::SaveFinal{request_.run_dir + "/final"}); }

  // --- to people and files ---
  void Do(const cmd::Append&) {}  // written before
  void Do(const cmd::StepReport& c) {
    const Status written = metrics_->WriteStep(c, controller_->View(), Now());
    if (!written.ok()) Warn("metrics: " + written.message());
    result_.steps = c.step.value;
  }
  void Do(const cmd::EvalReport& c) {
    std::map<std::string, double> more;
    if (fragments_ != nullptr) {
      const ReturnSummary r = fragments_->TakeReturns();
      more["eval/return/mean"] = r.mean;
      more["eval/return/std"] = r.deviation;
      more["eval/return/low"] = r.low;
      more["eval/return/high"] = r.high;
      result_returns_ = r;
    }
    const Status written = metrics_->WriteEval(c, Now(), more);
    if (!written.ok()) Warn("metrics: " + written.message());
  }
  void Remember(const JournalRecord& r) {
    if (const auto* enq = std::get_if<record::Enq>(&r); enq != nullptr && fragments_ != nullptr) fragments_->Remember(*enq);
    if (const auto* g = std::get_if<record::Graded>(&r); g != nullptr && !g->rewards.empty()) rewards_[g->tid] = g->rewards;
    const auto* e = std::get_if<record::EvalResult>(&r);
    if (e == nullptr || e->total == 0) return;
    const double accuracy = static_cast<double>(e->correct) / static_cast<double>(e->total);
    if (e->step.value == 0) result_.accuracy_before = accuracy;
    result_.accuracy_after = accuracy;
  }
  void Do(const cmd::Warn& c) { Warn(c.line); }
  void Warn(const std::string& line) {
    last_warning_ = line;
    observe::Log(observe::LogLevel::kWarn, "controller", {{"why", line}});
  }

  void Do(const cmd::Finish& c) {
    finished_ = true;
    result_.exit_code = c.code;
    result_.why = c.why;
    result_.stopped = stop_seen_ > 0;
  }

  void CheckSignals() {
    const int count = request_.stop_signals == nullptr ? 0 : request_.stop_signals->load();
    while (stop_seen_ < count && stop_seen_ < 2) {
      ++stop_seen_;
      Feed(ev::StopRequested{stop_seen_ == 1 ? "signal" : "second signal", stop_seen_ > 1});
    }
  }

  void WriteSamples(const cmd::Train& c, const std::vector<BatchRow>& batch) {
    if (config_.job != "rl" || config_.observe.samples_per_step == 0) return;
    std::vector<observe::SampleRow> lines;
    int64_t left = config_.observe.samples_per_step < 0 ? static_cast<int64_t>(batch.size()) : config_.observe.samples_per_step;
    for (const BatchRow& row : batch) {
      if (left-- <= 0) break;
      observe::SampleRow line;
      line.tid = row.tid;
      line.prompt = samples_.FindRow(row.tid)->question.prompt;
      line.answer = samples_.FindRow(row.tid)->question.answer;
      line.text = rows_->ResponseText(row.response.ids);
      line.ids = row.response.ids;
      line.logprobs = row.response.logprobs;
      if (environment_) line.loss_mask = row.loss_mask;
      for (const auto& [version, count] : row.response.versions) line.versions.insert(line.versions.end(), static_cast<size_t>(count), version.number);
      line.reward = row.reward;
      if (const auto named = rewards_.find(row.tid); named != rewards_.end()) line.rewards = {named->second.begin(), named->second.end()};
      line.ended = !row.truncated;
      lines.push_back(std::move(line));
    }
    const Status written = observe::WriteSamples(request_.run_dir, c.step.value, lines);
    if (!written.ok()) Warn("samples: " + written.message());
  }

  void Show() {
    const scheduler::ControllerView view = controller_->View();
    RunProgress p;
    p.view = view;
    p.steps = config_.train.steps;
    const std::map<std::string, double>& last = metrics_->last();
    const auto of = [&](const char* name) -> std::optional<double> {
      const auto it = last.find(name);
      return it == last.end() ? std::nullopt : std::optional<double>(it->second);
    };
    if (config_.job == "rl") {
      p.reward = of("critic/score/mean");
      p.response_tokens = of("response_length/mean");
      p.lag_mean = of("staleness/mean");
      if (const auto lag = of("staleness/max")) p.lag_max = static_cast<int64_t>(*lag);
      p.tokens_per_s = of("rollout/tok_s");
    } else {
      p.loss = of("actor/loss");
      p.tokens_per_s = of("perf/throughput");
    }
    if (p.reward) best_reward_ = std::max(best_reward_.value_or(*p.reward), *p.reward);
    p.best_reward = best_reward_;
    if (result_.accuracy_before >= 0) p.accuracy_before = result_.accuracy_before;
    if (result_.accuracy_after >= 0) p.accuracy = result_.accuracy_after;
    p.last_warning = last_warning_;
    p.elapsed = Now().since_start;
    time_left_.OnStep(view.step.value, Now());
    p.left = time_left_.Estimate(config_.train.steps);
    if (request_.on_progress) request_.on_progress(p);
    nlohmann::json status = {{"phase", view.phase}, {"step", std::max<int64_t>(view.step.value, 0)}, {"steps", config_.train.steps},
                             {"version", ToString(view.version)}, {"open_groups", view.open_groups}, {"running", view.running},
                             {"awaiting", view.awaiting}, {"queued", view.queued}, {"leased", view.leased}, {"in_flight", view.in_flight},
                             {"restarts", view.restarts}, {"refused", view.refused + hub_->refused_calls()},
                             {"workers", nlohmann::json::array()}, {"pid", getpid()}, {"last_warning", last_warning_},
                             {"elapsed_s", Seconds(p.elapsed)}};
    const auto put = [&](const char* name, const auto& value) {
      if (value) status[name] = *value;
    };
    if (!config_.cluster.pace.empty()) status["paced"] = config_.cluster.pace;
    put("reward", p.reward);
    put("loss", p.loss);
    put("accuracy", p.accuracy);
    put("tokens_per_s", p.tokens_per_s);
    put("lag_mean", p.lag_mean);
    if (p.left) status["left_s"] = Seconds(*p.left);
    for (const auto& [place, connection] : connection_of_) {
      status["workers"].push_back({{"place", place}, {"inc", inc_of_[place].value}, {"pid", launcher_.Pid(place)},
                                   {"peak_bytes", metrics_->peak_bytes().contains(place) ? metrics_->peak_bytes().at(place) : 0}});
    }
    // A picture of now: renamed into place so that a reader never sees half, but not worth a sync.
    const std::string path = request_.run_dir + "/status.json";
    std::ofstream(path + ".tmp") << status.dump(1) << "\n";
    std::error_code error;
    std::filesystem::rename(path + ".tmp", path, error);
  }

  void WriteSummary() {
    nlohmann::json s = {{"exit", result_.exit_code}, {"why", result_.why}, {"steps", std::max<int64_t>(controller_->View().step.value, 0)},
                        {"job", config_.job}, {"name", config_.name}, {"stopped", result_.stopped},
                        {"accuracy", nlohmann::json::object()}, {"seconds", nlohmann::json::object()},
                        {"peak_bytes", nlohmann::json::object()}, {"drops", nlohmann::json::object()}, {"version", BuildVersion()}, {"policy_version", ToString(controller_->View().version)}};
    if (result_.accuracy_before >= 0) s["accuracy"]["before"] = result_.accuracy_before;
    if (result_.accuracy_after >= 0) s["accuracy"]["after"] = result_.accuracy_after;
    if (const auto before = metrics_->return_before()) s["return"]["before"] = *before;
    if (result_returns_) {
      const ReturnSummary& r = *result_returns_;
      s["return"].update({{"after", r.mean}, {"interval", {r.low, r.high}}, {"episodes", r.episodes}, {"deviation", r.deviation}});
    }
    for (const auto& [phase, seconds] : metrics_->phase_seconds()) s["seconds"][phase] = seconds;
    s["seconds"]["total"] = Seconds(Now().since_start);
    for (const auto& [place, bytes] : metrics_->peak_bytes()) {
      s["peak_bytes"][PlaceName(place)] = bytes;
    }
    s["peak_bytes"]["controller"] = PeakBytes();
    const auto view = controller_->View();
    for (size_t i = 0; i < view.drops.size(); ++i) {
      if (view.drops[i] > 0) s["drops"][Name(static_cast<DropReason>(i))] = view.drops[i];
    }
    if (!config_.cluster.pace.empty()) {
      const PaceCount pace = metrics_->paced();
      const double missed = pace.steps > 0 ? static_cast<double>(pace.missed) / static_cast<double>(pace.steps) : 0;
      s["paced"] = {{"pace", config_.cluster.pace}, {"scale", config_.cluster.pace_scale}, {"steps", pace.steps}, {"missed", pace.missed},
                    {"valid", missed <= kMissedPace}, {"scale_needed", pace.scale_needed}};
      char text[240];
      std::snprintf(text, sizeof(text), "paced: times are those of %s, stretched %g times; %ld of %ld steps missed their pace",
                    config_.cluster.pace.c_str(), config_.cluster.pace_scale, static_cast<long>(pace.missed), static_cast<long>(pace.steps));
      result_.paced = text;
      if (missed > kMissedPace) {
        std::snprintf(text, sizeof(text), " (%.1f %%, more than 1 %%): its times are INVALID; use cluster.pace_scale=%.3g", 100 * missed,
                      1.2 * std::max(pace.scale_needed, config_.cluster.pace_scale));
        result_.paced += text;
      }
      s["paced_note"] = result_.paced;
    }
    s["commit"] = BuildCommit();
    s["run_id"] = request_.run_id;
    s["finished"] = result_.exit_code == 0 && !result_.stopped;
    const Status written = fs_.WriteFile(request_.run_dir + "/summary.json", s.dump(2) + "\n");
    if (!written.ok()) observe::Log(observe::LogLevel::kWarn, "summary", {{"why", written.message()}});
  }
  static int64_t PeakBytes() {
    struct rusage usage {};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss * 1024;
  }

  RunRequest request_;
  JobConfig config_;
  scheduler::ControllerOptions options_;
  bool greedy_first_ = false;  // the first sample of a group is the greedy baseline of the others (ReMax)
  RealFileSystem fs_;
  Clock::time_point start_;
  std::unique_ptr<RowSource> rows_;
  std::unique_ptr<storage::JournalWriter> journal_;
  std::unique_ptr<storage::PayloadWriter> payload_;
  std::unique_ptr<storage::PayloadReader> payload_reader_;
  std::unique_ptr<scheduler::Controller> controller_;
  std::unique_ptr<RunMetrics> metrics_;
  SampleStore samples_;
  std::unique_ptr<Turns> turns_;
  bool environment_ = false;                            // samples are episodes of several turns
  std::unique_ptr<Fragments> fragments_;                // of a policy of control tasks
  struct HeldChunk {
    WorkerRef worker;
    down::StartChunk message;
    Clock::time_point since;
  };
  std::deque<HeldChunk> held_chunks_;                   // fragments that wait for an environment worker
  std::map<int64_t, std::pair<std::string, std::string>> environment_of_;  // place -> address, token
  std::optional<ReturnSummary> result_returns_;  // of the newest evaluation of a control task
  Mailbox<Incoming> inbox_;
  Launcher launcher_;
  std::unique_ptr<Hub> hub_;

  static constexpr auto kGroupCommit = std::chrono::milliseconds(20);
  static constexpr double kMissedPace = 0.01;           // of the steps of a paced run, beyond which its times mean nothing
  static constexpr double kMeetSeconds = 20;            // for the ranks of a training group to find each other
  bool group_commit_ = false;
  GroupCommit syncing_{fs_};
  std::optional<Clock::time_point> unsynced_since_;     // records handed to the operating system alone

  std::vector<scheduler::Command> todo_;
  std::vector<scheduler::Event> stored_;
  std::map<int64_t, Clock::time_point> due_;            // places whose worker is to be started
  std::map<ConnectionId, int64_t> place_of_;
  std::map<int64_t, ConnectionId> connection_of_;
  std::map<int64_t, std::string> weights_address_;
  std::map<int64_t, Incarnation> inc_of_;
  std::map<int64_t, int64_t> last_seq_;
  std::map<int64_t, Role> granted_;                     // by place, the last
  std::set<int64_t> lost_;                              // connection lost, process not yet reaped
  struct GatheredStep {
    int64_t lease = -1;
    std::shared_ptr<std::vector<BatchRow>> rows;
    int64_t groups = 0;
    std::vector<std::pair<WorkerRef, down::Train>> members;
  };
  GatheredStep gathering_;
  std::mutex leased_mu_;
  std::map<int64_t, std::pair<StepNumber, std::shared_ptr<const std::vector<BatchRow>>>> leased_;
  std::string checkpoints_;                             // folder
  std::unique_ptr<storage::CheckpointWriter> checkpoint_;
  std::optional<cmd::WriteCheckpoint> pending_checkpoint_;
  std::jthread checkpoint_thread_;

  RunResult result_;
  bool finished_ = false;
  bool storage_failed_ = false;
  int stop_seen_ = 0;
  std::map<SampleId, std::vector<std::pair<std::string, double>>> rewards_;  // by name, as graded
  std::optional<double> best_reward_;
  observe::TimeLeft time_left_;
  std::string last_warning_;
};

}  // namespace

StatusOr<RunResult> RunController(const RunRequest& request) {
  ControllerProcess process(request);
  return process.Run();
}

}  // namespace tidepool::workers
