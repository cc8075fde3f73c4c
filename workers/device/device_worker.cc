#include "workers/device/device_worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "core/config/load.h"
#include "core/observe/log.h"
#include "core/observe/trace_writer.h"
#include "core/sample/codec.h"
#include "workers/data/offered_state.h"
#include "workers/data/weights_service.h"
#include "workers/device/device_roles.h"
#include "workers/device/held_tokens.h"
#include "workers/device/memory_plan.h"
#include "workers/device/memory_proof.h"
#include "workers/device/pacer.h"
#include "workers/device/pulse.h"
#include "workers/device/torch_threads.h"
#include "workers/net/auth.h"
#include "workers/net/link.h"
#include "workers/net/mailbox.h"
#include "workers/net/resolved_config.h"
#include "workers/net/worker_trace.h"

namespace tidepool::workers {
namespace {

using scheduler::event::ChunkEnd;
using Clock = std::chrono::steady_clock;

template <typename... F>
struct Overload : F... {
  using F::operator()...;
};
template <typename... F>
Overload(F...) -> Overload<F...>;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Rows of the time line.
constexpr int kRolloutRow = 1;
constexpr int kActorRow = 2;

class DeviceWorker {
 public:
  explicit DeviceWorker(DeviceWorkerOptions options) : options_(std::move(options)) {}

  int Run() {
    const Status attached = Attach();
    if (!attached.ok()) {
      observe::Log(observe::LogLevel::kError, "attach", {{"why", attached.message()}});
      return 2;
    }
    while (exit_code_ < 0) {
      const bool busy = CanStep();
      std::deque<LinkEvent> events = std::exchange(later_, {});
      for (LinkEvent& event : inbox_.TakeAll(busy || !events.empty() ? std::chrono::milliseconds(0)
                                                                     : std::chrono::milliseconds(20))) {
        events.push_back(std::move(event));
      }
      for (LinkEvent& event : events) {
        if (auto* closed = std::get_if<LinkClosed>(&event)) {
          observe::Log(observe::LogLevel::kWarn, "controller_lost", {{"why", closed->why}});
          exit_code_ = 3;
          break;
        }
        HandleCommand(std::get<Command>(event));
        if (exit_code_ >= 0) break;
      }
      if (exit_code_ < 0 && CanStep()) EngineStep();
      if (trace_ && Clock::now() >= next_flush_) {  // so that a look at a run in progress is of now
        next_flush_ = Clock::now() + std::chrono::seconds(1);
        (void)trace_->Flush();
      }
    }
    JoinCheckpoint();
    heartbeat_.request_stop();
    if (trace_) (void)trace_->Flush();  // the run's end: a trace that cannot be written is only shorter
    return exit_code_;
  }

 private:
  // --- attaching ---
  Status Attach() {
    TP_ASSIGN_OR_RETURN(token_, ReadTokenFile(options_.token_file));
    TP_ASSIGN_OR_RETURN(weights_server_,
                        WeightsServer::Start("127.0.0.1", token_, 1 << 20, [this](const WantedBytes& w) {
                          return w.step.valid() ? state_.Read(w.step) : PublishedFor(w.version);
                        }));
    LinkOptions link;
    link.address = options_.address;
    link.token = token_;
    link.control_file = options_.control_file;
    link.hello.run_id = options_.run_id;
    link.hello.place = options_.place;
    link.hello.kind = scheduler::WorkerKind::kDevice;
    link.hello.device_bytes = MachineMemory();
    link.hello.weights_address = weights_server_->address();
    TP_ASSIGN_OR_RETURN(
        link_, Link::Connect(link, [this](std::vector<LinkEvent> e) { inbox_.PutAll(std::move(e)); }));
    heartbeat_ = std::jthread([this](std::stop_token stop) {
      while (!stop.stop_requested()) {
        link_->Send(pulse_.Take());
        std::unique_lock lock(heartbeat_mu_);
        heartbeat_wake_.wait_for(lock, stop, std::chrono::milliseconds(heartbeat_ms_.load()),
                                 [] { return false; });
      }
    });
    return OkStatus();
  }

  // A controller has begun that knows nothing of this process: what was done for earlier ones is over, and it
  // is told what is here. Nothing changes here before it has decided.
  void Attached(int64_t ctl_epoch) {
    JoinCheckpoint();
    link_->Begin(ctl_epoch);
    up::Offer frame;
    if (inc_.valid()) {
      frame.slot = slot_;
      frame.epoch = epoch_;
      frame.role = role_;
      if (const auto digest = roles_->WeightsDigest(); digest.ok()) {
        frame.holds = holds_;
        frame.holds_digest = *digest;
        frame.state_step = state_.step();
        frame.state_digest = *digest;
      }
      for (const auto& [tid, att] : held_.TakePartial()) {
        if (roles_->rollout() != nullptr) roles_->rollout()->Cancel(tid, att);
        paced_.erase({tid, att});
      }
      for (up::OfferedAttempt& attempt : held_.Offered()) {
        if (frame.attempts.size() == up::kOfferedAttempts) {
          link_->Send(frame);
          frame.attempts.clear();
        }
        frame.attempts.push_back(attempt);
      }
    }
    frame.last = true;
    link_->Send(std::move(frame));
  }

  void Welcomed(const down::Welcome& welcome) {
    link_->SetLease(welcome.lease_s,
                    std::max(LostAfterSeconds(welcome.lease_s), config_.cluster.reattach_grace_s));
    if (inc_.valid() && welcome.inc == inc_) return;  // it goes on with what is here
    ForgetAll();
    inc_ = welcome.inc;
    slot_ = welcome.slot;
    StatusOr<JobConfig> config = ParseResolved(welcome.config_yaml);
    if (!config.ok()) {
      observe::Log(observe::LogLevel::kError, "config", {{"why", config.status().message()}});
      exit_code_ = 2;
      return;
    }
    config_ = std::move(*config);
    heartbeat_ms_.store(static_cast<int64_t>(config_.cluster.heartbeat_s * 1000));
    SetTorchThreads(static_cast<int>(config_.cluster.threads_per_slot));
    auto pacer = Pacer::Create(config_.cluster);
    if (!pacer.ok()) {
      observe::Log(observe::LogLevel::kError, "pace", {{"why", pacer.status().message()}});
      exit_code_ = 2;
      return;
    }
    pacer_ = std::move(*pacer);
    pulse_.SetPacer(pacer_.get());
    JobConfig of_slot = config_;
    of_slot.model.path = welcome.model_dir;
    of_slot.model.init.reset();
    // What cannot be predicted is not set aside; the controller asks for no proof then.
    if (const auto plan = PlanMemory(of_slot); plan.ok())
      plan_ = plan->processes[static_cast<size_t>(slot_.value)];
    roles_ = std::make_unique<DeviceRoles>(config_, welcome.model_dir, welcome.run_id,
                                           SharedBlock::FolderOf(welcome.run_id, token_));
    if (config_.observe.trace)
      trace_ = OpenWorkerTrace(welcome, inc_, "device", {{kRolloutRow, "rollout"}, {kActorRow, "actor"}});
    held_.SetKept(config_.cluster.reattach_grace_s > 0);
    link_->SetLease(welcome.lease_s,
                    std::max(LostAfterSeconds(welcome.lease_s), config_.cluster.reattach_grace_s));
  }

  // The controller takes this process for a new one, whatever it was before.
  void ForgetAll() {
    JoinCheckpoint();
    (void)Withdraw();  // who still reads the state after its deadline fails by digest
    LeaveGroup();
    held_.Clear();
    paced_.clear();
    role_ = Role::kNone;
    epoch_ = {};
    admitted_ = holds_ = {};
    const std::lock_guard lock(published_mu_);
    published_.clear();
  }

  // --- commands ---
  void HandleCommand(Command& message) {
    if (message.ctl_epoch < link_->ctl_epoch()) {  // its controller has a successor
      ++refused_;
      return;
    }
    if (const auto* attached = std::get_if<down::Attached>(&message.body))
      return Attached(attached->ctl_epoch);
    if (const auto* welcome = std::get_if<down::Welcome>(&message.body)) return Welcomed(*welcome);
    if (roles_ == nullptr) {
      ++refused_;
      return;
    }
    std::visit(Overload{
                   [&](down::StartChunk& c) { StartChunk(c); },
                   [&](const down::CancelChunk& c) { Cancel(c); },
                   [&](const down::ForgetGroup& c) { ForgetGroup(c.gid); },
                   [&](const down::Resend& c) { Resend(c); },
                   [&](const down::Drain& c) { Drain(c); },
                   [&](const down::Release& c) { Release(c); },
                   [&](const down::Grant& c) { Grant(c); },
                   [&](const down::InitState&) { Init(); },
                   [&](const down::RestoreState& c) { Restore(c); },
                   [&](const down::FetchState& c) { FetchState(c); },
                   [&](const down::FormGroup& c) { FormGroup(c); },
                   [&](const down::Train& c) { Train(c); },
                   [&](const down::AbortStep& c) { AbortStep(c); },
                   [&](const down::CopyRecovery& c) { CopyRecovery(c); },
                   [&](const down::Publish& c) { Publish(c); },
                   [&](const down::Load& c) { Load(c); },
                   [&](const down::Admit& c) { admitted_ = c.v; },
                   [&](const down::WriteCheckpoint& c) { WriteCheckpoint(c); },
                   [&](const down::SaveFinal& c) { SaveFinal(c); },
                   [&](const down::Shutdown&) { exit_code_ = 0; },
                   [&](const auto&) { ++refused_; },
               },
               message.body);
  }

  // True if the command is about the lease as it is now.
  bool Current(SlotId slot, LeaseEpoch epoch) {
    if (slot == slot_ && epoch == epoch_) return true;
    ++refused_;
    observe::Log(observe::LogLevel::kWarn, "refused_epoch",
                 {{"why", "slot " + std::to_string(slot.value) + " epoch " + std::to_string(epoch.value) +
                              " here " + std::to_string(epoch_.value)}});
    return false;
  }

  void StartChunk(down::StartChunk& c) {
    if (!Current(c.slot, c.epoch)) return;
    const SampleId tid = c.tid;
    const int32_t att = c.att;
    held_.Begin(tid, att, c.gid, c.generated);
    if (role_ != Role::kRollout || roles_->rollout() == nullptr || c.version != admitted_) {
      End(tid, att, ChunkEnd::kCancelled, "this worker does not serve version " + ToString(c.version));
      return;
    }
    if (pacer_) paced_[{tid, att}] = static_cast<int64_t>(c.prompt.size() + c.generated.size());
    const Status added = roles_->rollout()->Add(std::move(c));
    if (added.ok() || added.code() == StatusCode::kAlreadyExists) return;
    const bool data = added.code() == StatusCode::kInvalidArgument;
    End(tid, att, data ? ChunkEnd::kDataError : ChunkEnd::kError, added.message());
  }

  // A chunk is over without more tokens.
  void End(const SampleId& tid, int32_t att, ChunkEnd end, const std::string& why) {
    up::StepTokens answer;
    answer.chunks.push_back({tid, att, {}, true, end, why});
    held_.Say(answer.chunks.back());
    link_->Send(std::move(answer));
  }

  void Resend(const down::Resend& c) {
    up::StepTokens again;
    again.chunks = held_.From(c.tid, c.att, c.from);
    if (!again.chunks.empty()) link_->Send(std::move(again));
  }

  void Cancel(const down::CancelChunk& c) {
    if (roles_->rollout() != nullptr) roles_->rollout()->Cancel(c.tid, c.att);
    paced_.erase({c.tid, c.att});
    End(c.tid, c.att, ChunkEnd::kCancelled, "");
    held_.Drop(c.tid, c.att);
  }

  void ForgetGroup(GroupId gid) {
    if (roles_->rollout() != nullptr) roles_->rollout()->ForgetGroup(gid);
    held_.Forget(gid);
  }

  void Drain(const down::Drain& c) {
    if (c.slot != slot_ || c.epoch < epoch_) {
      ++refused_;
      return;
    }
    epoch_ = c.epoch;
    paced_.clear();
    up::StepTokens tokens;
    if (roles_->rollout() != nullptr) {
      for (const auto& [tid, att] : roles_->rollout()->Drain())
        held_.Say(tokens.chunks.emplace_back(up::ChunkDelta{tid, att, {}, true, ChunkEnd::kDrained, ""}));
    }
    if (!tokens.chunks.empty()) link_->Send(std::move(tokens));
    link_->Send(up::Drained{.slot = c.slot, .epoch = c.epoch});
  }

  void Release(const down::Release& c) {
    if (c.slot != slot_ || c.epoch < epoch_) {
      ++refused_;
      return;
    }
    epoch_ = c.epoch;
    const int64_t before = PrivateResidentBytes();
    roles_->Release(role_);
    const int64_t free = FreeBytes();
    if (free < c.need_bytes) {  // the controller will quarantine this slot
      observe::Log(observe::LogLevel::kWarn, "released",
                   {{"role", Name(role_)},
                    {"resident_before", before},
                    {"resident_after", PrivateResidentBytes()},
                    {"counted", roles_->held().total()},
                    {"free", free},
                    {"need", c.need_bytes}});
    }
    role_ = Role::kNone;
    link_->Send(up::Released{.slot = c.slot, .epoch = c.epoch, .free_bytes = free});
  }

  // What this slot may still use of its share of the machine (memory_proof.h).
  int64_t FreeBytes() {
    HeldMemory held{.roles = roles_->held(),
                    .further = roles_->further_bytes(),
                    .resident_private = PrivateResidentBytes()};
    const std::lock_guard lock(published_mu_);
    for (const auto& [version, copy] : published_) held.further += static_cast<int64_t>(copy.first->size());
    // Workers that were started by hand may be on machines of their own: how many share this one is not
    // known.
    const int64_t sharing = config_.cluster.launch_workers ? config_.cluster.slots : 1;
    return ProvenFree(MachineMemory() / sharing, plan_, held);
  }

  void Grant(const down::Grant& c) {
    if (c.slot != slot_ || c.epoch < epoch_) {
      ++refused_;
      return;
    }
    epoch_ = c.epoch;
    // A role that it holds already is confirmed (its drain was called off): caches and weights stay.
    const bool held = role_ == c.role;
    role_ = c.role;
    if (c.role == Role::kRollout && !held) {
      const Status ready = roles_->PrepareRollout();
      if (!ready.ok()) {
        observe::Log(observe::LogLevel::kError, "grant", {{"why", ready.message()}});
        exit_code_ = 3;  // a slot that cannot hold its role: the controller sees this worker end and says why
        return;
      }
    }
    link_->Send(up::Granted{.slot = c.slot, .epoch = c.epoch});
  }

  void Init() {
    pulse_.Begin("init_state");
    const auto span = Span("init_state", observe::kSystemSpan);
    holds_ = {};
    const Status status = Withdraw() ? roles_->InitState() : Unavailable("the old state is still being read");
    ReportState({0}, status);
  }

  void Restore(const down::RestoreState& c) {
    pulse_.Begin("restore_state");
    const auto span = Span("restore_state", observe::kSystemSpan);
    JoinCheckpoint();
    holds_ = {};
    const Status status = !Withdraw()   ? Unavailable("the old state is still being read")
                          : c.ckpt >= 0 ? roles_->RestoreFromCheckpoint(c.dir, c.step)
                                        : roles_->RestoreFromRecovery(c.step);
    ReportState(c.step, status);
  }

  void FetchState(const down::FetchState& c) {
    if (!Current(c.slot, c.epoch)) return;
    pulse_.Begin("fetch_state");
    const auto span = Span("fetch_state", observe::kWeightsSpan);
    const auto start = Clock::now();
    holds_ = {};
    const Status fetched = Withdraw() ? roles_->FetchState(c.address, token_, c.step)
                                      : Unavailable("another newcomer still reads the old state here");
    if (pacer_ && fetched.ok()) pacer_->Keep(start, pacer_->CopyState());
    ReportState(c.step, fetched);
  }

  // --- the training group ---
  void FormGroup(const down::FormGroup& c) {
    pulse_.Begin("form_group");
    const auto span = Span("form_group", observe::kSystemSpan);
    group_.reset();  // the old sockets close before new ones are opened: a peer that still waits there learns
                     // of it
    group_epoch_ = 0;
    auto group = comm::MakeGlooGroup({.store = c.store,
                                      .rank = static_cast<int>(c.rank),
                                      .size = static_cast<int>(c.world),
                                      .timeout_s = c.timeout_s});
    if (group.ok()) {
      group_ = std::move(*group);
      group_epoch_ = c.group_epoch;
    }
    link_->Send(
        up::GroupFormed{.group_epoch = c.group_epoch, .error = group.ok() ? "" : group.status().message()});
    pulse_.Begin("idle");
  }

  // A step that this worker is in ends in Train's progress call; one that it never began, or that is over,
  // here.
  void AbortStep(const down::AbortStep& c) {
    if (!Current(c.slot, c.epoch)) return;
    LeaveGroup();
    up::StepAborted answer{.lease = c.lease, .step = state_.step()};
    if (const auto digest = roles_->WeightsDigest(); digest.ok()) answer.weights_digest = *digest;
    link_->Send(std::move(answer));
  }
  // The others of the group see the sockets close and do not wait for this rank.
  void LeaveGroup() {
    group_.reset();
    group_epoch_ = 0;
  }
  // Commands that came while a step is going on wait for its end, but one that calls it off.
  bool CalledOff(int64_t lease) {
    for (LinkEvent& event : inbox_.TakeAll(std::chrono::milliseconds(0))) later_.push_back(std::move(event));
    return std::ranges::any_of(later_, [&](const LinkEvent& event) {
      const auto* message = std::get_if<Command>(&event);
      // The controller is gone, or another one has begun, which knows nothing of this step.
      if (message == nullptr || std::holds_alternative<down::Attached>(message->body)) return true;
      const auto* abort = std::get_if<down::AbortStep>(&message->body);
      return abort != nullptr && abort->lease == lease;
    });
  }

  // What peers may fetch: the state of a step, as long as no optimizer step is under way.
  // Nobody reads it from now on: waits for those that do. False: one is still there at its deadline.
  bool Withdraw() { return state_.Withdraw(std::chrono::seconds(30)); }
  // The state of `step` is whole and stays so until Withdraw.
  void Offer(StepNumber step) {
    if (auto parts = roles_->StateParts(); parts.ok()) state_.Offer(step, std::move(*parts));
  }

  void ReportState(StepNumber step, const Status& status) {
    up::StateReady ready{.step = step, .error = status.ok() ? "" : status.message()};
    if (status.ok()) Offer(step);
    if (status.ok()) {
      const auto digest = roles_->WeightsDigest();
      if (digest.ok())
        ready.weights_digest = *digest;
      else
        ready.error = digest.status().message();
    }
    link_->Send(std::move(ready));
    pulse_.Begin("idle");
  }

  void Train(const down::Train& c) {
    if (!Current(c.slot, c.epoch)) return;
    if (role_ != Role::kActor) {
      return TrainFailed(c, "this worker does not hold the actor role");
    }
    const auto start = Clock::now();
    pulse_.Begin("fetch_rows");
    auto rows = link_->FetchRows(c.lease, c.step);
    if (!rows.ok() || static_cast<int64_t>(rows->size()) != c.rows) {
      const std::string why =
          rows.ok() ? "got " + std::to_string(rows->size()) + " of " + std::to_string(c.rows) + " rows"
                    : rows.status().message();
      return TrainFailed(c, why);
    }
    if (c.world > 1 && (group_ == nullptr || group_epoch_ != c.group_epoch)) {
      return TrainFailed(c, "this worker is not in training group " + std::to_string(c.group_epoch));
    }
    JoinCheckpoint();  // it reads the weights that the optimizer is about to write
    const auto span = Span("train", observe::kTrainSpan);
    pulse_.Begin("train");
    const StepNumber before = state_.step();
    const int64_t updates = roles_->updates();
    if (!Withdraw()) {
      Offer(before);
      return TrainFailed(c, "a newcomer still reads the state after 30 s");
    }
    const auto shape = pacer_ ? ShareOf(c, *rows) : std::pair<double, double>();
    std::vector<std::pair<SampleId, uint64_t>> digests;
    for (const BatchRow& row : *rows)
      digests.emplace_back(row.trajectory.tid, sample::Digest(row.trajectory));
    StatusOr<TrainOutcome> outcome = roles_->Train(
        c.step, c.v, std::move(*rows),
        [&](const std::string& op) {
          pulse_.Begin(op);
          return !CalledOff(c.lease);
        },
        c.world > 1 ? group_.get() : nullptr, c.groups);
    if (roles_->updates() != updates) holds_ = {};  // these weights have no version yet
    if (pacer_ && outcome.ok()) KeepTraining(c, shape, start);
    pulse_.Begin("idle");
    if (!outcome.ok()) {
      if (c.world > 1) LeaveGroup();
      if (roles_->updates() == updates) Offer(before);  // the error came before any update
      if (outcome.status().code() == StatusCode::kAborted)
        return;  // the command that called it off is answered next
      return TrainFailed(c, outcome.status().message(),
                         outcome.status().code() == StatusCode::kInvalidArgument);
    }
    Offer(c.step);
    up::TrainDone done;
    done.step = c.step;
    done.lease = c.lease;
    done.finite = outcome->finite;
    done.weights_digest = outcome->weights_digest;
    done.seconds = SecondsSince(start);
    done.metrics = std::move(outcome->metrics);
    done.rows = std::move(digests);
    link_->Send(std::move(done));
  }
  void TrainFailed(const down::Train& c, const std::string& why, bool data = false) {
    link_->Send(up::TrainFailed{.step = c.step, .lease = c.lease, .why = why, .data = data});
  }

  // Tokens of this rank's rows, and the sum of the squares of their lengths.
  static std::pair<double, double> ShareOf(const down::Train& c, const std::vector<BatchRow>& rows) {
    double tokens = 0, squares = 0;
    for (const BatchRow& row : rows) {
      if (c.world > 1 && std::ranges::find(c.groups, row.gid.value) == c.groups.end()) continue;
      const auto n = static_cast<double>(row.trajectory.prompt_size() +
                                         static_cast<int64_t>(row.trajectory.Ids().size()));
      tokens += n;
      squares += n * n;
    }
    return {tokens, squares};
  }
  // The result stands; a step that is called off now is answered with it.
  void KeepTraining(const down::Train& c, const std::pair<double, double>& share, Clock::time_point start) {
    auto beat = Clock::now();
    pacer_->Keep(start, pacer_->TrainStep(share.first, share.second, c.world), [&] {
      if (Clock::now() - beat > std::chrono::milliseconds(200)) {
        beat = Clock::now();
        pulse_.Begin("train, paced");
      }
      return CalledOff(c.lease);
    });
  }

  void CopyRecovery(const down::CopyRecovery& c) {
    const auto span = Span("recovery_copy", observe::kCheckpointSpan);
    const Status copied = roles_->CopyRecovery(c.step);
    link_->Send(up::RecoveryCopied{.step = c.step, .error = copied.ok() ? "" : copied.message()});
  }

  void Publish(const down::Publish& c) {
    pulse_.Begin("publish");
    const auto span = Span("publish", observe::kWeightsSpan);
    Status status = OkStatus();
    if (config_.cluster.slots > 1) {  // else there is nobody to fetch them
      if (config_.cluster.weight_transport == "stream") {
        auto copy = roles_->SnapshotWeights();
        const std::lock_guard lock(published_mu_);
        published_[c.v] = {copy, c.digest};
        while (published_.size() > 2) published_.erase(published_.begin());
      } else {
        status = roles_->PublishToSharedMemory(c.v, c.digest);
      }
    }
    link_->Send(up::Published{.v = c.v, .error = status.ok() ? "" : status.message()});
    pulse_.Begin("idle");
  }

  StatusOr<PublishedBytes> PublishedFor(Version version) {
    const std::lock_guard lock(published_mu_);
    const auto it = published_.find(version);
    if (it == published_.end()) return NotFound("version " + ToString(version) + " is not published here");
    return PublishedBytes{it->second.first, {std::as_bytes(std::span(*it->second.first))}, it->second.second};
  }

  void Load(const down::Load& c) {
    pulse_.Begin("load");
    const auto span = Span("load", observe::kWeightsSpan);
    const auto start = Clock::now();
    up::Loaded loaded;
    loaded.v = c.v;
    admitted_ = holds_ = {};  // torn until the digest of what was loaded is the one that was named
    StatusOr<uint64_t> digest = FailedPrecondition("nothing to load from");
    // Weights of others are written over those that belong to a state of training here.
    if (!c.alias) JoinCheckpoint();
    if (c.alias) {
      digest = roles_->WeightsDigest();
    } else if (!Withdraw()) {
      digest = Unavailable("a newcomer still reads the state that is here");
    } else if (c.address.empty()) {
      digest = roles_->LoadFromSharedMemory(c.v);
      loaded.bytes = roles_->weight_bytes();
    } else {
      digest = roles_->LoadFromStream(c.v, c.address, token_);
      loaded.bytes = roles_->weight_bytes();
    }
    if (pacer_ && digest.ok() && !c.alias) pacer_->Keep(start, pacer_->LoadWeights());
    if (digest.ok()) {
      loaded.digest = *digest;
      if (*digest == c.digest) {
        roles_->UseVersion(c.v);
        holds_ = c.v;
      }
    } else {
      loaded.error = digest.status().message();
    }
    loaded.seconds = SecondsSince(start);
    link_->Send(std::move(loaded));
    pulse_.Begin("idle");
  }

  void WriteCheckpoint(const down::WriteCheckpoint& c) {
    JoinCheckpoint();
    if (const Status ready = roles_->PrepareCheckpoint(); !ready.ok()) {
      link_->Send(up::CheckpointFiles{.ckpt = c.ckpt, .error = ready.message()});
      return;
    }
    checkpoint_ = std::jthread([this, c](std::stop_token) {
      const auto start = Clock::now();
      up::CheckpointFiles done;
      done.instruction_set = TorchInstructionSet();
      done.ckpt = c.ckpt;
      const auto files = roles_->WriteCheckpoint(c.dir);
      if (files.ok())
        done.files = *files;
      else
        done.error = files.status().message();
      const auto digest = roles_->WeightsDigest();
      if (digest.ok()) done.weights_digest = *digest;
      done.seconds = SecondsSince(start);
      link_->Send(std::move(done));
    });
  }
  void JoinCheckpoint() {
    // waits: for the disk; the controller replaces a worker that passes the deadline of its command
    if (checkpoint_.joinable()) checkpoint_.join();
  }

  void SaveFinal(const down::SaveFinal& c) {
    JoinCheckpoint();
    pulse_.Begin("save_final");
    const Status saved = roles_->SaveModel(c.dir);
    link_->Send(up::FinalSaved{saved.ok() ? "" : saved.message()});
    pulse_.Begin("idle");
  }

  // --- generation ---
  bool CanStep() {
    if (role_ != Role::kRollout || !holds_.valid() || roles_ == nullptr || roles_->rollout() == nullptr ||
        !roles_->rollout()->HasWork() || !roles_->loaded())
      return false;
    return link_->MayServe();
  }

  void EngineStep() {
    pulse_.Begin("generate");
    const TimePoint begin = Now();
    const auto start = Clock::now();
    RolloutStep out = roles_->rollout()->Step();
    up::StepTokens& tokens = out.tokens;
    if (pacer_) {
      int64_t context = 0;
      for (const up::ChunkDelta& c : tokens.chunks) context += Grown(c);
      pacer_->Keep(start, pacer_->EngineStep(out.sampled, context, tokens.prefill_tokens));
      tokens.step_s = SecondsSince(start);
    }
    pulse_.Engine(tokens);
    for (up::ChunkDelta& c : tokens.chunks) held_.Say(c);
    if (trace_) {
      trace_->Add(
          {"generate",
           std::string(observe::kRolloutSpan),
           kRolloutRow,
           begin,
           Now() - begin,
           {{"rows", static_cast<int64_t>(tokens.chunks.size())}, {"prefill", tokens.prefill_tokens}}});
    }
    if (!tokens.chunks.empty()) link_->Send(std::move(tokens));
  }

  // Tokens of a paced sample with those of this step; forgets it when its chunk ends.
  int64_t Grown(const up::ChunkDelta& c) {
    const auto it = paced_.find({c.tid, c.att});
    if (it == paced_.end()) return 0;
    const int64_t context = it->second += c.tokens.size();
    if (c.ended) paced_.erase(it);
    return context;
  }

  // --- trace ---
  struct TraceSpan {
    DeviceWorker* worker;
    const char* name;
    std::string_view category;
    TimePoint begin;
    ~TraceSpan() {
      if (worker->trace_)
        worker->trace_->Add({name, std::string(category), kActorRow, begin, Now() - begin, {}});
    }
  };
  TraceSpan Span(const char* name, std::string_view category) { return {this, name, category, Now()}; }
  static TimePoint Now() { return TraceNow(); }

  DeviceWorkerOptions options_;
  JobConfig config_;
  std::string token_;
  Mailbox<LinkEvent> inbox_;
  Pulse pulse_;
  std::atomic<int64_t> heartbeat_ms_{500};
  std::mutex heartbeat_mu_;
  std::condition_variable_any heartbeat_wake_;

  Incarnation inc_;
  SlotId slot_;
  LeaseEpoch epoch_;
  Role role_ = Role::kNone;
  Version admitted_;
  Version holds_;  // the weights in memory, whole; invalid: none, or torn
  int64_t refused_ = 0;
  int exit_code_ = -1;

  std::unique_ptr<comm::Collective> group_;  // of two ranks or more
  int64_t group_epoch_ = 0;
  std::deque<LinkEvent> later_;                   // came during a step
  OfferedState state_{DeviceRoles::StateDigest};  // none while a step is under way

  std::mutex published_mu_;
  std::map<Version, std::pair<std::shared_ptr<std::vector<std::byte>>, uint64_t>> published_;
  HeldTokens held_;

  std::unique_ptr<Pacer> pacer_;                           // cluster.pace
  std::map<std::pair<SampleId, int32_t>, int64_t> paced_;  // tokens of the samples in the engine

  std::unique_ptr<observe::TraceWriter> trace_;
  Clock::time_point next_flush_;
  ProcessMemory plan_;  // of this slot
  std::unique_ptr<DeviceRoles> roles_;
  std::unique_ptr<WeightsServer> weights_server_;
  std::unique_ptr<Link> link_;
  std::jthread heartbeat_;   // waits: its own wait ends with the stop token
  std::jthread checkpoint_;  // waits: for the disk, see JoinCheckpoint
};

}  // namespace

int RunDeviceWorker(const DeviceWorkerOptions& options) {
  DeviceWorker worker(options);
  return worker.Run();
}

}  // namespace tidepool::workers
