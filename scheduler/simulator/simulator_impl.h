#pragma once
// Inside of the simulator: the controller's surroundings and what they do with its commands (faults:
// simulator_faults.cc). Included by the simulator's own sources alone.

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/base/rng.h"
#include "scheduler/checker.h"
#include "scheduler/flat_table.h"
#include "scheduler/id_map.h"
#include "scheduler/ordered_ids.h"
#include "scheduler/simulator/engine_model.h"
#include "scheduler/simulator/journal_hash.h"
#include "scheduler/simulator/simulator.h"
#include "scheduler/small_set.h"

namespace tidepool::scheduler {
constexpr double kHeartbeatSeconds = 30;

struct Simulator::Impl {
  struct Engine {
    WorkerRef ref;
    Role role = Role::kNone;
    SlotId slot;
    LeaseEpoch epoch;
    Version v;
    uint64_t weights = 0;
    EngineModel model;
    SmallSet<GroupId> groups;  // whose prompt is in its cache
    StepNumber state_step;
    uint64_t state = 0;
    int64_t group_epoch = 0, beats = 0;
    bool working = false, training = false;  // of slots that share a machine
    double slow = 1;                         // a slow node
    double noise = 1;                        // job.jitter
    uint32_t drawn = 0;
    bool beside = false;  // other slots of the machine are at work
    int64_t caches = 0;   // how often it gave its caches away
  };
  enum class Kind : uint8_t { kEvent, kEngine, kTurn, kTick, kTrained, kFault };
  enum Fault : int64_t { kKill, kHang, kPartition, kSlowDisk, kStop, kControllerKill, kResume };
  struct Entry {
    double t;
    int64_t seq;
    Kind kind;
    int64_t a = 0, b = 0;
    SampleId tid;
    bool operator<(const Entry& o) const { return t != o.t ? t > o.t : seq > o.seq; }
  };
  struct Step {
    std::vector<command::Train> members;
    std::map<WorkerId, double> seconds;  // of each rank
  };
  struct SampleFacts {
    int64_t engine = -1;  // where its KV is, -1: nowhere, and of which weights it is
    Version v;
    int64_t caches = 0;       // of the engine, then
    int64_t tokens = 0;       // so far
    int64_t turn_begin = -1;  // of an episode: its tokens where its turn began; -1: no turn is under way
  };

  SimJob job;
  CostModel cost;
  WorkloadDraws draws;
  FaultDealer faults;
  std::unique_ptr<Controller> controller;
  std::priority_queue<Entry> queue;  // all but ...
  OrderedIds<std::pair<double, int64_t>>
      stops;                // by time and sequence number: ... where engines stop next (Kind::kEngine)
  std::vector<Event> slab;  // events on their way
  std::vector<int64_t> free_slab;
  int64_t seq = 0;
  double now = 0;
  bool over = false;
  // Faults.
  bool faulty = false, resumes = false, stopping = false, down = false;
  double disk_slow_until = 0;
  std::map<WorkerId, double> last_out, partition_until;
  std::set<WorkerId> started;
  std::vector<JournalEntry> journal;                  // where the controller may be started again
  std::map<int64_t, uint64_t> checkpoints, recovery;  // weights by checkpoint, by step
  IdMap<WorkerId, Engine> engines;
  FlatTable<SampleId, SampleFacts> samples;
  std::map<int64_t, Step> training;  // by lease
  std::map<Version, uint64_t> published;
  record::Lease lease;
  int64_t records = 0;
  JournalHasher hash;
  Checker checker;
  SimReport report;
  std::vector<double> commits;
  std::vector<double> finishes;  // of samples since the last commit
  double first_start = -1;
  SlotTime time;
  double reported = 0;  // time of the last step report

  explicit Impl(const SimJob& j)
      : job(j),
        cost(j.hardware, j.model, j.devices_per_slot, j.engine_efficiency),
        draws(j.seed, j.lengths, j.turns, j.recorded_lengths, j.controller.config.rollout.max_new_tokens,
              j.controller.config.environment.max_turn_tokens),
        faults(j.faults, j.seed),
        samples(j.controller.config.rollout.group_size) {
    if (job.true_lengths)
      job.controller.dispatch.oracle = [this](const SampleId& tid) { return draws.Length(tid); };
    JobConfig& c = job.controller.config;
    c.cluster.heartbeat_s = kHeartbeatSeconds;
    c.cluster.start_timeout_s = 1e7;  // nothing is lost here, and transfers of big models take long
    c.cluster.stall_timeout_s = 1e7;
    c.eval.before_train = c.eval.after_train = false;
    c.eval.every_steps = 0;
    c.seed = job.seed;
    faulty = job.faults.any();
    resumes = job.faults.stop_at_s > 0 || job.faults.controller_kill_mean_s > 0;
    // Others would be lost only after the long times of a calm cluster.
    if (faulty) c.cluster.heartbeat_s = job.tick_s;
  }

  // Faults (simulator_faults.cc).
  double Disturbed(const Event& event, double delay);
  void Arrive(const Event& event);
  void CountLost(const command::StartChunk& c);
  void Die(WorkerId worker, Incarnation inc, bool seen);
  void BeatWithFaults();
  void NextFault(Fault kind);
  void Befall(Fault kind);
  void Halt();
  void Resume();
  [[nodiscard]] double DiskFactor() const {
    return now < disk_slow_until ? faults.shape().disk_slow_factor : 1;
  }

  [[nodiscard]] bool Episodic() const { return !job.controller.config.environment.name.empty(); }

  // --- queue

  void Push(double delay, Kind kind, int64_t a = 0, int64_t b = 0, const SampleId& tid = {}) {
    queue.push({now + std::max(0.0, delay), seq++, kind, a, b, tid});
  }
  // The next thing to happen; false: nothing is left.
  bool Pop(Entry& next) {
    if (queue.empty() && stops.empty()) return false;
    if (stops.empty() ||
        (!queue.empty() && stops.first().first >= std::pair(queue.top().t, queue.top().seq))) {
      next = queue.top();
      queue.pop();
      return true;
    }
    const auto [due, id] = stops.first();
    stops.Remove(id);
    next = {due.first, due.second, Kind::kEngine, id, 0, {}};
    return true;
  }
  void Send(Event event) { Send(std::move(event), job.message_s); }
  void Send(Event event, double delay) {
    if (faulty) delay = Disturbed(event, delay);
    int64_t i = 0;
    if (free_slab.empty()) {
      i = static_cast<int64_t>(slab.size());
      slab.push_back(std::move(event));
    } else {
      i = free_slab.back();
      free_slab.pop_back();
      slab[static_cast<size_t>(i)] = std::move(event);
    }
    Push(delay, Kind::kEvent, i);
  }
  void Deliver(const Event& event) {
    ++report.events;
    if (const auto* granted = std::get_if<event::Granted>(&event)) {
      if (const Engine* e = Find(granted->worker); e != nullptr)
        time.Hold(granted->worker.worker.value, e->role, now);
    }
    std::vector<Command> commands = controller->Handle(event, {FromSeconds(now)});
    for (const Command& c : commands) {
      const auto* a = std::get_if<command::Append>(&c);
      if (a == nullptr) continue;
      const JournalEntry entry{
          {records++}, static_cast<uint32_t>(report.lives), static_cast<uint64_t>(now * 1e9), a->record};
      hash.Add(entry);
      if (resumes) journal.push_back(entry);
      if (job.on_record) job.on_record(entry);
      if (job.check && report.violation.empty() && !checker.Feed(entry)) {
        const CheckResult r = checker.result();
        report.violation = r.predicate + " at record " + std::to_string(r.lsn.value) + ": " + r.why;
      }
      Note(a->record);
    }
    for (const Command& c : commands) {
      std::visit([this](const auto& x) { Do(x); }, c);
      if (over) return;
    }
  }

  // --- engines

  Engine* Find(const WorkerRef& ref) {
    Engine* e = engines.Find(ref.worker);
    return e == nullptr || e->ref != ref ? nullptr : e;
  }
  void Schedule(Engine& e) {
    time.Busy(Role::kRollout, e.model.TakeBusy());
    report.tokens += e.model.TakeTokens();
    const double at = e.model.Next(job.per_step);
    if (std::isfinite(at)) {
      stops.Set(e.ref.worker.value, {now + std::max(0.0, at - now), seq++});
    } else {
      stops.Remove(e.ref.worker.value);
    }
    if (job.slow_beside != 1 && e.model.working() != e.working) Share(e);
  }
  // Slots of one machine: `changed` began or ended to work, the others feel it.
  void Share(Engine& changed) {
    changed.working = changed.model.working();
    int64_t working = 0;
    for (const auto& [id, e] : engines) working += e.working || e.training ? 1 : 0;
    for (auto& [id, e] : engines) {
      e.beside = working > (e.working || e.training ? 1 : 0);
      if (SetFactor(e)) Schedule(e);
    }
  }
  double Noise(Engine& e) {
    return job.jitter > 0 ? draws.Jitter(static_cast<uint64_t>(e.ref.worker.value), e.drawn++, job.jitter)
                          : 1;
  }
  bool SetFactor(Engine& e) {
    return e.model.SetFactor(e.slow * e.noise * (e.beside ? job.slow_beside : 1), now);
  }
  // `delay`: until the step in which its last tokens were made is over.
  void Report(Engine& e, const EngineRun& r, event::ChunkEnd end, double delay = 0) {
    SampleFacts& s = samples[r.tid];
    if (!faulty) s.tokens = r.total;  // else when they arrive
    s.engine = e.ref.worker.value;
    s.v = e.v;
    s.caches = e.caches;
    if (r.generated > 0)
      Send(event::ChunkProgress{e.ref, r.tid, r.att, r.generated, e.v}, delay + job.message_s);
    Send(event::ChunkFinished{e.ref, r.tid, r.att, end, ""}, delay + job.message_s);
  }
  void EngineStop(Engine& e) {
    for (const SampleId& tid : e.model.Stop(now)) {
      EngineRun& r = *e.model.Find(tid);
      if (r.total_left <= 0) {
        finishes.push_back(now);
        Report(e, e.model.Take(tid), event::ChunkEnd::kEos);
      } else if (r.chunk_left <= 0) {
        Report(e, e.model.Take(tid), event::ChunkEnd::kChunkLimit);
      } else {  // the end of a turn
        r.turn_left = draws.TurnTokens(tid);
        Push(draws.EnvironmentSeconds(tid, r.total), Kind::kTurn, e.ref.worker.value, 0, tid);
      }
    }
    Schedule(e);
  }
  // --- commands

  void Note(const JournalRecord& r) {
    if (const auto* x = std::get_if<record::Lease>(&r)) lease = *x;
    if (const auto* x = std::get_if<record::Drop>(&r)) {
      ++report.dropped;
      report.stale += x->reason == DropReason::kStale ? 1 : 0;
    }
    if (const auto* x = std::get_if<record::TransitionBegin>(&r))
      report.switches += x->slots.front().from != Role::kNone ? 1 : 0;
    if (std::holds_alternative<record::TransitionRolledBack>(r)) ++report.rollbacks;
    if (const auto* x = std::get_if<record::StepCommit>(&r)) {
      report.steps_trained = x->step.value;
      commits.push_back(now);
      if (!finishes.empty()) {
        std::sort(finishes.begin(), finishes.end());
        report.rollout_s += finishes.back() - std::max(first_start, 0.0);
        report.tail_s += finishes.back() - finishes[finishes.size() * 9 / 10];
      }
      finishes.clear();
      first_start = -1;
    }
  }
  // One overload a command, so that a new command does not compile until somebody decided what it means here.
  void Do(const command::Append&) {}        // Deliver has taken the records
  void Do(const command::RefuseWorker&) {}  // only workers that were asked for join
  void Do(const command::Admit&) {}         // an engine of the model serves what it has loaded
  void Do(const command::EvalReport&) {}
  void Do(const command::Warn&) {}
  void Do(const command::StartWorker& c) {
    event::WorkerJoined join;
    join.worker = c.worker;
    join.name = "sim";
    join.kind = c.worker.value < job.controller.config.cluster.slots ? WorkerKind::kDevice
                                                                     : job.controller.side_kind();
    join.device_bytes = static_cast<int64_t>(job.hardware.memory_bytes) * job.devices_per_slot;
    const auto joins = job.join_s.find(c.worker);
    Send(std::move(join),
         Seconds(c.delay) + (report.lives > 1 || started.contains(c.worker) ? faults.shape().restart_s
                             : joins != job.join_s.end()                    ? joins->second
                                                                            : job.message_s));
    started.insert(c.worker);
  }
  void Do(const command::Welcome& c) {
    if (c.worker.value >= job.controller.config.cluster.slots) {
      side_inc[static_cast<size_t>(c.worker.value - job.controller.config.cluster.slots)] = c.inc.value;
      return;
    }
    engines.erase(c.worker);
    stops.Remove(c.worker.value);
    Engine& e = engines.Insert(c.worker, Engine{.model = EngineModel(cost, job.engine_quantum,
                                                                     job.tokens_per_step, job.step_gap_s)});
    e.ref = {c.worker, c.inc};
    e.slot = {c.worker.value};
    e.slow = faults.Slow(c.worker.value, job.seed) ? faults.shape().slow_factor : 1;
    SetFactor(e);
    time.Hold(c.worker.value, Role::kNone, now);
  }
  void Do(const command::PrepareRow& c) {
    Send(event::RowReady{c.ordinal, c.issue, job.prompt_tokens}, job.row_s);
  }
  void Do(const command::StartChunk& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr && faulty) return;
    if (faulty) CountLost(c);
    TP_CHECK(e != nullptr && e->role == Role::kRollout && e->epoch == c.epoch && e->v == c.v)
        << ToString(c.worker);
    if (first_start < 0) first_start = now;
    e->model.CatchUp(now);
    EngineRun r;
    r.tid = c.tid;
    r.att = c.att;
    r.gid = c.gid;
    r.context = job.prompt_tokens + c.generated;
    r.chunk_left = c.chunk_tokens;
    r.total = c.generated;
    r.total_left = draws.Length(c.tid) - c.generated;
    const int64_t turn = draws.TurnTokens(c.tid);
    r.turn_left = turn - c.generated % turn;
    if (Episodic()) {
      int64_t& begin = samples[c.tid].turn_begin;
      if (begin < 0) begin = c.generated;
      r.total_left = std::max<int64_t>(
          1, std::min(c.max_new_tokens - c.generated, draws.Said(c.tid) - (c.generated - begin)));
      r.turn_left = INT64_MAX / 4;
    }
    const auto* known = samples.find(c.tid);
    const bool cached = known != nullptr && known->second.engine == c.worker.worker.value &&
                        known->second.caches == e->caches && (c.keep_kv || known->second.v == c.v);
    if (!cached) {
      const bool prompt = e->groups.insert(c.gid).second;
      const bool pooled = job.kv_pool && known != nullptr && known->second.v == c.v;
      if (pooled)
        r.fetch_s = static_cast<double>(r.context) * job.model.KvBytes() /
                    (job.hardware.net_bytes_per_s * static_cast<double>(job.devices_per_slot));
      r.prefill = (pooled ? 0 : static_cast<double>(c.generated)) +
                  (prompt ? static_cast<double>(job.prompt_tokens) : 0);
      report.prefilled += r.prefill;
      report.prefilled_again += pooled ? 0 : static_cast<double>(c.generated);
    }
    e->model.Add(r, now);
    Schedule(*e);
  }
  void Do(const command::CancelChunk& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr) return;
    e->model.CatchUp(now);
    const EngineRun* r = e->model.Find(c.tid);
    if (r == nullptr || r->att != c.att) return;
    Report(*e, e->model.Take(c.tid), event::ChunkEnd::kCancelled);
    Schedule(*e);
  }
  void Do(const command::ForgetGroup& c) {
    Engine* e = Find(c.worker);
    if (e != nullptr) e->groups.erase(c.gid);
  }
  void Do(const command::DiscardTokens& c) { samples.erase(c.tid); }
  void Do(const command::EnvStep& c) {
    event::EnvStepped r{.worker = c.worker, .tid = c.tid, .att = c.att, .turn = c.turn};
    r.observation_tokens = c.turn == 0 ? job.prompt_tokens : job.turns.observation_tokens;
    r.done = c.turn >= draws.Turns(c.tid);
    r.reward = (SampleUid(c.tid) >> 7) % 2 == 0 ? 1 : 0;
    Send(std::move(r), draws.TurnSeconds(c.tid, c.turn));
  }
  void Do(const command::AppendObservation& c) {
    if (auto* known = samples.find(c.tid); known != nullptr) known->second.turn_begin = -1;
  }
  void Do(const command::StorePayload& c) {
    const int64_t n = samples.at(c.tid).tokens;
    Send(event::PayloadStored{c.tid,
                              c.att,
                              job.prompt_tokens,
                              n,
                              Mix64(SampleUid(c.tid) ^ static_cast<uint64_t>(n)),
                              0,
                              0,
                              4 * n,
                              {}},
         faults.shape().write_s * DiskFactor());
  }
  void Do(const command::Grade& c) {
    const double reward = (SampleUid(c.tid) >> 7) % 2 == 0 ? 1 : 0;
    Send(event::Graded{c.grader, c.tid, c.att, GradeOutcome::kOk, reward, {}, ""}, job.reward_s);
  }
  void Do(const command::Drain& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr) return;
    const double left = e->model.FinishStep(now) - now;  // the step under way ends first
    for (const SampleId& tid : e->model.Runs()) {
      const EngineRun r = e->model.Take(tid);
      // What came to its end in that step ended; it was not drained.
      if (r.total_left <= 0) finishes.push_back(now + left);
      Report(*e, r,
             r.total_left <= 0   ? event::ChunkEnd::kEos
             : r.chunk_left <= 0 ? event::ChunkEnd::kChunkLimit
                                 : event::ChunkEnd::kDrained,
             left);
    }
    Schedule(*e);
    Send(event::Drained{c.worker, c.slot, c.epoch}, left + job.message_s);
  }
  void Do(const command::Release& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr) return;
    e->role = Role::kNone;
    time.Hold(c.worker.worker.value, Role::kNone, now);
    e->groups.clear();
    ++e->caches;
    report.switch_s += job.release_s;
    Send(event::Released{c.worker, c.slot, c.epoch,
                         static_cast<int64_t>(job.hardware.memory_bytes) * job.devices_per_slot},
         job.release_s);
  }
  void Do(const command::Grant& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr) return;
    e->epoch = c.epoch;
    e->role = c.role;
    report.switch_s += job.grant_s;
    Send(event::Granted{c.worker, c.slot, c.epoch}, job.grant_s);
  }
  void Do(const command::InitState& c) { Ready(c.worker, {0}, Mix64(job.seed ^ 42), 1); }
  void Do(const command::FetchState& c) {
    const double bytes = job.model.parameters * 14;
    Ready(c.worker, c.step, c.weights_digest,
          bytes / (job.hardware.net_bytes_per_s * static_cast<double>(job.devices_per_slot)));
  }
  void Ready(const WorkerRef& ref, StepNumber step, uint64_t digest, double seconds) {
    Engine* e = Find(ref);
    if (e == nullptr && faulty) return;
    e->state_step = step;
    e->training = false;
    e->state = digest;
    Send(event::StateReady{ref, step, digest, ""}, seconds);
  }
  void Do(const command::FormGroup& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr && faulty) return;
    e->group_epoch = c.group_epoch;
    Send(event::GroupFormed{c.worker, c.group_epoch, ""}, 0.01);
  }
  void Do(const command::Train& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr && faulty) return;
    TP_CHECK(e->role == Role::kActor && e->epoch == c.epoch && e->state_step.value + 1 == c.step.value);
    Step& s = training[c.lease];
    s.members.push_back(c);
    // The slowest rank decides; ranks differ by their share of the batch.
    double tokens = 0, squares = 0;
    for (const auto& group : c.share->groups) {
      if (job.prompt_once && !group.empty())
        tokens -= static_cast<double>(job.prompt_tokens * (static_cast<int64_t>(group.size()) - 1));
      for (const SampleId& tid : group) {
        const auto n = static_cast<double>(job.prompt_tokens + controller->FindPayload(tid)->response_len);
        tokens += n;
        squares += n * n;
      }
    }
    s.seconds[c.worker.worker] =
        e->slow * Noise(*e) *
            cost.Train(tokens, squares, 1, job.controller.config.train.recompute, job.train_efficiency) +
        cost.AllReduce(c.world);
    e->training = true;
    if (job.slow_beside != 1) Share(*e);
    if (static_cast<int64_t>(s.members.size()) == c.world) {
      double slowest = 0;
      for (const auto& [worker, seconds] : s.seconds) slowest = std::max(slowest, seconds);
      Push(slowest, Kind::kTrained, c.lease);
    }
  }
  void Trained(int64_t id) {
    const auto it = training.find(id);
    if (it == training.end()) return;  // called off
    Step s = std::move(it->second);
    training.erase(it);
    // With a member that is gone the others wait in a collective until they are called off.
    if (std::ranges::any_of(s.members, [&](const command::Train& c) { return Find(c.worker) == nullptr; }))
      return;
    uint64_t digest = Find(s.members.front().worker)->state;
    double slowest = 0;
    for (const auto& [worker, seconds] : s.seconds) slowest = std::max(slowest, seconds);
    std::vector<std::pair<SampleId, uint64_t>> rows;
    for (const SampleId& tid : lease.tids) {
      digest = Mix64(digest ^ SampleUid(tid));
      const record::Enq* enq = controller->FindPayload(tid);
      rows.emplace_back(tid, enq == nullptr ? 0 : enq->digest);
    }
    for (const command::Train& c : s.members) {
      Engine* e = Find(c.worker);
      e->state = digest;
      e->state_step = c.step;
      e->training = false;
      if (job.slow_beside != 1) Share(*e);
      const double seconds = job.engine_quantum > 1 ? s.seconds.at(c.worker.worker) : slowest;
      time.Busy(Role::kActor, seconds);
      Send(event::TrainDone{c.worker, c.step, c.lease, true, digest, seconds, rows});
    }
  }
  void Do(const command::AbortStep& c) {
    training.erase(c.lease);
    Engine* e = Find(c.worker);
    if (e == nullptr) return;
    e->training = false;
    Send(event::StepAborted{c.worker, c.lease, e->state_step, e->state}, 0.01);
  }
  void Do(const command::RestoreState& c) {
    const auto kept = c.ckpt < 0 ? recovery.find(c.step.value) : checkpoints.find(c.ckpt);
    const auto& from = c.ckpt < 0 ? recovery : checkpoints;
    if (kept == from.end()) {
      Send(event::StateReady{c.worker, c.step, 0, "no such copy"}, 0.1);
      return;
    }
    Ready(c.worker, c.step, kept->second,
          job.model.parameters * 14 /
              (job.hardware.host_bytes_per_s * static_cast<double>(job.devices_per_slot)));
  }
  void Do(const command::KillWorker& c) { Die(c.worker.worker, c.worker.inc, false); }
  void Do(const command::VerifyCheckpoint& c) {
    Send(event::CheckpointVerified{c.ckpt, checkpoints.contains(c.ckpt) ? "" : "missing"}, 0.1);
  }
  void Do(const command::DeleteCheckpoint& c) { checkpoints.erase(c.ckpt); }
  void Do(const command::CopyRecovery& c) {
    if (const Engine* e = Find(c.worker); e != nullptr) recovery[c.step.value] = e->state;
    while (recovery.size() > 2) recovery.erase(recovery.begin());
    Send(event::RecoveryCopied{c.worker, c.step});
  }
  void Do(const command::Publish& c) {
    published[c.v] = c.digest;
    Send(event::Published{c.worker, c.v, ""}, job.publish_s);
  }
  void Do(const command::Load& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr) return;
    const bool alias = c.worker == c.from;
    e->v = c.v;
    e->weights = c.digest;
    const double rate = job.hardware.net_bytes_per_s * static_cast<double>(job.devices_per_slot);
    // Between two steps; what it was generating waits for it and goes on with the new weights.
    const double loaded = e->model.Stall(alias ? 0.001 : cost.weight_bytes() / rate, now);
    Send(event::Loaded{c.worker, c.v, published.at(c.v), ""}, loaded - now + job.message_s);
    if (job.controller.config.rollout.kv_on_update != "keep") {
      const double again = e->model.Recompute();
      report.prefilled += again;
      report.prefilled_again += again;
    }
    e->noise = Noise(*e);
    SetFactor(*e);
    Schedule(*e);
  }
  void Do(const command::WriteCheckpoint& c) {
    const Engine* e = Find(c.worker);
    if (e == nullptr) return;
    const double seconds = faults.shape().checkpoint_s * DiskFactor();
    if (faults.CheckpointFails()) {
      Send(event::CheckpointFailed{c.ckpt, "no space left on device"}, seconds);
      return;
    }
    checkpoints[c.ckpt] = e->state;
    Send(event::CheckpointWritten{c.ckpt, c.step, Mix64(e->state), e->state}, seconds);
  }
  void Do(const command::SaveFinal&) { Send(event::FinalSaved{""}); }
  void Do(const command::StepReport& c) {
    report.per_step.push_back({now - (report.per_step.empty() ? 0 : reported), time.Take(now)});
    reported = now;
    if (report.lag_hist.size() < c.lag_hist.size()) report.lag_hist.resize(c.lag_hist.size());
    for (size_t i = 0; i < c.lag_hist.size(); ++i) report.lag_hist[i] += c.lag_hist[i];
  }
  void Do(const command::Finish& c) {
    if (stopping && report.steps_trained < job.controller.config.train.steps)
      return Halt();  // and goes on later
    over = true;
    report.done = c.code == 0;
    report.why = c.why;
  }

  void Fire(const Entry& entry) {
    switch (entry.kind) {
      case Kind::kEvent: {
        const Event event = std::move(slab[static_cast<size_t>(entry.a)]);
        free_slab.push_back(entry.a);
        if (faulty)
          Arrive(event);
        else
          Deliver(event);
        break;
      }
      case Kind::kEngine: {
        Engine* e = engines.Find({entry.a});
        if (e != nullptr) EngineStop(*e);
        break;
      }
      case Kind::kTurn: {
        Engine* there = engines.Find({entry.a});
        if (there == nullptr) break;
        Engine& e = *there;
        const EngineRun* r = e.model.Find(entry.tid);
        if (r == nullptr || r->decoding) break;  // it moved meanwhile; its turn goes on there
        e.model.CatchUp(now);
        e.model.Resume(entry.tid, now);
        Schedule(e);
        break;
      }
      case Kind::kTick:
        if (faulty) {
          BeatWithFaults();
          break;
        }
        for (auto& [id, e] : engines) {
          if (e.model.batch() == 0) continue;
          event::Heartbeat beat{e.ref, std::nullopt, "generate", ++e.beats};
          const EngineModel::StepSeconds step = e.model.TakeStepSeconds();
          beat.engine = event::EngineSample{0, e.model.batch(), 0, 0, step.all, step.decode};
          Deliver(beat);
        }
        for (auto& [id, e] : engines) {
          if (e.model.batch() == 0) Deliver(event::Heartbeat{e.ref, std::nullopt, "idle", ++e.beats});
        }
        for (int64_t i = 0; i < job.controller.side_workers(); ++i) {
          // The other workers of the model never fall silent.
          Deliver(event::Heartbeat{
              {{job.controller.config.cluster.slots + i}, {side_inc[static_cast<size_t>(i)]}},
              std::nullopt,
              "",
              0});
        }
        if (!over) Deliver(event::Tick{});
        Push(job.tick_s, Kind::kTick);
        break;
      case Kind::kTrained:
        Trained(entry.a);
        break;
      case Kind::kFault:
        Befall(static_cast<Fault>(entry.a));
        break;
    }
  }
  std::vector<int64_t> side_inc;

  StatusOr<SimReport> Run();
  void Summarise();
};

}  // namespace tidepool::scheduler
