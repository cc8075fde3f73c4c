// What the controller asks of the modelled processes and their storage.

#include <algorithm>
#include <set>

#include "core/base/hash.h"
#include "tests/scheduler/sim_check.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {

struct SimCluster::Do {
  SimCluster& s;

  void operator()(const command::Append&) {}
  void operator()(const command::StartWorker& c) {
    SIM_CHECK(s.options_.controller.fleet.launch_workers) << "somebody else starts them";
    const int64_t life = s.life_;
    s.At(c.delay, [&s = s, c, life] {
      if (life == s.life_) s.Spawn(c.worker);
    });
  }
  void operator()(const command::KillWorker& c) {
    for (auto& [id, p] : s.procs_) {
      if (p.alive && p.worker == c.worker.worker && (!c.worker.inc.valid() || p.inc == c.worker.inc))
        s.Die(p, false);
    }
  }
  void operator()(const command::Welcome& c) {
    // The process that asked: an older one of this place may live on where the controller does not hear it.
    SimCluster::Proc* asks = nullptr;
    for (auto& [id, p] : s.procs_) {
      if (!p.alive || p.worker != c.worker || p.joined) continue;
      const auto rank = [&](const SimCluster::Proc& q) { return std::pair(q.inc == c.inc, q.asked); };
      if (asks == nullptr || rank(*asks) < rank(p)) asks = &p;
    }
    if (asks == nullptr) return;
    SimCluster::Proc& p = *asks;
    const bool again = p.inc == c.inc;
    p.inc = c.inc;
    p.joined = true;
    if (again) {
      for (auto& [slot, d] : p.devices) s.SendHeld(d);
      return;
    }
    const bool device = p.kind == WorkerKind::kDevice;
    SIM_CHECK(device == !c.slots.empty()) << "slots of " << ToString(p.ref());
    p.devices.clear();
    for (const SlotId slot : c.slots) {
      Device& d = p.devices[slot];
      d.proc = &p;
      d.slot = slot;
    }
    s.Beat(p.id);
    for (const SlotId slot : c.slots) s.EngineStep({p.id, slot});
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
    if (SampleUniform(s.options_.seed, Mix64(static_cast<uint64_t>(row)), 1, 9) <
        s.options_.faults.row_invalid) {
      s.Storage(event::RowInvalid{c.ordinal, c.issue, "sim"}, delay);
      return;
    }
    s.Storage(event::RowReady{c.ordinal, c.issue, 5 + row % 3}, delay);
    if (job.job == JobKind::kSft) {
      const SampleId tid{c.ordinal, c.issue, 0};
      s.payload_[tid] = {1, SampleUid({row, 0, 0}), {}, {}};
      s.Storage(event::PayloadStored{tid, 0, 5, 5, SampleUid({row, 0, 0}), -1, 0, 0, {}}, s.Delay(0.002));
    }
  }
  void operator()(const command::StartChunk& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    if (c.generated > 0 && !c.tid.is_eval() && s.Chance(s.options_.faults.lost_tokens))
      return s.Storage(event::TokensLost{c.tid, c.att, "sim"}, s.Delay(0.01));
    SIM_CHECK(p->epoch == c.epoch) << "epoch " << p->epoch.value << " " << c.epoch.value;
    SIM_CHECK(p->role == Role::kRollout && p->admitted && p->version == c.v)
        << ToString(c.worker) << " is not admitted at " << ToString(c.v);
    Chunk chunk{.tid = c.tid,
                .att = c.att,
                .left = c.chunk_tokens,
                .limit = c.max_new_tokens,
                .tokens = {},
                .cancelled = false};
    const auto it = s.tokens_.find({c.tid, c.att});
    if (it != s.tokens_.end()) chunk.tokens = it->second;
    SIM_CHECK(chunk.tokens.count == c.generated)
        << ToString(c.tid) << " has " << chunk.tokens.count << " tokens, not " << c.generated;
    p->ended.erase({c.tid, c.att});
    p->chunks[{c.tid, c.att}] = chunk;
  }
  void operator()(const command::CancelChunk& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    p->ended.erase({c.tid, c.att});
    if (p->chunks.erase({c.tid, c.att}) > 0)
      s.Out(*p, event::ChunkFinished{c.worker, c.slot, c.tid, c.att, event::ChunkEnd::kCancelled, ""});
  }
  void operator()(const command::ForgetGroup&) {}
  void operator()(const command::EndEpisode&) {}
  void operator()(const command::StorePayload& c) {
    const auto it = s.tokens_.find({c.tid, c.att});
    SIM_CHECK(it != s.tokens_.end()) << "payload of " << ToString(c.tid) << " without tokens";
    if (s.Chance(s.options_.faults.lost_tokens))
      return s.Storage(event::TokensLost{c.tid, c.att, "sim"}, s.Delay(0.01));
    const Tokens tokens = it == s.tokens_.end() ? Tokens{} : it->second;
    event::PayloadStored stored{c.tid, c.att, 5, tokens.count, tokens.content, 0, 0, tokens.count * 4, {}};
    stored.versions = tokens.Runs();
    s.Storage(std::move(stored), s.Delay(0.01));
    const int64_t life = s.life_;
    s.At(Duration(0), [&s = s, c, tokens, life] {
      if (life == s.life_) s.payload_[c.tid] = tokens;
    });
  }
  void operator()(const command::DiscardTokens& c) { s.tokens_.erase({c.tid, c.att}); }
  void operator()(const command::Grade& c) {
    Proc* p = s.Find(c.grader);
    if (p == nullptr || p->hung) return;
    uint64_t content = 0;
    const auto it = s.tokens_.find({c.tid, c.att});
    const auto stored = s.payload_.find(c.tid);
    if (it != s.tokens_.end())
      content = it->second.content;
    else if (stored != s.payload_.end())
      content = stored->second.content;
    else
      SIM_CHECK(false) << "grading " << ToString(c.tid) << " without tokens";
    event::Graded g{c.grader, c.tid, c.att, GradeOutcome::kOk, s.RewardOf(c.tid, content), {}, ""};
    if (s.Chance(s.options_.faults.infra))
      g.outcome = GradeOutcome::kInfra;
    else if (s.Chance(s.options_.faults.grade_data))
      g.outcome = GradeOutcome::kData;
    // The work takes the time, and heartbeats go out meanwhile.
    s.At(FromSeconds(s.Delay(s.options_.grading_s)), [&s = s, g, life = s.life_] {
      Proc* grader = s.Find(g.grader);
      if (grader != nullptr && !grader->hung && life == s.life_) s.Out(*grader, g, 0);
    });
  }
  void operator()(const command::EnvStep& c) {
    Proc* p = s.Find(c.worker);
    if (p == nullptr || p->hung) return;
    SIM_CHECK(p->kind == WorkerKind::kEnvironment) << ToString(c.worker) << " plays no episodes";
    event::EnvStepped r{.worker = c.worker, .tid = c.tid, .att = c.att, .turn = c.turn};
    if (c.turn == 0) {
      const int64_t row = c.tid.ordinal % s.options_.controller.data_rows;
      const bool bad = c.tid.sample == SampleId::kRowSample &&
                       SampleUniform(s.options_.seed, Mix64(static_cast<uint64_t>(row)), 1, 9) <
                           s.options_.faults.row_invalid;
      if (bad) r.outcome = GradeOutcome::kData;
      r.observation_tokens = s.ObservationOf(c.tid, 0);
    } else {
      const auto it = s.tokens_.find({c.tid, c.att});
      const auto stored = s.payload_.find(c.tid);
      const bool whole = c.turn == command::kWholeEpisode;
      SIM_CHECK(it != s.tokens_.end() || (whole && stored != s.payload_.end()))
          << "a turn of " << ToString(c.tid) << " without tokens";
      const Tokens tokens = it != s.tokens_.end()        ? it->second
                            : stored != s.payload_.end() ? stored->second
                                                         : Tokens{};
      SIM_CHECK(whole || tokens.turn + 1 == c.turn)
          << ToString(c.tid) << " has " << tokens.turn << " turns, not " << c.turn - 1;
      SIM_CHECK(whole || tokens.count > tokens.turn_start)
          << ToString(c.tid) << " has said nothing in turn " << c.turn;
      r.done = c.turn == s.TurnsOf(c.tid);
      r.observation_tokens = r.done || whole ? 0 : s.ObservationOf(c.tid, c.turn);
      r.reward = s.RewardOf(c.tid, tokens.content);
    }
    if (s.Chance(s.options_.faults.infra))
      r.outcome = GradeOutcome::kInfra;
    else if (s.Chance(s.options_.faults.grade_data))
      r.outcome = GradeOutcome::kData;
    s.Out(*p, r, s.Delay(0.05));
  }
  void operator()(const command::AppendObservation& c) {
    if (c.turn == 0) return;
    const auto it = s.tokens_.find({c.tid, c.att});
    SIM_CHECK(it != s.tokens_.end()) << "an observation for " << ToString(c.tid) << ", which has no tokens";
    if (it == s.tokens_.end()) return;
    Tokens& t = it->second;
    SIM_CHECK(t.turn + 1 == c.turn) << ToString(c.tid) << " gets the observation of turn " << c.turn
                                    << " after " << t.turn;
    t.count += s.ObservationOf(c.tid, c.turn);
    t.content = Mix64(t.content ^ static_cast<uint64_t>(c.turn));
    t.turn = c.turn;
    t.turn_start = t.count;
  }
  void operator()(const command::Drain& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    SIM_CHECK(p->in_step < 0) << "drained inside a step";
    p->draining = c;
    if (s.Chance(s.options_.faults.slow_drain)) {
      const DeviceKey id = KeyOf(*p);
      p->draining.reset();
      s.At(FromSeconds(s.Delay(15)), [&s = s, id, c] {
        Device* q = s.Find(id);
        if (q == nullptr || c.epoch < q->epoch) return;
        q->draining = c;
        s.FinishDrain(*q);
      });
      return;
    }
    if (p->chunks.empty() || !p->admitted || p->loading) s.FinishDrain(*p);
  }
  void operator()(const command::Release& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    SIM_CHECK(p->chunks.empty()) << "released with chunks in it";
    p->role = Role::kNone;
    p->admitted = false;
    const bool keeps = s.Chance(s.options_.faults.keeps_memory);
    s.Out(*p, event::Released{c.worker, c.slot, c.epoch, keeps ? 1000 : 1 << 30}, s.Delay(0.005));
  }
  void operator()(const command::Grant& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    p->epoch = c.epoch;
    p->draining.reset();
    if (p->role != c.role) {
      SIM_CHECK(p->role == Role::kNone) << "granted " << Name(c.role) << " while it holds " << Name(p->role);
      p->admitted = false;
      p->role = c.role;
      p->broken = false;  // its slots meet anew
    }
    s.Out(*p, event::Granted{c.worker, c.slot, c.epoch}, s.Delay(0.01));
  }
  void operator()(const command::FormGroup& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    SIM_CHECK(p->role == Role::kActor && c.rank >= 0 && c.rank < c.world);
    p->group_epoch = c.group_epoch;
    s.Out(*p,
          event::GroupFormed{c.worker, c.slot, c.group_epoch,
                             s.Chance(s.options_.faults.group_error) ? "sim" : ""},
          s.Delay(0.05));
  }
  void operator()(const command::FetchState& c) {
    Device* p = s.Find(SlotOf(c));
    Device* q = s.Find(c.from);
    if (p == nullptr) return;
    const bool there = q != nullptr && q->state_step == c.step && q->state == c.weights_digest;
    if (!there || s.Chance(s.options_.faults.fetch_error)) {
      p->LoseState();
      s.Out(*p, event::StateReady{c.worker, c.slot, c.step, 0, "sim", c.request}, s.Delay(0.2));
      return;
    }
    Ready(SlotOf(c), c.request, c.step, q->state);
  }
  void operator()(const command::AbortStep& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    s.LeaveStep(*p);
    s.Out(*p, event::StepAborted{c.worker, c.slot, c.lease, p->state_step, p->state, p->shard},
          s.Delay(0.05));
  }
  void operator()(const command::EndEvaluation&) {}
  void operator()(const command::Preview& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    SIM_CHECK(p->role == Role::kActor && p->epoch == c.epoch && p->in_step < 0)
        << "a hint for a slot that has something else to do";
    SIM_CHECK(!c.rows.empty());
    for (const SampleId& tid : c.rows) {
      SIM_CHECK(s.payload_.contains(tid) && s.controller_->FindPayload(tid) != nullptr)
          << "a hint about " << ToString(tid) << " without payload";
    }
  }
  void operator()(const command::InitState& c) { Ready(SlotOf(c), c.request, {0}, Mix64(42), c.shard); }
  void operator()(const command::RestoreState& c) {
    uint64_t weights = 0;
    if (c.ckpt < 0) {
      const auto it = s.recovery_.find(c.step);
      if (it == s.recovery_.end()) {
        if (Device* p = s.Find(SlotOf(c)))
          s.Out(*p, event::StateReady{c.worker, c.slot, c.step, 0, "no such copy", c.request}, 0.1);
        return;
      }
      weights = it->second;
    } else {
      weights =
          s.options_.disk != nullptr ? s.options_.disk->Weights(c.step) : s.checkpoints_[c.ckpt].weights;
      SIM_CHECK(s.options_.disk != nullptr || s.checkpoints_[c.ckpt].step == c.step) << "checkpoint";
    }
    Ready(SlotOf(c), c.request, c.step, weights, c.shard);
  }
  void Ready(const SlotRef& ref, int64_t request, StepNumber step, uint64_t weights,
             const Shard& shard = {}) {
    Device* p = s.Find(ref);
    if (p == nullptr) return;
    s.LeaveStep(*p);
    if (s.Chance(s.options_.faults.state_error)) {
      p->state_step = {};
      s.Out(*p, event::StateReady{ref.worker, ref.slot, step, 0, "sim", request}, s.Delay(0.3));
      return;
    }
    p->SetState(step, weights);
    p->shard = shard;
    s.Out(*p, event::StateReady{ref.worker, ref.slot, step, weights, "", request}, s.Delay(0.3));
  }
  void operator()(const command::Train& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    if (s.options_.loses_a_payload) {
      s.options_.loses_a_payload = false;
      s.Storage(event::PayloadLost{c.lease, s.lease_.tids.front(), "its bytes are damaged"}, s.Delay(0.01));
      return;
    }
    SIM_CHECK(p->role == Role::kActor && p->epoch == c.epoch && p->state_step.value + 1 == c.step.value &&
              p->in_step < 0)
        << "step " << c.step.value << " on state " << p->state_step.value;
    SIM_CHECK(c.world == 1 || p->group_epoch == c.group_epoch);
    SIM_CHECK(p->shard == (s.options_.controller.fleet.zero ? Shard{c.rank, c.world} : Shard{}))
        << "rank " << c.rank << " of " << c.world << " has part " << p->shard.rank << " of "
        << p->shard.world;
    SIM_CHECK(s.lease_.lease == c.lease && static_cast<int64_t>(s.lease_.tids.size()) == c.total_rows);
    Step& step = s.steps_[c.lease];
    if (step.life != s.life_) step = {.devices = {}, .broken = false, .weights = 0, .life = s.life_};
    step.devices.insert(KeyOf(*p));
    p->in_step = c.lease;
    const DeviceKey id = KeyOf(*p);
    s.waiting_[id] = c;
    if (step.devices.size() == 1) {
      step.weights = p->state;
      for (const SampleId& tid : s.lease_.tids) {
        const auto it = s.payload_.find(tid);
        SIM_CHECK(it != s.payload_.end()) << "training " << ToString(tid) << " without payload";
        SIM_CHECK(s.controller_->FindPayload(tid) != nullptr &&
                  s.controller_->FindPayload(tid)->digest == it->second.content);
        if (it == s.payload_.end()) continue;
        step.weights = Mix64(step.weights ^ it->second.content ^ SampleUid(tid));
      }
      if (!s.options_.deterministic_training)
        step.weights = Mix64(step.weights ^ static_cast<uint64_t>(s.seq_));
    }
    const bool breaks = c.step.value == s.options_.breaks_at_step;
    const bool half_way = breaks && s.broken_tries_++ % 2 == 1;
    if (half_way || s.Chance(s.options_.faults.train_fails / static_cast<double>(c.world))) {
      s.At(FromSeconds(s.Delay(0.3)), [&s = s, id, c, half_way] {
        Device* q = s.Find(id);
        if (q == nullptr || q->in_step != c.lease) return;
        s.LeaveStep(*q);
        const bool torn = half_way || c.lease % 2 == 0;  // every second one fails between its updates
        if (torn) q->LoseState();
        s.Out(*q, event::TrainFailed{c.worker, c.slot, c.step, c.lease, "sim", false, torn});
      });
      return;
    }
    if (static_cast<int64_t>(step.devices.size()) < c.world) return;
    // All are in: the last collective of the step, unless somebody has left by then.
    const double seconds = s.Delay(0.3);
    const bool nonfinite = s.Chance(s.options_.faults.nonfinite) || breaks;
    const int64_t lease = c.lease, life = s.life_;
    s.At(FromSeconds(seconds), [&s = s, lease, life, seconds, nonfinite] {
      Step& step = s.steps_.at(lease);
      if (step.life != life) return;
      for (const DeviceKey& member : step.devices) {
        Device* q = s.Find(member);
        step.broken |= q == nullptr || q->in_step != lease;
      }
      if (step.broken) return;
      std::vector<BadRow> bad;
      for (const SampleId& tid : s.lease_.tids) {
        if (s.IsBad(tid)) bad.push_back({tid, "sim"});
      }
      if (std::exchange(s.options_.blames_a_batch, false)) bad.push_back({{999, 0, 0}, "sim"});
      for (const DeviceKey& member : step.devices) {
        const command::Train train = s.waiting_.at(member);
        if (!bad.empty()) {  // all ranks have agreed on it
          Device* q = s.Find(member);
          q->in_step = -1;
          s.Out(*q, event::TrainFailed{train.worker, train.slot, train.step, lease, "sim", true, false, bad});
          continue;
        }
        if (nonfinite) {
          Device* q = s.Find(member);
          q->in_step = -1;
          s.Out(*q, event::TrainDone{train.worker, train.slot, train.step, lease, false, 0, seconds, {}});
          continue;
        }
        const uint64_t weights = step.weights;
        s.At(FromSeconds(s.Delay(0.02)),
             [&s = s, member, train, weights, seconds] { s.EndStep(member, train, weights, seconds); });
      }
    });
  }
  void operator()(const command::CopyRecovery& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    SIM_CHECK(p->state_step == c.step);
    s.recovery_[c.step] = p->state;
    while (s.recovery_.size() > 2)
      s.recovery_.erase(s.recovery_.begin()->first < c.step ? s.recovery_.begin()
                                                            : std::prev(s.recovery_.end()));
    if (s.Chance(s.options_.faults.recovery_error)) {
      s.recovery_.erase(c.step);
      s.Out(*p, event::RecoveryCopied{c.worker, c.slot, c.step, "sim"}, s.Delay(0.05));
      return;
    }
    s.Out(*p, event::RecoveryCopied{c.worker, c.slot, c.step, ""}, s.Delay(0.05));
  }
  void operator()(const command::Publish& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    SIM_CHECK(p->state == c.digest && p->state_step.value == c.v.number) << "publish";
    const bool fails = s.Chance(s.options_.faults.publish_error);
    if (!fails) s.published_[c.v] = c.digest;
    if (!fails && c.copies) s.copied_.insert(c.v);
    s.Out(*p, event::Published{c.worker, c.slot, c.v, fails ? "sim" : ""}, s.Delay(0.02));
  }
  void operator()(const command::Pull& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    const DeviceKey id = KeyOf(*p);
    p->pulling = c.v;
    const bool error = s.Chance(s.options_.faults.load_error);
    s.At(FromSeconds(s.Delay(s.options_.pull_s)), [&s = s, id, c, error] {
      Device* q = s.Find(id);
      if (q == nullptr || q->pulling != c.v) return;
      q->pulling.reset();
      s.Out(*q, event::Pulled{c.worker, c.slot, c.v, !error, error ? "sim" : ""});
    });
  }
  void operator()(const command::Load& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    const DeviceKey id = KeyOf(*p);
    // A load that the last controller asked for: the one that is asked for now is the same.
    if (p->loading == c.v && s.now_.t < p->load_until) return;
    if (p->loading == c.v && p->version == c.v && p->weights == c.digest) {
      s.Out(*p, event::Loaded{c.worker, c.slot, c.v, p->weights, ""});
      return;
    }
    const int64_t here = p->proc->worker.value % s.options_.hosts;
    SIM_CHECK(here == c.from.worker.worker.value % s.options_.hosts) << "a load from another host";
    SIM_CHECK(s.published_.contains(c.v)) << "a load of what nobody published";
    SIM_CHECK(s.copied_.contains(c.v) || (c.alias && s.AllTrained(c))) << "a load of what nobody copied";
    p->loading = c.v;
    p->version = {};  // its memory is being overwritten
    const bool error = s.Chance(s.options_.faults.load_error), bad = s.Chance(s.options_.faults.bad_load);
    const double delay = s.Delay(0.05);
    p->load_until = s.now_.t + FromSeconds(delay);
    s.At(FromSeconds(delay), [&s = s, id, c, error, bad] {
      Device* q = s.Find(id);
      if (q == nullptr || q->loading != c.v) return;
      if (error) {
        s.Out(*q, event::Loaded{c.worker, c.slot, c.v, 0, "sim"});
        return;
      }
      q->version = c.v;
      q->weights = s.published_[c.v] ^ (bad ? 1 : 0);
      s.Out(*q, event::Loaded{c.worker, c.slot, c.v, q->weights, ""});
      if (q->draining) s.FinishDrain(*q);
    });
  }
  void operator()(const command::Admit& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    SIM_CHECK(p->version == c.v);
    p->loading.reset();
    p->admitted = true;
  }
  void operator()(const command::WriteCheckpoint& c) {
    Device* p = s.Find(SlotOf(c));
    if (p == nullptr) return;
    SIM_CHECK(p->state_step == c.step)
        << "checkpoint of step " << c.step.value << ", state is of " << p->state_step.value;
    std::set<int64_t> parts{p->shard.rank};
    for (const SlotRef& ref : c.others) {
      const Device* other = s.Find(ref);
      if (other == nullptr) return;  // the controller will hear of it
      SIM_CHECK(other->state_step == c.step && other->shard.world == p->shard.world);
      parts.insert(other->shard.rank);
    }
    SIM_CHECK(static_cast<int64_t>(parts.size()) == p->shard.world) << "a checkpoint without some part";
    const double delay = s.Delay(0.2);
    if (s.Chance(s.options_.faults.checkpoint_fails)) {
      s.Storage(event::CheckpointFailed{c.ckpt, "disk full"}, delay);
      return;
    }
    const uint64_t weights = p->state;
    const int64_t life = s.life_;
    if (SimDisk* disk = s.options_.disk; disk != nullptr) {
      s.At(FromSeconds(delay), [&s = s, c, weights, life, disk] {
        if (life != s.life_) return;
        const StatusOr<uint64_t> manifest = disk->WriteCheckpoint(c.ckpt, c.step, weights);
        if (!manifest.ok() && disk->down())
          s.DiskFailed(manifest.status());
        else if (!manifest.ok())
          s.Deliver(event::CheckpointFailed{c.ckpt, manifest.status().ToString()});
        else
          s.Deliver(event::CheckpointWritten{c.ckpt, c.step, *manifest, weights});
      });
      return;
    }
    s.At(FromSeconds(delay), [&s = s, c, weights, life] {
      s.checkpoints_[c.ckpt] = {c.step, weights, s.Chance(s.options_.faults.checkpoint_rots)};
      if (life == s.life_) s.Deliver(event::CheckpointWritten{c.ckpt, c.step, Mix64(weights), weights});
    });
  }
  void operator()(const command::VerifyCheckpoint& c) {
    if (s.options_.disk != nullptr) {
      s.Storage(event::CheckpointVerified{c.ckpt, s.options_.disk->Verify(c.step, c.manifest_digest)},
                s.Delay(0.1));
      return;
    }
    const auto it = s.checkpoints_.find(c.ckpt);
    std::string error = it == s.checkpoints_.end() ? "missing"
                        : it->second.rotten        ? "digest of model.safetensors differs"
                                                   : "";
    s.Storage(event::CheckpointVerified{c.ckpt, error}, s.Delay(0.1));
  }
  void operator()(const command::DeleteCheckpoint& c) {
    s.checkpoints_.erase(c.ckpt);
    if (s.options_.disk == nullptr) return;
    const Status removed = s.options_.disk->Remove(c.step);
    if (!removed.ok() && s.options_.disk->down())
      s.DiskFailed(removed);  // any other error leaves a folder that nobody needs
  }
  void operator()(const command::KeepBest& c) {
    if (s.options_.disk == nullptr)
      TP_CHECK(s.checkpoints_.contains(c.ckpt)) << "checkpoint " << c.ckpt << " is gone";
    const bool fails = s.now_ < FromSeconds(s.options_.faults.best_fails_until_s);
    if (!fails) s.kept_best_.push_back(c);
    s.Storage(event::BestKept{c.step, c.value, fails ? "no space left on device" : ""}, s.Delay(0.1));
  }
  void operator()(const command::SaveFinal&) { s.Storage(event::FinalSaved{""}, 0.1); }
  void operator()(const command::StepReport& c) { s.reports_.push_back(c); }
  void operator()(const command::EvalReport& c) { s.evals_.push_back(c); }
  void operator()(const command::Log& c) {
    std::string line = "event=" + c.event;
    if (c.about.worker.valid()) line += " worker=" + ToString(c.about);
    for (const auto& [key, value] : c.fields) line += " " + key + "=" + value;
    s.warnings_.push_back(line + " " + c.text);
  }
  void operator()(const command::Finish& c) {
    s.result_.ended = true;
    s.result_.code = c.code;
    s.result_.why = c.why;
    s.over_ = true;
  }
};

void SimCluster::Execute(const Command& command) { std::visit(Do{*this}, command); }

}  // namespace tidepool::scheduler
