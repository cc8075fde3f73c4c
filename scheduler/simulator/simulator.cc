#include "scheduler/simulator/simulator.h"

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
#include "scheduler/simulator/journal_hash.h"

namespace tidepool::scheduler {
namespace {

constexpr double kTickSeconds = 5, kHeartbeatSeconds = 30;

}  // namespace

struct Simulator::Impl {
  struct Chunk {                         // one chunk in an engine
    SampleId tid;
    int32_t att = 0;
    GroupId gid;
    int64_t context = 0;               // prompt and tokens so far
    int64_t chunk_left = 0, total_left = 0, turn_left = 0;
    int64_t from_clock = 0;            // engine steps when it (re)entered the batch
    int64_t stop_clock = 0;
    bool decoding = false;
    int64_t generated = 0;             // in this chunk
    int64_t total = 0;                 // of the sample
  };
  struct Engine {
    WorkerRef ref;
    Role role = Role::kNone;
    SlotId slot;
    LeaseEpoch epoch;
    Version v;
    uint64_t weights = 0;
    std::map<SampleId, Chunk> runs;
    std::set<std::pair<int64_t, SampleId>> stops;  // by clock
    std::set<GroupId> groups;          // whose prompt is in its cache
    int64_t batch = 0, clock = 0, generation = 0;
    double kv = 0;                     // tokens of decoding runs
    double at = 0;                     // time of `clock`
    // Accounting.
    double since = 0, held_rollout = 0, held_actor = 0, busy_rollout = 0, busy_actor = 0;
    StepNumber state_step;
    uint64_t state = 0;
    int64_t group_epoch = 0, beats = 0;
  };
  enum class Kind : uint8_t { kEvent, kEngine, kTurn, kTick, kTrained };
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
    double seconds = 0;
  };
  struct Home {
    int64_t engine = -1;
    Version v;
  };

  SimJob job;
  CostModel cost;
  std::unique_ptr<Controller> controller;
  std::priority_queue<Entry> queue;
  std::vector<Event> slab;             // events on their way
  std::vector<int64_t> free_slab;
  int64_t seq = 0;
  double now = 0;
  bool over = false;
  std::map<WorkerId, Engine> engines;
  std::map<SampleId, Home> homes;      // where a sample's KV is
  std::map<SampleId, int64_t> lengths_done;  // tokens so far
  std::map<int64_t, Step> training;    // by lease
  std::map<Version, uint64_t> published;
  record::Lease lease;
  int64_t records = 0;
  JournalHasher hash;
  Checker checker;
  SimReport report;
  double mu = 0;                       // of log length
  std::vector<int64_t> recorded;       // lengths, by sample
  std::vector<double> commits;
  std::vector<double> finishes;        // of samples since the last commit
  double first_start = -1;

  explicit Impl(const SimJob& j) : job(j), cost(j.hardware, j.model, j.devices_per_slot, j.engine_efficiency) {
    for (const auto& [tid, n] : job.recorded_lengths) recorded.push_back(n);
    if (recorded.empty()) Calibrate();
    if (job.true_lengths) job.controller.dispatch.oracle = [this](const SampleId& tid) { return Length(tid); };
    JobConfig& c = job.controller.config;
    c.cluster.heartbeat_s = kHeartbeatSeconds;
    c.cluster.start_timeout_s = 1e7;   // nothing is lost here, and transfers of big models take long
    c.cluster.stall_timeout_s = 1e7;
    c.eval.before_train = c.eval.after_train = false;
    c.eval.every_steps = 0;
    c.seed = job.seed;
  }

  // --- draws, all by hash: the same whatever the order of events

  [[nodiscard]] double Unit(uint64_t key, uint32_t a, uint32_t b) const {
    return std::min(0.999999, std::max(1e-7, static_cast<double>(SampleUniform(job.seed, key, a, b))));
  }
  [[nodiscard]] double Normal(uint64_t key, uint32_t a) const {
    return std::sqrt(-2 * std::log(Unit(key, a, 11))) * std::cos(6.283185307179586 * Unit(key, a, 12));
  }
  [[nodiscard]] double RawLength(const SampleId& tid, double m) const {
    const uint64_t group = Mix64(static_cast<uint64_t>(tid.ordinal) * 977 + static_cast<uint64_t>(tid.issue));
    const LengthShape& l = job.lengths;
    return std::exp(m + l.sigma_between * Normal(group, 1) + l.sigma_within * Normal(SampleUid(tid), 2));
  }
  [[nodiscard]] int64_t Length(const SampleId& tid) const {
    if (!recorded.empty()) {
      const auto it = job.recorded_lengths.find(tid);
      if (it != job.recorded_lengths.end()) return std::max<int64_t>(1, it->second);
      return std::max<int64_t>(1, recorded[SampleUid(tid) % recorded.size()]);
    }
    return std::clamp<int64_t>(std::llround(RawLength(tid, mu)), 1, job.controller.config.rollout.max_new_tokens);
  }
  // The mean after cutting at the limit is the one that was asked for.
  void Calibrate() {
    const auto most = static_cast<double>(job.controller.config.rollout.max_new_tokens);
    double low = -5, high = 20;
    for (int i = 0; i < 40; ++i) {
      const double m = (low + high) / 2;
      double sum = 0;
      for (int64_t k = 0; k < 2000; ++k) sum += std::min(most, RawLength({k / 4, 0, static_cast<int32_t>(k % 4)}, m));
      (sum / 2000 < job.lengths.mean_tokens ? low : high) = m;
    }
    mu = (low + high) / 2;
  }
  [[nodiscard]] int64_t Turns(const SampleId& tid) const {
    if (job.turns.mean_turns <= 1) return 1;
    const double s = job.turns.sigma_turns;
    const double x = job.turns.mean_turns * std::exp(s * Normal(SampleUid(tid), 3) - s * s / 2);
    return std::clamp<int64_t>(std::llround(x), 1, job.turns.max_turns);
  }
  [[nodiscard]] double EnvironmentSeconds(const SampleId& tid, int64_t at) const {
    const auto k = static_cast<uint32_t>(100 + at);
    double s = std::max(0.0, job.turns.step_s_mean + job.turns.step_s_sd * Normal(SampleUid(tid), k));
    if (job.turns.slow_chance > 0 && Unit(SampleUid(tid), k, 13) < job.turns.slow_chance) s -= job.turns.slow_s * std::log(Unit(SampleUid(tid), k, 14));
    return s;
  }

  [[nodiscard]] bool Episodic() const { return !job.controller.config.environment.name.empty(); }
  [[nodiscard]] double TurnSeconds(const SampleId& tid, int64_t turn) const {
    const TurnShape& t = job.turns;
    if (t.latency_median_s <= 0) return EnvironmentSeconds(tid, turn);
    return std::min(t.latency_max_s, t.latency_median_s * std::exp(t.latency_tail * Normal(SampleUid(tid), static_cast<uint32_t>(100 + turn))));
  }
  // Tokens of the policy in one turn of an episode, whose length has the observations in it.
  [[nodiscard]] int64_t Said(const SampleId& tid) const {
    const int64_t said = std::max<int64_t>(1, Length(tid) / Turns(tid) - job.turns.observation_tokens);
    const int64_t most = job.controller.config.environment.max_turn_tokens;
    return most > 0 ? std::min(said, most) : said;
  }

  // --- queue

  void Push(double delay, Kind kind, int64_t a = 0, int64_t b = 0, const SampleId& tid = {}) {
    queue.push({now + std::max(0.0, delay), seq++, kind, a, b, tid});
  }
  void Send(Event event) { Send(std::move(event), job.message_s); }
  void Send(Event event, double delay) {
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
    std::vector<Command> commands = controller->Handle(event, {FromSeconds(now)});
    for (const Command& c : commands) {
      const auto* a = std::get_if<command::Append>(&c);
      if (a == nullptr) continue;
      const JournalEntry entry{{records++}, 1, static_cast<uint64_t>(now * 1e9), a->record};
      hash.Add(entry);
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
    const auto it = engines.find(ref.worker);
    return it == engines.end() || it->second.ref != ref ? nullptr : &it->second;
  }
  // Steps that were done by now; a step under way goes on.
  void CatchUp(Engine& e) {
    if (e.batch == 0) {
      e.at = std::max(e.at, now);
      return;
    }
    if (now <= e.at) return;
    int64_t steps = cost.StepsWithin(e.batch, e.kv, now - e.at + 1e-12);
    if (!e.stops.empty()) steps = std::min(steps, e.stops.begin()->first - e.clock);
    if (steps <= 0) return;
    const double took = cost.DecodeSteps(e.batch, e.kv, steps);
    e.busy_rollout += took;
    e.at += took;
    e.clock += steps;
    e.kv += static_cast<double>(e.batch * steps);
  }
  void Schedule(Engine& e) {
    ++e.generation;
    if (e.stops.empty() || e.batch == 0) return;
    int64_t steps = e.stops.begin()->first - e.clock;
    if (job.per_step) steps = std::min<int64_t>(steps, 1);
    Push(e.at + cost.DecodeSteps(e.batch, e.kv, steps) - now, Kind::kEngine, e.ref.worker.value, e.generation);
  }
  [[nodiscard]] int64_t StepsFor(int64_t tokens) const {
    return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(static_cast<double>(tokens) / job.tokens_per_step)));
  }
  void Enter(Engine& e, Chunk& r) {
    r.decoding = true;
    r.from_clock = e.clock;
    r.stop_clock = e.clock + StepsFor(std::min({r.chunk_left, r.total_left, r.turn_left}));
    e.stops.insert({r.stop_clock, r.tid});
    ++e.batch;
    e.kv += static_cast<double>(r.context);
  }
  // Out of the batch with the tokens made so far.
  int64_t Leave(Engine& e, Chunk& r) {
    if (!r.decoding) return 0;
    const auto steps = e.clock - r.from_clock;
    const int64_t most = std::min({r.chunk_left, r.total_left, r.turn_left});
    const int64_t made = std::min(most, static_cast<int64_t>(std::llround(static_cast<double>(steps) * job.tokens_per_step)));
    e.stops.erase({r.stop_clock, r.tid});
    --e.batch;
    e.kv = e.batch == 0 ? 0 : std::max(0.0, e.kv - static_cast<double>(r.context + steps));
    r.decoding = false;
    r.context += made;
    r.chunk_left -= made;
    r.total_left -= made;
    r.turn_left -= made;
    r.generated += made;
    r.total += made;
    report.tokens += static_cast<double>(made);
    return made;
  }
  void Report(Engine& e, Chunk& r, event::ChunkEnd end) {
    lengths_done[r.tid] = r.total;
    homes[r.tid] = {e.ref.worker.value, e.v};
    if (r.generated > 0) Send(event::ChunkProgress{e.ref, r.tid, r.att, r.generated, e.v});
    Send(event::ChunkFinished{e.ref, r.tid, r.att, end, ""});
    e.runs.erase(r.tid);
  }
  void EngineStop(Engine& e) {
    CatchUp(e);
    while (!e.stops.empty() && e.stops.begin()->first <= e.clock) {
      const SampleId tid = e.stops.begin()->second;
      Chunk& r = e.runs.at(tid);
      Leave(e, r);
      if (r.total_left <= 0) {
        finishes.push_back(now);
        Report(e, r, event::ChunkEnd::kEos);
      } else if (r.chunk_left <= 0) {
        Report(e, r, event::ChunkEnd::kChunkLimit);
      } else {                         // the end of a turn
        r.turn_left = TurnTokens(tid);
        Push(EnvironmentSeconds(tid, r.total), Kind::kTurn, e.ref.worker.value, 0, tid);
      }
    }
    Schedule(e);
  }
  [[nodiscard]] int64_t TurnTokens(const SampleId& tid) const {
    const int64_t turns = Turns(tid);
    return turns <= 1 ? INT64_MAX / 4 : std::max<int64_t>(1, Length(tid) / turns);
  }
  void Hold(Engine& e, Role role) {
    (e.role == Role::kRollout ? e.held_rollout : e.role == Role::kActor ? e.held_actor : e.since) += now - e.since;
    e.since = now;
    e.role = role;
  }

  // --- commands

  void Note(const JournalRecord& r) {
    if (const auto* x = std::get_if<record::Lease>(&r)) lease = *x;
    if (const auto* x = std::get_if<record::Drop>(&r)) {
      ++report.dropped;
      report.stale += x->reason == DropReason::kStale ? 1 : 0;
    }
    if (const auto* x = std::get_if<record::TransitionBegin>(&r)) report.switches += x->slots.front().from != Role::kNone ? 1 : 0;
    if (std::holds_alternative<record::TransitionRolledBack>(r)) ++report.rollbacks;
    if (std::holds_alternative<record::StepCommit>(r)) {
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
  template <typename T>
  void Do(const T&) {}                 // reports, discards, records
  void Do(const command::StartWorker& c) {
    event::WorkerJoined join;
    join.worker = c.worker;
    join.name = "sim";
    join.kind = c.worker.value < job.controller.config.cluster.slots ? WorkerKind::kDevice : job.controller.side_kind();
    join.device_bytes = static_cast<int64_t>(job.hardware.memory_bytes) * job.devices_per_slot;
    Send(std::move(join));
  }
  void Do(const command::Welcome& c) {
    if (c.worker.value >= job.controller.config.cluster.slots) {
      side_inc[static_cast<size_t>(c.worker.value - job.controller.config.cluster.slots)] = c.inc.value;
      return;
    }
    Engine& e = engines[c.worker];
    e.ref = {c.worker, c.inc};
    e.slot = {c.worker.value};
    e.since = now;
  }
  void Do(const command::PrepareRow& c) { Send(event::RowReady{c.ordinal, c.issue, job.prompt_tokens}, job.row_s); }
  void Do(const command::StartChunk& c) {
    Engine* e = Find(c.worker);
    TP_CHECK(e != nullptr && e->role == Role::kRollout && e->epoch == c.epoch && e->v == c.v) << ToString(c.worker);
    if (first_start < 0) first_start = now;
    CatchUp(*e);
    Chunk r;
    r.tid = c.tid;
    r.att = c.att;
    r.gid = c.gid;
    r.context = job.prompt_tokens + c.generated;
    r.chunk_left = c.chunk_tokens;
    r.total = c.generated;
    r.total_left = Length(c.tid) - c.generated;
    const int64_t turn = TurnTokens(c.tid);
    r.turn_left = turn - c.generated % turn;
    if (Episodic()) {
      const int64_t begin = turn_begins.try_emplace(c.tid, c.generated).first->second;
      r.total_left = std::max<int64_t>(1, std::min(c.max_new_tokens - c.generated, Said(c.tid) - (c.generated - begin)));
      r.turn_left = INT64_MAX / 4;
    }
    const auto home = homes.find(c.tid);
    const bool cached = home != homes.end() && home->second.engine == c.worker.worker.value && (c.keep_kv || home->second.v == c.v);
    if (!cached) {
      const bool prompt = e->groups.insert(c.gid).second;
      const double tokens = static_cast<double>(c.generated) + (prompt ? static_cast<double>(job.prompt_tokens) : 0);
      report.prefilled += tokens;
      report.prefilled_again += static_cast<double>(c.generated);
      // It stands in the way of the others' steps.
      const double took = cost.Prefill(tokens, static_cast<double>(r.context) / 2);
      e->at = std::max(e->at, now) + took;
      e->busy_rollout += took;
    }
    Chunk& placed = e->runs[c.tid] = r;
    Enter(*e, placed);
    Schedule(*e);
  }
  void Do(const command::CancelChunk& c) {
    Engine* e = Find(c.worker);
    const auto it = e == nullptr ? decltype(e->runs.end()){} : e->runs.find(c.tid);
    if (e == nullptr || it == e->runs.end() || it->second.att != c.att) return;
    CatchUp(*e);
    Leave(*e, it->second);
    Report(*e, it->second, event::ChunkEnd::kCancelled);
    Schedule(*e);
  }
  void Do(const command::ForgetGroup& c) {
    Engine* e = Find(c.worker);
    if (e != nullptr) e->groups.erase(c.gid);
  }
  void Do(const command::DiscardTokens& c) {
    homes.erase(c.tid);
    lengths_done.erase(c.tid);
    turn_begins.erase(c.tid);
  }
  void Do(const command::EnvStep& c) {
    event::EnvStepped r{.worker = c.worker, .tid = c.tid, .att = c.att, .turn = c.turn};
    r.observation_tokens = c.turn == 0 ? job.prompt_tokens : job.turns.observation_tokens;
    r.done = c.turn >= Turns(c.tid);
    r.reward = (SampleUid(c.tid) >> 7) % 2 == 0 ? 1 : 0;
    Send(std::move(r), TurnSeconds(c.tid, c.turn));
  }
  void Do(const command::AppendObservation& c) { turn_begins.erase(c.tid); }
  void Do(const command::StorePayload& c) {
    const int64_t n = lengths_done.at(c.tid);
    Send(event::PayloadStored{c.tid, c.att, job.prompt_tokens, n, Mix64(SampleUid(c.tid) ^ static_cast<uint64_t>(n)), 0, 0, 4 * n}, 0.001);
  }
  void Do(const command::Grade& c) {
    const double reward = (SampleUid(c.tid) >> 7) % 2 == 0 ? 1 : 0;
    Send(event::Graded{c.grader, c.tid, c.att, GradeOutcome::kOk, reward, {}, ""}, job.reward_s);
  }
  void Do(const command::Drain& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr) return;
    CatchUp(*e);
    const double step = e->batch > 0 ? cost.DecodeStep(e->batch, e->kv) : 0;  // the step under way ends first
    std::vector<SampleId> tids;
    for (const auto& [tid, r] : e->runs) tids.push_back(tid);
    for (const SampleId& tid : tids) {
      Chunk& r = e->runs.at(tid);
      Leave(*e, r);
      Report(*e, r, event::ChunkEnd::kDrained);
    }
    Schedule(*e);
    Send(event::Drained{c.worker, c.slot, c.epoch}, step + job.message_s);
  }
  void Do(const command::Release& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr) return;
    Hold(*e, Role::kNone);
    e->groups.clear();
    report.switch_s += job.release_s;
    Send(event::Released{c.worker, c.slot, c.epoch, static_cast<int64_t>(job.hardware.memory_bytes) * job.devices_per_slot}, job.release_s);
  }
  void Do(const command::Grant& c) {
    Engine* e = Find(c.worker);
    if (e == nullptr) return;
    e->epoch = c.epoch;
    Hold(*e, c.role);
    report.switch_s += job.grant_s;
    Send(event::Granted{c.worker, c.slot, c.epoch}, job.grant_s);
  }
  void Do(const command::InitState& c) { Ready(c.worker, {0}, Mix64(job.seed ^ 42), 1); }
  void Do(const command::FetchState& c) {
    const double bytes = job.model.parameters * 14;
    Ready(c.worker, c.step, c.weights_digest, bytes / (job.hardware.net_bytes_per_s * static_cast<double>(job.devices_per_slot)));
  }
  void Ready(const WorkerRef& ref, StepNumber step, uint64_t digest, double seconds) {
    Engine* e = Find(ref);
    e->state_step = step;
    e->state = digest;
    Send(event::StateReady{ref, step, digest, ""}, seconds);
  }
  void Do(const command::FormGroup& c) {
    Find(c.worker)->group_epoch = c.group_epoch;
    Send(event::GroupFormed{c.worker, c.group_epoch, ""}, 0.01);
  }
  void Do(const command::Train& c) {
    Engine* e = Find(c.worker);
    TP_CHECK(e->role == Role::kActor && e->epoch == c.epoch && e->state_step.value + 1 == c.step.value);
    Step& s = training[c.lease];
    s.members.push_back(c);
    // The slowest rank decides; ranks differ by their share of the batch.
    double tokens = 0, squares = 0;
    for (const auto& group : c.groups) {
      for (const SampleId& tid : group) {
        const auto n = static_cast<double>(job.prompt_tokens + controller->FindPayload(tid)->response_len);
        tokens += n;
        squares += n * n;
      }
    }
    s.seconds = std::max(s.seconds, cost.Train(tokens, squares, 1, job.controller.config.train.recompute, job.train_efficiency));
    if (static_cast<int64_t>(s.members.size()) == c.world) Push(s.seconds, Kind::kTrained, c.lease);
  }
  void Trained(int64_t id) {
    const auto it = training.find(id);
    if (it == training.end()) return;  // called off
    Step s = std::move(it->second);
    training.erase(it);
    // With a member that is gone the others wait in a collective until they are called off.
    if (std::ranges::any_of(s.members, [&](const command::Train& c) { return Find(c.worker) == nullptr; })) return;
    uint64_t digest = Find(s.members.front().worker)->state;
    for (const SampleId& tid : lease.tids) digest = Mix64(digest ^ SampleUid(tid));
    for (const command::Train& c : s.members) {
      Engine* e = Find(c.worker);
      e->state = digest;
      e->state_step = c.step;
      e->busy_actor += s.seconds;
      Send(event::TrainDone{c.worker, c.step, c.lease, true, digest, s.seconds});
    }
  }
  void Do(const command::CopyRecovery& c) { Send(event::RecoveryCopied{c.worker, c.step}); }
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
    Send(event::Loaded{c.worker, c.v, published.at(c.v), ""}, alias ? 0.001 : cost.weight_bytes() / rate);
    // What it was generating goes on with the new weights; their KV is recomputed unless it is kept.
    if (job.controller.config.rollout.kv_on_update != "keep") {
      CatchUp(*e);
      double again = 0;
      for (const auto& [tid, r] : e->runs) again += static_cast<double>(r.context);
      report.prefilled += again;
      report.prefilled_again += again;
      const double took = again > 0 ? cost.Prefill(again, again / static_cast<double>(e->runs.size()) / 2) : 0;
      e->at = std::max(e->at, now) + took + (alias ? 0 : cost.weight_bytes() / rate);
      e->busy_rollout += took;
      Schedule(*e);
    }
  }
  void Do(const command::WriteCheckpoint& c) {
    const uint64_t digest = Find(c.worker)->state;
    Send(event::CheckpointWritten{c.ckpt, c.step, Mix64(digest), digest}, 1);
  }
  void Do(const command::SaveFinal&) { Send(event::FinalSaved{""}); }
  void Do(const command::StepReport& c) {
    if (report.lag_hist.size() < c.lag_hist.size()) report.lag_hist.resize(c.lag_hist.size());
    for (size_t i = 0; i < c.lag_hist.size(); ++i) report.lag_hist[i] += c.lag_hist[i];
  }
  void Do(const command::Finish& c) {
    over = true;
    report.done = c.code == 0;
    report.why = c.why;
  }

  void Fire(const Entry& entry) {
    switch (entry.kind) {
      case Kind::kEvent: {
        const Event event = std::move(slab[static_cast<size_t>(entry.a)]);
        free_slab.push_back(entry.a);
        Deliver(event);
        break;
      }
      case Kind::kEngine: {
        Engine& e = engines.at({entry.a});
        if (e.generation == entry.b) EngineStop(e);
        break;
      }
      case Kind::kTurn: {
        Engine& e = engines.at({entry.a});
        const auto it = e.runs.find(entry.tid);
        if (it == e.runs.end() || it->second.decoding) break;  // it moved meanwhile; its turn goes on there
        CatchUp(e);
        Enter(e, it->second);
        Schedule(e);
        break;
      }
      case Kind::kTick:
        for (auto& [id, e] : engines) {
          if (e.batch == 0) continue;
          event::Heartbeat beat{e.ref, std::nullopt, "generate", ++e.beats};
          beat.engine = event::EngineSample{0, e.batch, 0, 0, cost.DecodeStep(e.batch, e.kv)};
          Deliver(beat);
        }
        for (auto& [id, e] : engines) {
          if (e.batch == 0) Deliver(event::Heartbeat{e.ref, std::nullopt, "idle", ++e.beats});
        }
        for (int64_t i = 0; i < job.controller.side_workers(); ++i) {
          // The other workers of the model never fall silent.
          Deliver(event::Heartbeat{{{job.controller.config.cluster.slots + i}, {side_inc[static_cast<size_t>(i)]}}, std::nullopt, "", 0});
        }
        if (!over) Deliver(event::Tick{});
        Push(kTickSeconds, Kind::kTick);
        break;
      case Kind::kTrained:
        Trained(entry.a);
        break;
    }
  }
  std::vector<int64_t> side_inc;
  std::map<SampleId, int64_t> turn_begins;  // of episodes: tokens of the sample where its turn began

  StatusOr<SimReport> Run() {
    TP_RETURN_IF_ERROR(CheckProfile(job.hardware));
    if (job.controller.config.rollout.kv_cache_tokens <= 0) {
      job.controller.config.rollout.kv_cache_tokens = cost.KvTokens();
      if (job.controller.config.rollout.kv_cache_tokens <= job.prompt_tokens) {
        return InvalidArgument("workload " + job.name + ": the weights of " + job.model.name + " leave no room for KV on " +
                               std::to_string(job.devices_per_slot) + " x " + job.hardware.name + "; use more devices per slot");
      }
    }
    auto created = Controller::Create(job.controller, {});
    if (!created.ok()) return created.status();
    controller = std::move(created).value();
    side_inc.assign(static_cast<size_t>(job.controller.side_workers()), -1);
    Deliver(event::Started{});
    Push(kTickSeconds, Kind::kTick);
    while (!queue.empty() && !over && now < job.limit_s) {
      const Entry e = queue.top();
      queue.pop();
      now = e.t;
      Fire(e);
    }
    if (!over) report.why = now >= job.limit_s ? "the virtual time limit was reached" : "nothing is left to happen";
    Summarise();
    return report;
  }

  void Summarise() {
    double held_r = 0, held_a = 0, busy_r = 0, busy_a = 0;
    for (auto& [id, e] : engines) {
      Hold(e, Role::kNone);
      held_r += e.held_rollout, held_a += e.held_actor, busy_r += e.busy_rollout, busy_a += e.busy_actor;
    }
    report.steps = static_cast<int64_t>(commits.size());
    report.devices = job.controller.config.cluster.slots * job.devices_per_slot;
    report.records = records;
    report.seconds = now;
    const auto steps = static_cast<double>(std::max<size_t>(commits.size(), 1));
    const double span = commits.size() > 1 ? commits.back() - commits.front() : now;
    report.step_s = commits.size() > 1 ? span / (steps - 1) : now;
    report.tokens_per_s = now > 0 ? report.tokens / now : 0;
    const JobConfig& c = job.controller.config;
    report.samples_per_s = static_cast<double>(c.train.groups_per_step * c.rollout.group_size) / std::max(report.step_s, 1e-9);
    report.rollout_s /= steps;
    report.tail_s /= steps;
    report.idle_rollout = held_r > 0 ? std::max(0.0, 1 - busy_r / held_r) : 0;
    report.idle_actor = held_a > 0 ? std::max(0.0, 1 - busy_a / held_a) : 0;
    const double slots = static_cast<double>(c.cluster.slots);
    report.share_expanded = now > 0 ? held_r / (slots * now) : 0;
    report.log_hash = hash.value();
  }
};

Simulator::Simulator(const SimJob& job) : impl_(std::make_unique<Impl>(job)) {}
Simulator::~Simulator() = default;
StatusOr<SimReport> Simulator::Run() { return impl_->Run(); }
int64_t Simulator::LengthOf(const SampleId& tid) const { return impl_->Length(tid); }

}  // namespace tidepool::scheduler
