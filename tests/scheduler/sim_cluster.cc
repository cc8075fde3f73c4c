#include "tests/scheduler/sim_cluster.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/hash.h"

namespace tidepool::scheduler {
namespace {

constexpr double kTick = 0.1, kTokenSeconds = 0.01, kStepTokens = 4;

}  // namespace

SimCluster::SimCluster(const SimOptions& options)
    : options_(options),
      rng_delays_(Rng(options.seed).Fork("delays")),
      rng_faults_(Rng(options.seed).Fork("faults")) {}
SimCluster::~SimCluster() = default;

double SimCluster::Delay(double mean_s) { return mean_s * (0.2 + 1.6 * rng_delays_.Uniform()); }

void SimCluster::At(Duration delay, Action action) {
  queue_.push({now_.t + delay, seq_++, std::move(action)});
}

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

SimCluster::Device* SimCluster::Find(const SlotRef& ref) {
  Proc* p = Find(ref.worker);
  return p == nullptr ? nullptr : Find(DeviceKey{p->id, ref.slot});
}

SimCluster::Device* SimCluster::Find(const DeviceKey& key) {
  Proc* p = Find(key.first);
  if (p == nullptr || p->hung) return nullptr;
  const auto it = p->devices.find(key.second);
  return it == p->devices.end() ? nullptr : &it->second;
}

int64_t SimCluster::LengthOf(const SampleId& tid) const {
  // Geometric-ish, the same for every attempt (noise is keyed by sample and position).
  const float u = SampleUniform(options_.seed, SampleUid(tid), 0, 7);
  return std::max<int64_t>(1, static_cast<int64_t>(-std::log(1 - u) * options_.mean_tokens));
}

int64_t SimCluster::TurnLength(const SampleId& tid, int64_t turn) const {
  return 1 + static_cast<int64_t>(
                 SampleUniform(options_.seed, SampleUid(tid), static_cast<uint32_t>(turn), 10) * 8);
}
int64_t SimCluster::TurnsOf(const SampleId& tid) const {
  return 1 + static_cast<int64_t>(SampleUniform(options_.seed, SampleUid(tid), 0, 11) * 5);
}
int64_t SimCluster::ObservationOf(const SampleId& tid, int64_t turn) const {
  if (turn == 0) return 5 + tid.ordinal % options_.controller.data_rows % 3;
  return 1 + static_cast<int64_t>(
                 SampleUniform(options_.seed, SampleUid(tid), static_cast<uint32_t>(turn), 12) * 4);
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
    if (std::holds_alternative<event::WorkerJoined>(event)) it->second.asked = ++asks_;
    if (const auto* progress = std::get_if<event::ChunkProgress>(&event);
        progress != nullptr && controller_ != nullptr) {
      expected_ = controller_->Expects(SlotOf(*progress), progress->tid, progress->att);
    }
    Deliver(event);
    // Token messages are made unique by the reply window; a repeat of another kind has to be harmless.
    if (!std::holds_alternative<event::ChunkProgress>(event) && Chance(options_.faults.duplicate))
      Deliver(event);
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
  crash_ = crash_now_ = false;
  tokens_.clear();
  ControllerOptions job = options_.controller;
  if (!kept_best_.empty()) job.checkpoint.best = {kept_best_.back().step, kept_best_.back().value};
  auto created = Controller::Create(job, journal_);
  TP_CHECK(created.ok()) << created.status().ToString();
  controller_ = std::move(created).value();
  const int64_t life = life_;
  // Workers that wait for the controller come back.
  for (auto& [id, p] : procs_) {
    if (!p.alive || p.hung) continue;
    At(FromSeconds(Delay(0.2)), [this, id = id, life] {
      if (life == life_) Offer(id);
    });
  }
  Deliver(event::Started{});
}

// Only what a real process could say of itself. What a load is overwriting is no version. A step that it is
// inside of it leaves first, whichever life began it: the new controller may know nothing of it
// (DeviceMachine::CalledOff).
void SimCluster::Offer(int64_t id) {
  Proc* p = Find(id);
  if (p == nullptr) return;
  p->joined = false;
  for (auto& [slot, d] : p->devices) LeaveStep(d);
  event::WorkerJoined join{.worker = p->worker,
                           .name = "again",
                           .kind = p->kind,
                           .restored_inc = p->inc,
                           .slots = {},
                           .chunks = {},
                           .host = HostOf(p->worker)};
  for (const auto& [slot, d] : p->devices) {
    join.slots.push_back(
        {slot, d.version, d.version.valid() ? d.weights : 0, d.state_step, d.state, d.shard});
    if (d.done && d.done->step == d.state_step) join.slots.back().done = {*d.done};
    for (const auto* chunks : {&d.chunks, &d.ended}) {
      for (const auto& [key, c] : *chunks)
        join.chunks.push_back({slot, c.tid, c.att, c.tokens.count, c.tokens.v_min, c.tokens.v_max});
    }
  }
  Out(*p, join);
}

void SimCluster::SendHeld(Device& d) {
  // Each controller is told of it, as long as the slot is one of the engine's.
  if (d.broken && d.role == Role::kRollout) Out(d, event::EngineLost{d.proc->ref(), d.slot, "sim"});
  if (options_.controller.environment.used) return;  // episodes begin again
  for (const auto* chunks : {&d.chunks, &d.ended}) {
    for (const auto& [key, c] : *chunks) {
      Tokens sent;
      for (const Mark& m : c.tokens.marks) {
        const int64_t count = m.count - sent.count;
        sent.count = m.count;
        sent.content = m.content;
        if (!sent.v_min.valid() || m.v < sent.v_min) sent.v_min = m.v;
        if (!sent.v_max.valid() || sent.v_max < m.v) sent.v_max = m.v;
        sent.marks.push_back(m);
        SendTokens(d, c, sent, count, m.v);
      }
    }
  }
  for (const auto& [key, c] : d.ended) SendEnd(d, c);
}

void SimCluster::SendTokens(Device& d, const Chunk& c, const Tokens& after, int64_t count, const Version& v) {
  Proc& p = *d.proc;
  Out(p, event::ChunkProgress{p.ref(), d.slot, c.tid, c.att, count, v});
  // The controller process has them with the message and not without it.
  At(p.last_out - now_.t, [this, key = std::pair(c.tid, c.att), after, life = life_, id = p.id] {
    const auto it = procs_.find(id);
    if (life == life_ && controller_ && expected_ && it != procs_.end() && !it->second.hung)
      tokens_[key] = after;
  });
}

void SimCluster::SendEnd(Device& d, const Chunk& c) {
  Proc& p = *d.proc;
  Out(p, event::ChunkFinished{p.ref(), d.slot, c.tid, c.att, *c.end, ""});
  At(p.last_out - now_.t, [this, key = std::pair(c.tid, c.att), life = life_, id = p.id, slot = d.slot] {
    Proc* q = Find(id);  // also one that hangs
    if (q == nullptr || life != life_ || !controller_) return;
    if (const auto it = q->devices.find(slot); it != q->devices.end()) it->second.ended.erase(key);
  });
}

void SimCluster::CrashController() { crash_ = true; }

void SimCluster::AfterController() {
  // What was not synced may be gone, from any record on.
  if (options_.disk != nullptr) {
    controller_.reset();
    journal_ = options_.disk->Reopen();
  } else if (journal_.size() > durable_) {
    journal_.resize(durable_ + static_cast<size_t>(
                                   rng_faults_.Below(static_cast<int64_t>(journal_.size() - durable_) + 1)));
  }
  durable_ = journal_.size();
  controller_.reset();
  ++life_;
  if (options_.controller.fleet.reattach_grace_s <= 0) {
    for (auto& [id, p] : procs_) p.alive = false;
  }
}

void SimCluster::Deliver(const Event& event) {
  if (controller_ == nullptr || over_) return;
  if (on_event && !on_event(event)) {
    if (std::holds_alternative<event::ChunkProgress>(event))
      expected_ = false;  // its tokens are lost with it
    return;
  }
  ++result_.events;
  const std::vector<Command> commands = controller_->Handle(event, now_.t);
  const size_t before = durable_, length = journal_.size();
  bool durable = false;
  for (const Command& c : commands) {
    if (const auto* a = std::get_if<command::Append>(&c)) {
      journal_.push_back({.lsn = {static_cast<int64_t>(journal_.size())},
                          .ctl_epoch = static_cast<uint32_t>(result_.lives),
                          .mono_ns = static_cast<uint64_t>(now_.t.since_start.count()),
                          .record = a->record});
      durable |= !IsLazy(a->record);
      if (const auto* lease = std::get_if<record::Lease>(&a->record)) lease_ = *lease;
    }
  }
  if (!commands.empty() && Chance(options_.faults.crash_in_batch)) {
    // Any part of the records may have reached the disk, no command was executed.
    durable_ = before;
    Restart();
    return;
  }
  if (cut_at_record >= 0 && static_cast<int64_t>(journal_.size()) > cut_at_record) {
    TP_CHECK(options_.disk == nullptr);
    journal_.resize(static_cast<size_t>(cut_at_record));
    durable_ = journal_.size();
    cut_at_record = -1;
    ++result_.faults;
    Restart();
    return;
  }
  if (options_.disk != nullptr && journal_.size() > length) {
    const Status written = options_.disk->Append(std::span(journal_).subspan(length), durable);
    if (!written.ok()) {
      DiskFailed(written);
      return;
    }
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
    if (crash_now_) break;
    Execute(c);
    if (on_executed) on_executed(c);
    if (crash_now_ || controller_ == nullptr) break;
  }
  if (crash_ && !over_ && controller_ != nullptr) {
    ++result_.faults;
    Restart();
  }
}

void SimCluster::DiskFailed(const Status& why) {
  ++result_.faults;
  if (options_.disk->down()) {
    if (controller_ != nullptr) Restart();
    return;
  }
  result_.ended = over_ = true;  // it cannot write down what it does, so it ends
  result_.code = 3;
  result_.why = "fault=storage " + why.ToString();
}

void SimCluster::Spawn(WorkerId worker) {
  ++started_workers_;
  const int64_t life = life_;
  if (options_.faults.last_stays_away && worker.value == options_.controller.device_workers() - 1) return;
  if (Chance(options_.faults.start_fails)) {
    At(FromSeconds(Delay(0.5)), [this, worker, life] {
      if (life == life_) Deliver(event::WorkerStartFailed{worker, "exit status 1", options_.faults.for_good});
    });
    return;
  }
  const int64_t id = next_proc_++;
  Proc& p = procs_[id];
  p.id = id;
  p.worker = worker;
  p.kind = worker.value < options_.controller.device_workers() ? WorkerKind::kDevice
                                                               : options_.controller.side_kind();
  event::WorkerJoined join{.worker = worker,
                           .name = "w",
                           .kind = p.kind,
                           .restored_inc = {},
                           .slots = {},
                           .chunks = {},
                           .host = HostOf(worker)};
  Out(p, join, Delay(0.5));
}

void SimCluster::Die(Proc& proc, bool seen) {
  if (!proc.alive) return;
  proc.alive = false;
  for (auto& [slot, d] : proc.devices) LeaveStep(d);
  const int64_t life = life_;
  const WorkerRef ref{proc.worker, proc.inc};
  const bool joined = proc.joined;
  if (!seen) return;
  At(FromSeconds(Delay(0.05)), [this, ref, life, joined] {
    if (life != life_) return;
    if (joined) {
      Deliver(event::WorkerLost{ref, "killed", true, {}, options_.faults.for_good});
    } else {
      Deliver(event::WorkerStartFailed{ref.worker, "died before it joined", options_.faults.for_good});
    }
  });
}

void SimCluster::KillWorker(WorkerId worker) {
  for (auto& [id, p] : procs_) {
    if (p.alive && p.worker == worker) Die(p, true);
  }
}

void SimCluster::KillWorkerUnsent(WorkerId worker) {
  for (auto& [id, p] : procs_) {
    if (!p.alive || p.worker != worker) continue;
    Die(p, true);
    p.hung = true;
  }
}

void SimCluster::Beat(int64_t id) {
  Proc* p = Find(id);
  if (p == nullptr || p->hung || over_) return;
  if (controller_ != nullptr && p->joined && !Chance(options_.faults.lost_heartbeat)) {
    event::Heartbeat beat{.worker = p->ref(), .engines = {}, .op = "", .op_seq = p->op_seq};
    const double pressure = options_.faults.kv_pressure;
    for (const auto& [slot, d] : p->devices) {
      const auto running = static_cast<int64_t>(d.chunks.size());
      if (running == 0) continue;
      beat.engines.push_back(
          {.slot = slot,
           .kv_usage = pressure > 0 ? std::min(1.0, 2 * pressure * rng_faults_.Uniform()) : 0.1,
           .running = running,
           .waiting = pressure > 0.5 ? running : 0,
           .step_s = kTokenSeconds * kStepTokens,
           .decode_s = kTokenSeconds * kStepTokens});
    }
    Out(*p, beat);
  }
  At(FromSeconds(0.5), [this, id] { Beat(id); });
}

std::vector<SimCluster::Device*> SimCluster::GangOf(SlotId first) {
  std::vector<Device*> members;
  for (const std::vector<SlotId>& gang : options_.controller.fleet.gangs) {
    if (gang.front() != first) continue;
    for (const SlotId slot : gang) {
      for (auto& [id, proc] : procs_) {
        if (Device* d = Find(DeviceKey{id, slot})) members.push_back(d);
      }
    }
  }
  return members;
}

void SimCluster::BreakEngine(SlotId first) {
  for (Device* d : GangOf(first)) {
    d->broken = true;
    Out(*d, event::EngineLost{d->proc->ref(), d->slot, "sim"});
  }
}

// An engine steps with all slots of its gang.
bool SimCluster::Together(Device& first) {
  const auto& gangs = options_.controller.fleet.gangs;
  const auto gang =
      std::ranges::find_if(gangs, [&](const std::vector<SlotId>& g) { return g.front() == first.slot; });
  if (gang == gangs.end()) return true;
  if (!first.broken && Chance(options_.faults.engine_lost)) BreakEngine(first.slot);
  return !first.broken && GangOf(first.slot).size() == gang->size();
}

bool SimCluster::AllTrained(const command::Load& c) {
  return std::ranges::all_of(GangOf(c.slot), [&](const Device* d) {
    return !d->proc->joined || (d->state_step.value == c.v.number && d->state == c.digest);
  });
}

void SimCluster::EngineStep(const DeviceKey& device) {
  Device* p = Find(device);
  if (p == nullptr || over_) return;
  if (p->proc->joined && !p->loading && p->admitted && Together(*p)) {
    std::vector<std::pair<SampleId, int32_t>> keys;
    for (const auto& [key, c] : p->chunks) keys.push_back(key);
    for (const auto& key : keys) {
      Chunk& c = p->chunks.at(key);
      if (Chance(options_.faults.chunk_error)) {
        Out(*p, event::ChunkFinished{p->proc->ref(), p->slot, c.tid, c.att, event::ChunkEnd::kError, "sim"});
        p->chunks.erase(key);
        continue;
      }
      const bool episode = options_.controller.environment.used;
      const int64_t length =
                        episode ? c.tokens.turn_start + TurnLength(c.tid, c.tokens.turn) : LengthOf(c.tid),
                    limit = c.limit;
      const int64_t n =
          std::min({static_cast<int64_t>(kStepTokens), c.left, std::min(length, limit) - c.tokens.count});
      for (int64_t i = 0; i < n; ++i)
        c.tokens.content = Mix64(c.tokens.content ^ p->weights ^ static_cast<uint64_t>(c.tokens.count++));
      c.left -= n;
      if (!c.tokens.v_min.valid() || p->version < c.tokens.v_min) c.tokens.v_min = p->version;
      if (!c.tokens.v_max.valid() || c.tokens.v_max < p->version) c.tokens.v_max = p->version;
      if (c.tokens.marks.empty() || c.tokens.marks.back().v != p->version)
        c.tokens.marks.push_back({.v = p->version});
      c.tokens.marks.back() = {c.tokens.count, c.tokens.content, p->version};
      SendTokens(*p, c, c.tokens, n, p->version);
      if (c.tokens.count >= length)
        c.end = event::ChunkEnd::kEos;
      else if (c.tokens.count >= limit)
        c.end = event::ChunkEnd::kLength;
      else if (c.left <= 0)
        c.end = event::ChunkEnd::kChunkLimit;
      if (c.end) {
        SendEnd(*p, p->ended[key] = c);
        p->chunks.erase(key);
      }
    }
    if (p->draining) FinishDrain(*p);
  }
  At(FromSeconds(kTokenSeconds * kStepTokens), [this, device] { EngineStep(device); });
}

// Who leaves a collective before its end takes the others' step along: they wait for ever, or for AbortStep.
void SimCluster::LeaveStep(Device& d) {
  if (d.in_step < 0) return;
  steps_[d.in_step].broken = true;
  d.in_step = -1;
}

std::vector<record::VersionTokens> SimCluster::Tokens::Runs() const {
  std::vector<record::VersionTokens> runs;
  const int64_t last = v_min == v_max ? 0 : std::min<int64_t>(1, count - 1);
  if (count > last) runs.push_back({v_min, count - last});
  if (last > 0) runs.push_back({v_max, last});
  return runs;
}

void SimCluster::EndStep(const DeviceKey& device, const command::Train& c, uint64_t weights, double seconds) {
  Device* p = Find(device);
  if (p == nullptr || p->proc->inc != c.worker.inc || p->in_step != c.lease) return;
  p->in_step = -1;
  p->SetState(c.step, weights);
  ++p->proc->op_seq;
  event::TrainDone done{c.worker, c.slot, c.step, c.lease, true, weights, seconds, {}};
  for (const auto& group : c.share->groups) {
    for (const SampleId& tid : group) {
      const Tokens& stored = payload_[tid];
      event::GivenRow& row = done.rows.emplace_back(event::GivenRow{tid, stored.content, 0});
      for (const record::VersionTokens& run : stored.Runs()) {
        if (std::ranges::find(c.share->stale, run.v) != c.share->stale.end()) row.masked += run.tokens;
      }
    }
  }
  if (c.rank == options_.rank_of_other_rows) done.rows.front().digest ^= 1;
  if (c.rank == options_.rank_of_other_mask) ++done.rows.front().masked;
  if (c.rank == options_.rank_of_row_left_out) done.rows.pop_back();
  if (c.rank == options_.rank_of_row_twice) done.rows.push_back(event::GivenRow(done.rows.front()));
  p->done = done;
  Out(*p, std::move(done));
}

void SimCluster::FinishDrain(Device& d) {
  const WorkerRef ref = d.proc->ref();
  for (const auto& [key, c] : d.chunks)
    Out(d, event::ChunkFinished{ref, d.slot, c.tid, c.att, event::ChunkEnd::kDrained, ""});
  d.chunks.clear();
  Out(d, event::Drained{ref, d.slot, d.draining->epoch});
  d.draining.reset();
}

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
  Fault(f.kill_mean_s, "kill", [this, some] {
    if (Proc* p = some()) Die(*p, true);
  });
  Fault(f.hang_mean_s, "hang", [some] {
    if (Proc* p = some()) p->hung = true;
  });
  Fault(f.controller_crash_mean_s, "controller", [this] {
    if (controller_ == nullptr) return;
    AfterController();
    At(FromSeconds(0.5), [this] { StartController(); });
  });
  if (f.stop_at_s > 0)
    At(FromSeconds(f.stop_at_s), [this] { Deliver(event::StopRequested{"SIGTERM", false}); });
  if (f.stop_now_after_s > 0)
    At(FromSeconds(f.stop_at_s + f.stop_now_after_s), [this] {
      Deliver(event::StopRequested{"SIGTERM", true});
    });
}

SimResult SimCluster::Run() {
  if (life_ == 0) {
    if (options_.disk != nullptr) journal_ = options_.disk->Reopen();
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
