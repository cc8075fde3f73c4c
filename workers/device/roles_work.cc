// Life, memory, weights and rollout; roles_training.cc has the training, roles_engine.cc engines of several
// slots.
#include "workers/device/roles_work.h"

#include <algorithm>
#include <utility>

#include "core/base/host_name.h"
#include "core/base/places.h"
#include "core/base/process_memory.h"
#include "core/base/real_file_system.h"
#include "core/config/load.h"
#include "core/observe/log.h"
#include "core/storage/run_directory.h"
#include "workers/device/caught.h"
#include "workers/device/memory_proof.h"
#include "workers/device/torch_threads.h"
#include "workers/net/resolved_config.h"
#include "workers/net/session.h"
#include "workers/net/worker_log.h"
#include "workers/net/worker_trace.h"

namespace tidepool::workers {
namespace {

// Rows of the time line.
constexpr int kRolloutRow = 1;
constexpr int kActorRow = 2;
constexpr int kPullRow = 3;

Status Told(const char* event, const Status& status) {
  if (!status.ok()) LogWorkerFailure(event, status.message());
  return status;
}

}  // namespace

// --- life

Status RolesWork::Welcomed(const down::Welcome& welcome, bool anew) {
  if (welcome.slots.size() != 1)
    return Told("config", InvalidArgument("this worker has one device, and the controller gives it " +
                                          std::to_string(welcome.slots.size()) + " slots"));
  if (anew) {
    StatusOr<JobConfig> config = ParseResolved(welcome.config_yaml);
    if (!config.ok()) return Told("config", config.status());
    config_ = std::move(*config);
  }
  // The log of a process that serves several runs is none of them's.
  if (pool_ == nullptr) LogWorkerJoined("device", welcome, config_, link_->ctl_epoch(), anew);
  if (anew) {
    slot_ = welcome.slots.front();
    heartbeat_ms_.store(static_cast<int64_t>(config_.cluster.heartbeat_s * 1000));
    SetTorchThreads(static_cast<int>(config_.cluster.threads_per_slot));
    StatusOr<SlotDevice> device =
        DeviceOfSlot(config_.cluster.device, gpu_ < 0 ? welcome.place : gpu_, config_.deterministic);
    if (!device.ok()) return Told("device", device.status());
    device_ = std::move(*device);
    if (device_.gpu != nullptr)
      observe::Log(LogLevel::kInfo, "gpu",
                   {{"name", device_.gpu->name()}, {"free_bytes", device_.gpu->free_bytes().value_or(0)}});
    auto pacer = Pacer::Create(config_.cluster);
    if (!pacer.ok()) return Told("pace", pacer.status());
    pacer_ = std::move(*pacer);
    pulse_.SetPacer(pacer_.get());
    JobConfig of_slot = config_;
    of_slot.model.path = welcome.model_dir;
    of_slot.model.init.reset();
    // What cannot be predicted is not set aside; the controller asks for no proof then.
    const SlotUse use = welcome.trains ? SlotUse::kJob : SlotUse::kGeneration;
    if (const auto plan = PlanMemory(of_slot, use); plan.ok()) {
      plan_ = plan->processes[static_cast<size_t>(welcome.place)];
      shared_memory_ = plan->shared_memory_bytes();
    }
    // `generate` and the like have none.
    if (!welcome.shared_memory.empty()) shared_folder_ = SharedBlock::OfHost(welcome.shared_memory, host_);
    roles_ = std::make_unique<DeviceRoles>(config_, welcome.model_dir, shared_folder_,
                                           storage::RunPaths(welcome.run_dir).offload() + "/" +
                                               PlaceName(config_, welcome.place) + "-inc" +
                                               std::to_string(welcome.inc.value),
                                           device_.make, welcome.trains, welcome.base_digest, pool_);
    roles_->ServeAdapters(welcome.adapters);
    if (const Status base = roles_->FindBase(); !base.ok()) return Told("base", base);
    stored_ = std::make_unique<StoredRows>(std::make_shared<RealFileSystem>(),
                                           storage::RunPaths(welcome.run_dir).payload());
    OpenLog(welcome);
    const MutexLock lock(published_mu_);
    published_ = roles_->host_weights();
    if (config_.observe.trace)
      trace_ = OpenWorkerTrace(config_, welcome,
                               {{kRolloutRow, "rollout"}, {kActorRow, "actor"}, {kPullRow, "weights"}});
  }
  pages_.Welcomed("device", config_, welcome, credentials_, controller_);
  link_->SetPermit(welcome.permit_s,
                   std::max(LostAfterSeconds(welcome.permit_s), config_.cluster.reattach_grace_s));
  return OkStatus();
}

void RolesWork::OpenLog(const down::Welcome& welcome) {
  log_.reset();
  log_failed_ = false;
  const auto fs = std::make_shared<RealFileSystem>();
  const storage::RunPaths paths(welcome.run_dir);
  if (!storage::HasTokenProof(*fs, {paths.tokens(), paths.payload()}, welcome.token_proof)) return;
  auto opened = SampleLog::Open(fs, {welcome.run_dir, welcome.run_id, welcome.inc, welcome.sync_payload},
                                [this](up::Stored stored) { link_->Send(std::move(stored)); });
  if (opened.ok()) {
    log_ = std::move(*opened);
  } else {  // tokens go to the controller
    LogWorkerFailure("token_log", opened.status().message());
  }
}

Status RolesWork::Log(const std::vector<ToLog>& deltas) {
  const Status logged = log_->Log(deltas).At("host " + HostName());
  if (!logged.ok() && !std::exchange(log_failed_, true)) LogWorkerFailure("token_log", logged.message());
  return logged;
}

void RolesWork::ForgetAll() {
  log_.reset();
  FinishCheckpoint();
  EndPull();
  (void)Withdraw();  // who still reads the state after its deadline fails by digest
  LeaveGroup();
  LeaveEngine();
  engine_lost_.clear();
  previews_.clear();
  paced_.clear();
  const MutexLock lock(published_mu_);
  if (published_ != nullptr) published_->Forget();
}

RolesWork::Operation RolesWork::Begins(const char* name, std::string_view category) {
  pulse_.Begin(name);
  if (device_.gpu != nullptr) pulse_.FreeBytes(device_.gpu->free_bytes());
  return {this, name, category, TraceNow()};
}
RolesWork::Operation::~Operation() {
  if (work->trace_)
    work->trace_->Add({name, std::string(category), kActorRow, begin, TraceNow() - begin, {}});
  work->pulse_.Begin("idle");
}

// --- memory

Status RolesWork::PrepareRollout(const down::Grant& c) {
  TP_RETURN_IF_ERROR(EngineWhole());
  // A trainer that was made before the slot held a role was never told to release it.
  if (offloads()) (void)Release(Role::kActor, plan_.need(Role::kRollout));
  return Told("grant", c.ranks > 1 ? PrepareRanks(c) : roles_->PrepareRollout());
}

void RolesWork::PrepareActor() {
  const auto state = roles_->state();
  if (!state || state_.step() == state->step) return;  // none is here, or it was never put aside
  const auto operation = Begins("take_back", observe::kSystemSpan);
  if (roles_->parked()) AwaitFiles();  // it may be copying the files that are read now
  const auto start = Clock::now();
  const int64_t bytes = roles_->parked_bytes();
  if (auto parts = roles_->StateParts(); Told("grant", parts.status()).ok())
    state_.Offer(state->step, std::move(*parts));
  CountMoved(bytes, bytes, start);
}

int64_t RolesWork::Release(Role role, int64_t need_bytes) {
  previews_.clear();
  const Role next = role == Role::kRollout ? Role::kActor
                    : role == Role::kActor ? Role::kRollout
                                           : Role::kNone;
  // Where both roles fit beside each other, as they do on most machines with small models, the released one
  // keeps its arenas: pages that go back are faulted in again at the next step.
  int64_t free = FreeBytes(next);
  if (need_bytes > 0 && free >= need_bytes) return free;
  const int64_t before = PrivateResidentBytes();
  roles_->Release(role);
  free = FreeBytes(next);
  if (free < need_bytes && role != Role::kRollout && offloads()) {
    Park();
    free = FreeBytes(next);
  }
  if (free < need_bytes) {  // the controller will quarantine this slot
    observe::Log(LogLevel::kWarn, "memory_kept",
                 {{"role", Name(role)},
                  {"resident_before", before},
                  {"resident_after", PrivateResidentBytes()},
                  {"counted", roles_->held().total()},
                  {"free", free},
                  {"need", need_bytes},
                  {"text", "less memory is free than the next role needs"}});
  }
  return free;
}

void RolesWork::Park() {
  const auto operation = Begins("offload", observe::kSystemSpan);
  AwaitFiles();
  // A newcomer that reads the state for longer than that keeps it in memory; so does a disk that is full.
  if (Withdraw()) {
    const auto start = Clock::now();
    const Status parked = roles_->Park();
    CountMoved(roles_->parked_bytes(), roles_->parked_bytes(), start);
    if (!parked.ok())
      observe::Log(LogLevel::kWarn, "offload_failed",
                   {{"text", "the optimizer's state stays in memory: " + parked.message()}});
  }
  if (const auto state = roles_->state(); state && !roles_->parked()) Offer(state->step);
}

// What this slot may use for `next` of its share of the machine (memory_proof.h).
int64_t RolesWork::FreeBytes(Role next) {
  const model::MemoryUse of_next = roles_->held(next);
  HeldMemory held{.roles = roles_->held(),
                  .further = roles_->further_bytes(),
                  .resident_private = PrivateResidentBytes(),
                  .of_next = of_next.passing()};
  // They are in the memory of all ranks before a step takes anything.
  held.resident_private = std::max<int64_t>(0, held.resident_private - roles_->unshared_bytes());
  if (next == Role::kActor && offloads()) held.of_next += of_next.optimizer + roles_->further_bytes();
  if (device_.gpu != nullptr) {
    if (const auto free = device_.gpu->free_bytes()) return ProvenFreeOnGpu(*free, plan_, held);
  }
  const MutexLock lock(published_mu_);
  if (published_ != nullptr) held.further += published_->held_bytes();
  // Workers that were started by hand may be on machines of their own: how many share this one is not known.
  const int64_t sharing = config_.cluster.launch_workers ? config_.cluster.slots : 1;
  return ProvenFree((MachineMemory() - shared_memory_) / sharing, plan_, held);
}

std::string RolesWork::OutOfMemory(const std::string& why) const {
  // LibTorch goes on about its allocator.
  const std::string brief = why.substr(0, why.find(". Including"));
  return "out of memory: " + brief + "; planned are " + plan_.PartsText();
}

std::string RolesWork::DeviceFailed(const std::exception& e) const {
  const std::string what = e.what();  // LibTorch goes on about its stack
  return (device_.gpu == nullptr ? "cpu" : device_.gpu->name()) + ": " + what.substr(0, what.find('\n'));
}

// --- weights

void RolesWork::EndPull() {
  pull_.request_stop();
  if (pull_.joinable()) pull_.join();  // waits: the stop cancels its call
}

void RolesWork::Pull(const down::Pull& c) {
  EndPull();
  pull_ = std::jthread(
      [this, c, host = roles_->host_weights(), bytes = roles_->weight_bytes()](const std::stop_token& stop) {
        const TimePoint begin = TraceNow();
        auto said = Clock::now();
        up::Pulled done{{.slot = c.slot, .v = c.v}};
        done.whole_bytes = bytes;
        const auto came = [&](int64_t more) {
          done.bytes += more;
          if (Clock::now() - said < std::chrono::seconds(1)) return;
          said = Clock::now();
          link_->Send(up::Pulled{{.slot = c.slot, .v = c.v}});
        };
        const Status pulled = Caught("pull", [&] {
          return host->Pull({c.address, credentials_}, c.v, c.digest, bytes, came, stop);
        });
        if (stop.stop_requested()) return;
        if (trace_)
          trace_->Add({"pull",
                       std::string(observe::kWeightsSpan),
                       kPullRow,
                       begin,
                       TraceNow() - begin,
                       {{"version", c.v.number}, {"bytes", done.bytes}}});
        done.whole = pulled.ok();
        if (!pulled.ok()) done.error = pulled.message();
        link_->Send(std::move(done));
      });
}

StatusOr<RolesWork::Copied> RolesWork::LoadHere(const down::Load& c) {
  const auto operation = Begins("load", observe::kWeightsSpan);
  const auto start = Clock::now();
  Copied out;
  if (c.alias) {
    TP_ASSIGN_OR_RETURN(out.digest, roles_->WeightsDigest());
  } else {
    // Weights of others are written over those that belong to a state of training here.
    AwaitFiles();
    if (!Withdraw()) return Unavailable("a newcomer still reads the state that is here");
    auto digest = c.address.empty() ? roles_->LoadFromSharedMemory(c.v)
                                    : roles_->LoadFromStream(c.v, c.digest, c.address, credentials_);
    TP_ASSIGN_OR_RETURN(out.digest, std::move(digest));
    out.bytes = roles_->weight_bytes();
    CountMoved(roles_->arena_bytes(), roles_->arena_bytes(), start);
    if (pacer_) pacer_->Keep(start, pacer_->LoadWeights());
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return out;
}

Status RolesWork::Publish(const down::Publish& c) {
  const auto operation = Begins("publish", observe::kWeightsSpan);
  if (!c.copies) return OkStatus();  // there is nobody to fetch them
  const auto start = Clock::now();
  TP_RETURN_IF_ERROR(
      roles_->Publish(c.v, c.digest, config_.cluster.weight_transport != WeightTransport::kStream));
  CountMoved(roles_->weight_bytes(), 0, start);  // a way station
  return OkStatus();
}

StatusOr<PublishedBytes> RolesWork::Read(const WantedBytes& wanted) {
  if (wanted.step.valid()) return state_.Read(wanted.step);
  std::shared_ptr<HostWeights> published;
  {
    const MutexLock lock(published_mu_);
    published = published_;
  }
  if (published == nullptr) return NotFound("no weights are here yet");
  return published->Open(wanted.version, wanted.base);
}

// --- rollout

Status RolesWork::Add(down::StartChunk c) {
  if (pacer_) paced_[{c.tid, c.att}] = static_cast<int64_t>(c.prompt.size() + c.generated.size());
  return roles_->rollout()->Add(std::move(c));
}

bool RolesWork::Cancel(const SampleId& tid, int32_t att) {
  paced_.erase({tid, att});
  return Serves() && roles_->rollout()->Cancel(tid, att);
}

void RolesWork::ForgetGroup(GroupId gid) {
  if (Serves()) roles_->rollout()->ForgetGroup(gid);
}

std::vector<std::pair<SampleId, int32_t>> RolesWork::Drain() {
  paced_.clear();
  if (!Serves()) return {};
  return roles_->rollout()->Drain();
}

up::StepTokens RolesWork::Step() {
  pulse_.Begin("generate");
  const TimePoint begin = TraceNow();
  const auto start = Clock::now();
  RolloutStep out;
  try {
    out = roles_->rollout()->Step();
  } catch (const model::PeersFailed& e) {
    LoseEngine(e.status());
    return {};
  }
  up::StepTokens& tokens = out.tokens;
  if (pacer_) {
    int64_t context = 0;
    for (const up::ChunkDelta& c : tokens.chunks) context += Grown(c);
    pacer_->Keep(start, pacer_->EngineStep(out.sampled, context, tokens.prefill_tokens));
    tokens.step_s = std::chrono::duration<double>(Clock::now() - start).count();
  }
  pulse_.Engine(slot_, tokens);
  if (trace_) {
    trace_->Add({"generate",
                 std::string(observe::kRolloutSpan),
                 kRolloutRow,
                 begin,
                 TraceNow() - begin,
                 {{"rows", static_cast<int64_t>(tokens.chunks.size())}, {"prefill", tokens.prefill_tokens}}});
  }
  return std::move(tokens);
}

// Tokens of a paced sample with those of this step; forgets it when its chunk ends.
int64_t RolesWork::Grown(const up::ChunkDelta& c) {
  const auto it = paced_.find({c.tid, c.att});
  if (it == paced_.end()) return 0;
  const int64_t context = it->second += c.tokens.size();
  if (c.ended) paced_.erase(it);
  return context;
}

}  // namespace tidepool::workers
