#include "tests/scheduler/sim_cluster.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/hash.h"

// What a worker would refuse. With a planted bug the journal alone has to show it.
#ifdef TIDEPOOL_PLANTS
#define SIM_CHECK(condition) TP_CHECK(true || (condition))
#else
#define SIM_CHECK(condition) TP_CHECK(condition)
#endif

namespace tidepool::scheduler {
namespace {

constexpr double kTick = 0.1, kTokenSeconds = 0.01, kStepTokens = 4;

struct Hasher {
  uint64_t h = 1;
  void Add(uint64_t x) { h = Mix64(h ^ x); }
  void operator()(const char*, const std::string& s) { Add(Hash64(s)); }
  void operator()(const char*, const int64_t& x) { Add(static_cast<uint64_t>(x)); }
  void operator()(const char*, const int32_t& x) { Add(static_cast<uint64_t>(x)); }
  void operator()(const char*, const uint64_t& x) { Add(x); }
  void operator()(const char*, const double& x) { Add(static_cast<uint64_t>(std::llround(x * 1e9))); }
  template <typename Tag>
  void operator()(const char*, const StrongId<Tag>& x) { Add(static_cast<uint64_t>(x.value)); }
  void operator()(const char*, const SampleId& t) { Add(SampleUid(t)); }
  void operator()(const char*, const Version& v) { Add(static_cast<uint64_t>(v.lineage) * 1000003 + static_cast<uint64_t>(v.number)); }
  void operator()(const char*, const WorkerRef& w) { Add(static_cast<uint64_t>(w.worker.value * 1000003 + w.inc.value)); }
  void operator()(const char*, const record::TrainedRow& r) { record::VisitFields(r, *this); }
  void operator()(const char*, const record::SlotPlan& r) { record::VisitFields(r, *this); }
  void operator()(const char*, const std::pair<std::string, double>& p) { (*this)("", p.first), (*this)("", p.second); }
  template <typename T>
  void operator()(const char*, const std::vector<T>& items) {
    Add(items.size());
    for (const T& x : items) (*this)("", x);
  }
  template <typename E>
    requires std::is_enum_v<E>
  void operator()(const char*, const E& e) { Add(static_cast<uint64_t>(e)); }
};

}  // namespace

uint64_t HashJournal(const std::vector<JournalEntry>& journal) {
  Hasher h;
  for (const JournalEntry& e : journal) {
    h.Add(e.record.index());
    h.Add(e.ctl_epoch);
    std::visit([&](const auto& r) { record::VisitFields(r, h); }, e.record);
  }
  return h.h;
}

ControllerOptions SmallJob(const std::string& placement, int64_t slots) {
  ControllerOptions o;
  o.run_id = "run";
  o.config_digest = "digest";
  o.data_rows = 40;
  o.eval_rows = 6;
  JobConfig& c = o.config;
  c.scheduler.placement = placement;
  c.cluster.slots = slots;
  c.train.groups_per_step = 4;
  c.train.steps = 6;
  c.rollout.group_size = 3;
  c.rollout.max_new_tokens = 32;
  c.rollout.chunk_tokens = 8;
  c.rollout.max_concurrent = 24;
  c.checkpoint.every_steps = 3;
  c.reward.functions = {{.name = "exact_answer", .endpoint = "", .weight = 1.0, .timeout_s = 5}};
  c.cluster.start_timeout_s = 100;
  c.cluster.stall_timeout_s = 120;
  return o;
}

ControllerOptions SmallEpisodes(const std::string& placement, int64_t slots, int64_t workers) {
  ControllerOptions o = SmallJob(placement, slots);
  o.config.reward.functions.clear();
  EnvironmentConfig& e = o.config.environment;
  e.name = "model";
  e.workers = workers;
  e.max_turn_tokens = 6;
  e.reset_timeout_s = e.step_timeout_s = 20;
  return o;
}

SimCluster::SimCluster(const SimOptions& options)
    : options_(options), rng_delays_(Rng(options.seed).Fork("delays")), rng_faults_(Rng(options.seed).Fork("faults")) {}
SimCluster::~SimCluster() = default;

double SimCluster::Delay(double mean_s) { return mean_s * (0.2 + 1.6 * rng_delays_.Uniform()); }

void SimCluster::At(Duration delay, Action action) { queue_.push({now_.t + delay, seq_++, std::move(action)}); }

SimCluster::Proc* SimCluster::Find(int64_t id) {
  const auto it = procs_.find(id);
  return it == procs_.end() || !it->second.alive ? nullptr : &it->second;
}

SimCluster::Proc* SimCluster::Find(const WorkerRef& ref) {
  for (auto& [id, p] : procs_) {
    if (p.alive && p.worker == ref.worker && p.inc == ref.inc) return &p;
  }
  return nullptr;
}

int64_t SimCluster::LengthOf(const SampleId& tid) const {
  // Geometric-ish, the same for every attempt (noise is keyed by sample and position).
  const float u = SampleUniform(options_.seed, SampleUid(tid), 0, 7);
  return std::max<int64_t>(1, static_cast<int64_t>(-std::log(1 - u) * options_.mean_tokens));
}

int64_t SimCluster::TurnLength(const SampleId& tid, int64_t turn) const {
  return 1 + static_cast<int64_t>(SampleUniform(options_.seed, SampleUid(tid), static_cast<uint32_t>(turn), 10) * 8);
}
int64_t SimCluster::TurnsOf(const SampleId& tid) const { return 1 + static_cast<int64_t>(SampleUniform(options_.seed, SampleUid(tid), 0, 11) * 5); }
int64_t SimCluster::ObservationOf(const SampleId& tid, int64_t turn) const {
  if (turn == 0) return 5 + tid.ordinal % options_.controller.data_rows % 3;
  return 1 + static_cast<int64_t>(SampleUniform(options_.seed, SampleUid(tid), static_cast<uint32_t>(turn), 12) * 4);
}

double SimCluster::RewardOf(const SampleId& tid, uint64_t content) const {
  const SampleId group{tid.ordinal, tid.issue, 0};
  if (SampleUniform(options_.seed, SampleUid(group), 0, 8) < options_.equal_rewards) return 1;
  return static_cast<double>((content ^ SampleUid(tid)) % 2);
}

void SimCluster::Out(Proc& proc, Event event, double delay_s) {
  const int64_t id = proc.id;
  const TimePoint at = std::max(now_.t + FromSeconds(delay_s + Delay(0.001)), proc.last_out + Duration(1));
  proc.last_out = at;
  const int64_t life = life_;
  const auto send = [this, id, life, event = std::move(event)] {
    const auto it = procs_.find(id);
    if (it == procs_.end() || it->second.hung || life != life_) return;  // sent before it died: still arrives
    if (const auto* progress = std::get_if<event::ChunkProgress>(&event); progress != nullptr && controller_ != nullptr) {
      expected_ = controller_->Expects(progress->worker, progress->tid, progress->att);
    }
    Deliver(event);
    // Token messages are made unique by the reply window; a repeat of another kind has to be harmless.
    if (!std::holds_alternative<event::ChunkProgress>(event) && Chance(options_.faults.duplicate)) Deliver(event);
  };
  At(at - now_.t, send);
}

void SimCluster::Storage(Event event, double delay_s) {
  const int64_t life = life_;
  At(FromSeconds(delay_s), [this, life, event = std::move(event)] {
    if (life == life_) Deliver(event);
  });
}

void SimCluster::Fault(double mean_s, const char* name, const std::function<void()>& what) {
  if (mean_s <= 0) return;
  const double gap = -std::log(1 - rng_faults_.Uniform()) * mean_s;
  At(FromSeconds(gap), [this, mean_s, name, what] {
    if (over_ || !(now_ < FromSeconds(options_.faults.heal_after_s))) return;
    ++result_.faults;
    what();
    Fault(mean_s, name, what);
  });
}

void SimCluster::StartController() {
  ++life_;
  ++result_.lives;
  crash_ = false;
  tokens_.clear();
  auto created = Controller::Create(options_.controller, journal_);
  TP_CHECK(created.ok()) << created.status().ToString();
  controller_ = std::move(created).value();
  const int64_t life = life_;
  // Workers that wait for the controller come back.
  for (auto& [id, p] : procs_) {
    if (!p.alive || p.hung) continue;
    At(FromSeconds(Delay(0.2)), [this, id = id, life] {
      Proc* q = Find(id);
      if (q == nullptr || life != life_) return;
      q->joined = false;
      event::WorkerJoined join{.worker = q->worker, .name = "again", .kind = q->kind, .slot = {}, .device_bytes = 0, .restored_inc = q->inc, .held = {}};
      join.holds = q->version;
      q->loading.reset();
      for (auto& [key, c] : q->chunks) {
        join.held.push_back({c.tid, c.att, c.tokens.count, c.tokens.v_min, c.tokens.v_max});
        tokens_[key] = c.tokens;
      }
      Out(*q, join);
    });
  }
  Deliver(event::Started{});
}

void SimCluster::CrashController() { crash_ = true; }

void SimCluster::AfterController() {
  // What was not synced may be gone, from any record on.
  if (journal_.size() > durable_) {
    journal_.resize(durable_ + static_cast<size_t>(rng_faults_.Below(static_cast<int64_t>(journal_.size() - durable_) + 1)));
  }
  durable_ = journal_.size();
  controller_.reset();
  ++life_;
  if (options_.controller.config.cluster.reattach_grace_s <= 0) {
    for (auto& [id, p] : procs_) p.alive = false;
  }
}

void SimCluster::Deliver(const Event& event) {
  if (controller_ == nullptr || over_) return;
  if (on_event && !on_event(event)) return;
  ++result_.events;
  const std::vector<Command> commands = controller_->Handle(event, now_.t);
  const size_t before = durable_;
  bool durable = false;
  for (const Command& c : commands) {
    if (const auto* a = std::get_if<command::Append>(&c)) {
      journal_.push_back({.lsn = {static_cast<int64_t>(journal_.size())}, .ctl_epoch = static_cast<uint32_t>(result_.lives),
                          .mono_ns = static_cast<uint64_t>(now_.t.since_start.count()), .record = a->record});
      durable |= !IsLazy(a->record);
      if (const auto* lease = std::get_if<record::Lease>(&a->record)) lease_ = *lease;
    }
  }
  if (!commands.empty() && Chance(options_.faults.crash_in_batch)) {
    // Any part of the records may have reached the disk, no command was executed.
    durable_ = before;
    AfterController();
    At(FromSeconds(0.5), [this] { StartController(); });
    return;
  }
  if (durable) durable_ = journal_.size();
  while (options_.check_online && fed_ < durable_ && result_.violation.ok) {
    checker_.Feed(journal_[fed_++]);
    result_.violation = checker_.result();
    if (!result_.violation.ok) over_ = true;
  }
  if (over_) return;
  for (const Command& c : commands) {
    if (on_command) on_command(c);
    Execute(c);
  }
  if (crash_ && !over_) {
    ++result_.faults;
    AfterController();
    At(FromSeconds(0.5), [this] { StartController(); });
  }
}

void SimCluster::Spawn(WorkerId worker) {
  ++started_workers_;
  const int64_t life = life_;
  if (Chance(options_.faults.start_fails)) {
    At(FromSeconds(Delay(0.5)), [this, worker, life] {
      if (life == life_) Deliver(event::WorkerStartFailed{worker, "exit status 1"});
    });
    return;
  }
  const int64_t id = next_proc_++;
  Proc& p = procs_[id];
  p.id = id;
  p.worker = worker;
  p.kind = worker.value < options_.controller.config.cluster.slots ? WorkerKind::kDevice : options_.controller.side_kind();
  event::WorkerJoined join{.worker = worker, .name = "w", .kind = p.kind, .slot = {}, .device_bytes = 1 << 30, .restored_inc = {}, .held = {}};
  Out(p, join, Delay(0.5));
}

void SimCluster::Die(Proc& proc, bool seen) {
  if (!proc.alive) return;
  proc.alive = false;
  LeaveStep(proc);
  const int64_t life = life_;
  const WorkerRef ref{proc.worker, proc.inc};
  const bool joined = proc.joined;
  if (!seen) return;
  At(FromSeconds(Delay(0.05)), [this, ref, life, joined] {
    if (life != life_) return;
    if (joined) {
      Deliver(event::WorkerLost{ref, "killed", true});
    } else {
      Deliver(event::WorkerStartFailed{ref.worker, "died before it joined"});
    }
  });
}

void SimCluster::KillWorker(WorkerId worker) {
  for (auto& [id, p] : procs_) {
    if (p.alive && p.worker == worker) Die(p, true);
  }
}

void SimCluster::Beat(int64_t id) {
  Proc* p = Find(id);
  if (p == nullptr || p->hung || over_) return;
  if (controller_ != nullptr && p->joined && !Chance(options_.faults.lost_heartbeat)) {
    event::Heartbeat beat{.worker = {p->worker, p->inc}, .engine = std::nullopt, .op = "", .op_seq = p->op_seq};
    const double pressure = options_.faults.kv_pressure;
    const auto running = static_cast<int64_t>(p->chunks.size());
    if (running > 0) {
      beat.engine = event::EngineSample{.kv_usage = pressure > 0 ? std::min(1.0, 2 * pressure * rng_faults_.Uniform()) : 0.1, .running = running,
                                        .waiting = pressure > 0.5 ? running : 0, .preemptions = 0, .step_s = kTokenSeconds * kStepTokens};
    }
    Out(*p, beat);
  }
  At(FromSeconds(0.5), [this, id] { Beat(id); });
}

void SimCluster::EngineStep(int64_t id) {
  Proc* p = Find(id);
  if (p == nullptr || p->hung || over_) return;
  if (p->joined && !p->loading && p->admitted) {
    std::vector<std::pair<SampleId, int32_t>> keys;
    for (const auto& [key, c] : p->chunks) keys.push_back(key);
    for (const auto& key : keys) {
      Chunk& c = p->chunks.at(key);
      const WorkerRef ref{p->worker, p->inc};
      if (Chance(options_.faults.chunk_error)) {
        Out(*p, event::ChunkFinished{ref, c.tid, c.att, event::ChunkEnd::kError, "sim"});
        p->chunks.erase(key);
        continue;
      }
      const bool episode = !options_.controller.config.environment.name.empty();
      const int64_t length = episode ? c.tokens.turn_start + TurnLength(c.tid, c.tokens.turn) : LengthOf(c.tid), limit = c.limit;
      const int64_t n = std::min({static_cast<int64_t>(kStepTokens), c.left, std::min(length, limit) - c.tokens.count});
      for (int64_t i = 0; i < n; ++i) c.tokens.content = Mix64(c.tokens.content ^ p->weights ^ static_cast<uint64_t>(c.tokens.count++));
      c.left -= n;
      if (!c.tokens.v_min.valid() || p->version < c.tokens.v_min) c.tokens.v_min = p->version;
      if (!c.tokens.v_max.valid() || c.tokens.v_max < p->version) c.tokens.v_max = p->version;
      Out(*p, event::ChunkProgress{ref, c.tid, c.att, n, p->version});
      const Tokens copy = c.tokens;
      const int64_t life = life_;
      At(p->last_out - now_.t, [this, key, copy, life, id] {
        // With the message and not without it.
        const auto it = procs_.find(id);
        if (life == life_ && controller_ && expected_ && it != procs_.end() && !it->second.hung) tokens_[key] = copy;
      });
      std::optional<event::ChunkEnd> end;
      if (c.tokens.count >= length) end = event::ChunkEnd::kEos;
      else if (c.tokens.count >= limit) end = event::ChunkEnd::kLength;
      else if (c.left <= 0) end = event::ChunkEnd::kChunkLimit;
      if (end) {
        Out(*p, event::ChunkFinished{ref, c.tid, c.att, *end, ""});
        p->chunks.erase(key);
      }
    }
    if (p->draining) FinishDrain(*p);
  }
  At(FromSeconds(kTokenSeconds * kStepTokens), [this, id] { EngineStep(id); });
}

// Who leaves a collective before its end takes the others' step along: they wait for ever, or for AbortStep.
void SimCluster::LeaveStep(Proc& p) {
  if (p.in_step < 0) return;
  steps_[p.in_step].broken = true;
  p.in_step = -1;
}

void SimCluster::EndStep(int64_t id, const command::Train& c, uint64_t weights, double seconds) {
  Proc* p = Find(id);
  if (p == nullptr || p->hung || p->inc != c.worker.inc || p->in_step != c.lease) return;
  p->in_step = -1;
  p->state = weights;
  p->state_step = c.step;
  ++p->op_seq;
  Out(*p, event::TrainDone{c.worker, c.step, c.lease, true, weights, seconds});
}

void SimCluster::FinishDrain(Proc& p) {
  const WorkerRef ref{p.worker, p.inc};
  for (const auto& [key, c] : p.chunks) Out(p, event::ChunkFinished{ref, c.tid, c.att, event::ChunkEnd::kDrained, ""});
  p.chunks.clear();
  Out(p, event::Drained{ref, p.draining->slot, p.draining->epoch});
  p.draining.reset();
}

// Commands, as processes and storage see them.
struct SimCluster::Do {
  SimCluster& s;

  void operator()(const command::Append&) {}
  void operator()(const command::StartWorker& c) {
    const int64_t life = s.life_;
    s.At(c.delay, [&s = s, c, life] { if (life == s.life_) s.Spawn(c.worker); });
  }
  void operator()(const command::KillWorker& c) {
    for (auto& [id, p] : s.procs_) {
      if (p.alive && p.worker == c.worker.worker && (!c.worker.inc.valid() || p.inc == c.worker.inc)) s.Die(p, false);
    }
  }
  void operator()(const command::Welcome& c) {
    for (auto& [id, p] : s.procs_) {
      if (!p.alive || p.worker != c.worker || p.joined) continue;
      const bool again = p.inc == c.inc;
      p.inc = c.inc;
      p.joined = true;
      if (again) return;
      p.chunks.clear();
      p.version = {};
      p.admitted = false;
      p.loading.reset();
      p.state_step = {};
      p.role = Role::kNone;
      p.draining.reset();
      p.in_step = -1;
      s.Beat(id);
      if (p.kind == WorkerKind::kDevice) s.EngineStep(id);
      return;
    }
  }
  void operator()(const command::RefuseWorker& c) {
    for (auto& [id, p] : s.procs_) {
      if (p.alive && p.worker == c.worker && !p.joined) s.Die(p, false);
    }
  }
  void operator()(const command::PrepareRow& c) {
    const auto& job = s.options_.controller;
    const int64_t row = c.ordinal % job.data_rows;
    const double delay = s.Delay(0.002);
    if (SampleUniform(s.options_.seed, Mix64(static_cast<uint64_t>(row)), 1, 9) < s.options_.faults.row_invalid) {
      s.Storage(event::RowInvalid{c.ordinal, c.issue, "sim"}, delay);
      return;
    }
    s.Storage(event::RowReady{c.ordinal, c.issue, 5 + row % 3}, delay);
    if (job.config.job == "sft") {
      const SampleId tid{c.ordinal, c.issue, 0};
      s.payload_[tid] = {1, SampleUid({row, 0, 0}), {}, {}};
      s.Storage(event::PayloadStored{tid, 0, 5, 5, SampleUid({row, 0, 0}), -1, 0, 0}, s.Delay(0.002));
    }
  }
  void operator()(const command::StartChunk& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->epoch == c.epoch) << "epoch " << p->epoch.value << " " << c.epoch.value;
    SIM_CHECK(p->role == Role::kRollout && p->admitted && p->version == c.v) << ToString(c.worker) << " is not admitted at " << ToString(c.v);
    Chunk chunk{.tid = c.tid, .att = c.att, .left = c.chunk_tokens, .limit = c.max_new_tokens, .tokens = {}, .cancelled = false};
    const auto it = s.tokens_.find({c.tid, c.att});
    if (it != s.tokens_.end()) chunk.tokens = it->second;
    SIM_CHECK(chunk.tokens.count == c.generated) << ToString(c.tid) << " has " << chunk.tokens.count << " tokens, not " << c.generated;
    p->chunks[{c.tid, c.att}] = chunk;
  }
  void operator()(const command::CancelChunk& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    if (p->chunks.erase({c.tid, c.att}) > 0) s.Out(*p, event::ChunkFinished{c.worker, c.tid, c.att, event::ChunkEnd::kCancelled, ""});
  }
  void operator()(const command::ForgetGroup&) {}
  void operator()(const command::StorePayload& c) {
    const auto it = s.tokens_.find({c.tid, c.att});
    SIM_CHECK(it != s.tokens_.end()) << "payload of " << ToString(c.tid) << " without tokens";
    const Tokens tokens = it == s.tokens_.end() ? Tokens{} : it->second;
    s.Storage(event::PayloadStored{c.tid, c.att, 5, tokens.count, tokens.content, 0, 0, tokens.count * 4}, s.Delay(0.01));
    const int64_t life = s.life_;
    s.At(Duration(0), [&s = s, c, tokens, life] { if (life == s.life_) s.payload_[c.tid] = tokens; });
  }
  void operator()(const command::DiscardTokens& c) { s.tokens_.erase({c.tid, c.att}); }
  void operator()(const command::Grade& c) {
    Proc* p = s.Find(c.grader);
    if (p == nullptr || p->hung) return;
    uint64_t content = 0;
    const auto it = s.tokens_.find({c.tid, c.att});
    const auto stored = s.payload_.find(c.tid);
    if (it != s.tokens_.end()) content = it->second.content;
    else if (stored != s.payload_.end()) content = stored->second.content;
    else SIM_CHECK(false) << "grading " << ToString(c.tid) << " without tokens";
    event::Graded g{c.grader, c.tid, c.att, GradeOutcome::kOk, s.RewardOf(c.tid, content), {}, ""};
    if (s.Chance(s.options_.faults.infra)) g.outcome = GradeOutcome::kInfra;
    else if (s.Chance(s.options_.faults.grade_data)) g.outcome = GradeOutcome::kData;
    s.Out(*p, g, s.Delay(0.01));
  }
  void operator()(const command::EnvStep& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->kind == WorkerKind::kEnvironment) << ToString(c.worker) << " plays no episodes";
    event::EnvStepped r{.worker = c.worker, .tid = c.tid, .att = c.att, .turn = c.turn};
    if (c.turn == 0) {
      const int64_t row = c.tid.ordinal % s.options_.controller.data_rows;
      const bool bad = c.tid.sample == SampleId::kRowSample &&
                       SampleUniform(s.options_.seed, Mix64(static_cast<uint64_t>(row)), 1, 9) < s.options_.faults.row_invalid;
      if (bad) r.outcome = GradeOutcome::kData;
      r.observation_tokens = s.ObservationOf(c.tid, 0);
    } else {
      const auto it = s.tokens_.find({c.tid, c.att});
      const auto stored = s.payload_.find(c.tid);
      const bool whole = c.turn == command::kWholeEpisode;
      SIM_CHECK(it != s.tokens_.end() || (whole && stored != s.payload_.end())) << "a turn of " << ToString(c.tid) << " without tokens";
      const Tokens tokens = it != s.tokens_.end() ? it->second : stored != s.payload_.end() ? stored->second : Tokens{};
      SIM_CHECK(whole || tokens.turn + 1 == c.turn) << ToString(c.tid) << " has " << tokens.turn << " turns, not " << c.turn - 1;
      SIM_CHECK(whole || tokens.count > tokens.turn_start) << ToString(c.tid) << " has said nothing in turn " << c.turn;
      r.done = c.turn == s.TurnsOf(c.tid);
      r.observation_tokens = r.done || whole ? 0 : s.ObservationOf(c.tid, c.turn);
      r.reward = s.RewardOf(c.tid, tokens.content);
    }
    if (s.Chance(s.options_.faults.infra)) r.outcome = GradeOutcome::kInfra;
    else if (s.Chance(s.options_.faults.grade_data)) r.outcome = GradeOutcome::kData;
    s.Out(*p, r, s.Delay(0.05));
  }
  void operator()(const command::AppendObservation& c) {
    if (c.turn == 0) return;
    const auto it = s.tokens_.find({c.tid, c.att});
    SIM_CHECK(it != s.tokens_.end()) << "an observation for " << ToString(c.tid) << ", which has no tokens";
    if (it == s.tokens_.end()) return;
    Tokens& t = it->second;
    SIM_CHECK(t.turn + 1 == c.turn) << ToString(c.tid) << " gets the observation of turn " << c.turn << " after " << t.turn;
    t.count += s.ObservationOf(c.tid, c.turn);
    t.content = Mix64(t.content ^ static_cast<uint64_t>(c.turn));
    t.turn = c.turn;
    t.turn_start = t.count;
  }
  void operator()(const command::PullKv&) {}
  void operator()(const command::Drain& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    // Only a controller that was restarted does this: the step of its former life is called off with the drain.
    SIM_CHECK(p->in_step < 0 || s.result_.lives > 1) << "drained inside a step";
    s.LeaveStep(*p);
    p->draining = c;
    if (s.Chance(s.options_.faults.slow_drain)) {
      const int64_t id = p->id;
      p->draining.reset();
      s.At(FromSeconds(s.Delay(15)), [&s = s, id, c] {
        Proc* q = s.Find(id);
        if (q == nullptr || q->hung || c.epoch < q->epoch) return;
        q->draining = c;
        s.FinishDrain(*q);
      });
      return;
    }
    if (p->chunks.empty() || !p->admitted || p->loading) s.FinishDrain(*p);
  }
  void operator()(const command::Release& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->chunks.empty()) << "released with chunks in it";
    p->role = Role::kNone;
    p->admitted = false;
    const bool keeps = s.Chance(s.options_.faults.keeps_memory);
    s.Out(*p, event::Released{c.worker, c.slot, c.epoch, keeps ? 1000 : 1 << 30}, s.Delay(0.005));
  }
  void operator()(const command::Grant& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    p->epoch = c.epoch;
    p->draining.reset();
    if (p->role != c.role) {
      SIM_CHECK(p->role == Role::kNone) << "granted " << Name(c.role) << " while it holds " << Name(p->role);
      p->admitted = false;
      p->role = c.role;
    }
    s.Out(*p, event::Granted{c.worker, c.slot, c.epoch}, s.Delay(0.01));
  }
  void operator()(const command::FormGroup& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->role == Role::kActor && c.members.at(static_cast<size_t>(c.rank)).worker == c.worker);
    p->group_epoch = c.group_epoch;
    s.Out(*p, event::GroupFormed{c.worker, c.group_epoch, s.Chance(s.options_.faults.group_error) ? "sim" : ""}, s.Delay(0.05));
  }
  void operator()(const command::FetchState& c) {
    Proc* p = s.Find(c.worker);
    Proc* q = s.Find(c.from);
    if (p == nullptr || p->hung) return;
    const bool there = q != nullptr && !q->hung && q->state_step == c.step && q->state == c.weights_digest;
    if (!there || s.Chance(s.options_.faults.fetch_error)) {
      s.Out(*p, event::StateReady{c.worker, c.step, 0, "sim"}, s.Delay(0.2));
      return;
    }
    Ready(c.worker, c.step, q->state);
  }
  void operator()(const command::AbortStep& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    s.LeaveStep(*p);
    s.Out(*p, event::StepAborted{c.worker, c.lease, p->state_step, p->state}, s.Delay(0.05));
  }
  void operator()(const command::InitState& c) { Ready(c.worker, {0}, Mix64(42)); }
  void operator()(const command::RestoreState& c) {
    uint64_t weights = 0;
    if (c.ckpt < 0) {
      const auto it = s.recovery_.find(c.step);
      if (it == s.recovery_.end()) {
        if (Proc* p = s.Find(c.worker)) s.Out(*p, event::StateReady{c.worker, c.step, 0, "no such copy"}, 0.1);
        return;
      }
      weights = it->second;
    } else {
      weights = s.checkpoints_[c.ckpt].weights;
      SIM_CHECK(s.checkpoints_[c.ckpt].step == c.step) << "checkpoint";
    }
    Ready(c.worker, c.step, weights);
  }
  void Ready(const WorkerRef& ref, StepNumber step, uint64_t weights) {
    Proc* p = s.Find(ref);
    if (p == nullptr) return;
    s.LeaveStep(*p);
    if (s.Chance(s.options_.faults.state_error)) {
      s.Out(*p, event::StateReady{ref, step, 0, "sim"}, s.Delay(0.3));
      return;
    }
    p->state_step = step;
    p->state = weights;
    s.Out(*p, event::StateReady{ref, step, weights, ""}, s.Delay(0.3));
  }
  void operator()(const command::Train& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->role == Role::kActor && p->epoch == c.epoch && p->state_step.value + 1 == c.step.value && p->in_step < 0)
        << "step " << c.step.value << " on state " << p->state_step.value;
    SIM_CHECK(c.world == 1 || p->group_epoch == c.group_epoch);
    SIM_CHECK(s.lease_.lease == c.lease && static_cast<int64_t>(s.lease_.tids.size()) == c.total_rows);
    Step& step = s.steps_[c.lease];
    if (step.life != s.life_) step = {.procs = {}, .broken = false, .weights = 0, .life = s.life_};
    step.procs.insert(p->id);
    p->in_step = c.lease;
    const int64_t id = p->id;
    s.waiting_[id] = c;
    if (step.procs.size() == 1) {
      step.weights = p->state;
      for (const SampleId& tid : s.lease_.tids) {
        const auto it = s.payload_.find(tid);
        SIM_CHECK(it != s.payload_.end()) << "training " << ToString(tid) << " without payload";
        SIM_CHECK(s.controller_->FindPayload(tid) != nullptr && s.controller_->FindPayload(tid)->digest == it->second.content);
        if (it == s.payload_.end()) continue;
        step.weights = Mix64(step.weights ^ it->second.content ^ SampleUid(tid));
      }
      if (!s.options_.deterministic_training) step.weights = Mix64(step.weights ^ static_cast<uint64_t>(s.seq_));
    }
    if (s.Chance(s.options_.faults.train_fails / static_cast<double>(c.world))) {
      s.At(FromSeconds(s.Delay(0.3)), [&s = s, id, c] {
        Proc* q = s.Find(id);
        if (q == nullptr || q->hung || q->in_step != c.lease) return;
        s.LeaveStep(*q);
        s.Out(*q, event::TrainFailed{c.worker, c.step, c.lease, "sim", false});
      });
      return;
    }
    if (static_cast<int64_t>(step.procs.size()) < c.world) return;
    // All are in: the last collective of the step, unless somebody has left by then.
    const double seconds = s.Delay(0.3);
    const bool nonfinite = s.Chance(s.options_.faults.nonfinite);
    const int64_t lease = c.lease, life = s.life_;
    s.At(FromSeconds(seconds), [&s = s, lease, life, seconds, nonfinite] {
      Step& step = s.steps_.at(lease);
      if (step.life != life) return;
      for (const int64_t member : step.procs) {
        Proc* q = s.Find(member);
        step.broken |= q == nullptr || q->hung || q->in_step != lease;
      }
      if (step.broken) return;
      for (const int64_t member : step.procs) {
        const command::Train train = s.waiting_.at(member);
        if (nonfinite) {
          Proc* q = s.Find(member);
          q->in_step = -1;
          s.Out(*q, event::TrainDone{train.worker, train.step, lease, false, 0, seconds});
          continue;
        }
        const uint64_t weights = step.weights;
        s.At(FromSeconds(s.Delay(0.02)), [&s = s, member, train, weights, seconds] { s.EndStep(member, train, weights, seconds); });
      }
    });
  }
  void operator()(const command::CopyRecovery& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->state_step == c.step);
    s.recovery_[c.step] = p->state;
    while (s.recovery_.size() > 2) s.recovery_.erase(s.recovery_.begin()->first < c.step ? s.recovery_.begin() : std::prev(s.recovery_.end()));
    s.Out(*p, event::RecoveryCopied{c.worker, c.step}, s.Delay(0.05));
  }
  void operator()(const command::Publish& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->state == c.digest && p->state_step.value == c.v.number) << "publish";
    const bool fails = s.Chance(s.options_.faults.publish_error);
    if (!fails) s.published_[c.v] = c.digest;
    s.Out(*p, event::Published{c.worker, c.v, fails ? "sim" : ""}, s.Delay(0.02));
  }
  void operator()(const command::Load& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    p->loading = c.v;
    const int64_t id = p->id;
    const bool error = s.Chance(s.options_.faults.load_error), bad = s.Chance(s.options_.faults.bad_load);
    const double delay = s.Delay(0.05);
    s.At(FromSeconds(delay), [&s = s, id, c, error, bad] {
      Proc* q = s.Find(id);
      if (q == nullptr || q->hung || q->loading != c.v) return;
      if (error) {
        s.Out(*q, event::Loaded{c.worker, c.v, 0, "sim"});
        return;
      }
      q->version = c.v;
      q->weights = s.published_[c.v] ^ (bad ? 1 : 0);
      s.Out(*q, event::Loaded{c.worker, c.v, q->weights, ""});
      if (q->draining) s.FinishDrain(*q);
    });
  }
  void operator()(const command::Admit& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->version == c.v);
    p->loading.reset();
    p->admitted = true;
  }
  void operator()(const command::WriteCheckpoint& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->state_step == c.step) << "checkpoint of step " << c.step.value << ", state is of " << p->state_step.value;
    const double delay = s.Delay(0.2);
    if (s.Chance(s.options_.faults.checkpoint_fails)) {
      s.Storage(event::CheckpointFailed{c.ckpt, "disk full"}, delay);
      return;
    }
    const uint64_t weights = p->state;
    const int64_t life = s.life_;
    s.At(FromSeconds(delay), [&s = s, c, weights, life] {
      s.checkpoints_[c.ckpt] = {c.step, weights, s.Chance(s.options_.faults.checkpoint_rots)};
      if (life == s.life_) s.Deliver(event::CheckpointWritten{c.ckpt, c.step, Mix64(weights), weights});
    });
  }
  void operator()(const command::VerifyCheckpoint& c) {
    const auto it = s.checkpoints_.find(c.ckpt);
    std::string error = it == s.checkpoints_.end() ? "missing" : it->second.rotten ? "digest of model.safetensors differs" : "";
    s.Storage(event::CheckpointVerified{c.ckpt, error}, s.Delay(0.1));
  }
  void operator()(const command::DeleteCheckpoint& c) { s.checkpoints_.erase(c.ckpt); }
  void operator()(const command::SaveFinal&) { s.Storage(event::FinalSaved{""}, 0.1); }
  void operator()(const command::StepReport& c) { s.reports_.push_back(c); }
  void operator()(const command::EvalReport& c) { s.evals_.push_back(c); }
  void operator()(const command::Warn& c) { s.warnings_.push_back(c.line); }
  void operator()(const command::Finish& c) {
    s.result_.ended = true;
    s.result_.code = c.code;
    s.result_.why = c.why;
    s.over_ = true;
  }
};

void SimCluster::Execute(const Command& command) { std::visit(Do{*this}, command); }

void SimCluster::Tick() {
  const int64_t lives = result_.lives;
  if (over_) return;
  Deliver(event::Tick{});
  At(FromSeconds(kTick), [this] { Tick(); });
  TP_CHECK(lives <= 100000) << "the controller never comes up";
}

void SimCluster::DealFaults() {
  const SimFaults& f = options_.faults;
  const auto some = [this]() -> Proc* {
    std::vector<Proc*> alive;
    for (auto& [id, p] : procs_) {
      if (p.alive && !p.hung) alive.push_back(&p);
    }
    if (alive.empty()) return nullptr;
    return alive[static_cast<size_t>(rng_faults_.Below(static_cast<int64_t>(alive.size())))];
  };
  Fault(f.kill_mean_s, "kill", [this, some] { if (Proc* p = some()) Die(*p, true); });
  Fault(f.hang_mean_s, "hang", [some] { if (Proc* p = some()) p->hung = true; });
  Fault(f.controller_crash_mean_s, "controller", [this] {
    if (controller_ == nullptr) return;
    AfterController();
    At(FromSeconds(0.5), [this] { StartController(); });
  });
  if (f.stop_at_s > 0) At(FromSeconds(f.stop_at_s), [this] { Deliver(event::StopRequested{"SIGTERM", false}); });
  if (f.stop_now_after_s > 0) At(FromSeconds(f.stop_at_s + f.stop_now_after_s), [this] { Deliver(event::StopRequested{"SIGTERM", true}); });
}

SimResult SimCluster::Run() {
  if (life_ == 0) {
    DealFaults();
  } else {
    over_ = false;
    result_.ended = false;
    AfterController();
    for (auto& [id, p] : procs_) p.alive = false;
  }
  At(FromSeconds(kTick), [this] { Tick(); });
  StartController();
  while (!queue_.empty() && !over_ && now_ < FromSeconds(options_.limit_s)) {
    Entry e = queue_.top();
    queue_.pop();
    now_.t = e.at;
    e.action();
  }
  result_.seconds = Seconds(now_.t.since_start);
  for (const JournalEntry& e : journal_) {
    if (const auto* c = std::get_if<record::StepCommit>(&e.record)) result_.weights = c->digest;
  }
  result_.journal_hash = HashJournal(journal_);
  return result_;
}

}  // namespace tidepool::scheduler
