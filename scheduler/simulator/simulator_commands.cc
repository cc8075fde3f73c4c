// What each command of the controller does in the modelled cluster.

#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/simulator/simulator_impl.h"

namespace tidepool::scheduler {

void Simulator::Impl::Note(const JournalRecord& r) {
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

void Simulator::Impl::Do(const command::StartWorker& c) {
  event::WorkerJoined join;
  join.worker = c.worker;
  join.name = "sim";
  join.kind =
      c.worker.value < job.controller.device_workers() ? WorkerKind::kDevice : job.controller.side_kind();
  const auto joins = job.join_s.find(c.worker);
  Send(std::move(join),
       Seconds(c.delay) + (report.lives > 1 || started.contains(c.worker) ? faults.shape().restart_s
                           : joins != job.join_s.end()                    ? joins->second
                                                                          : job.message_s));
  started.insert(c.worker);
}

void Simulator::Impl::Do(const command::Welcome& c) {
  processes.erase(c.worker);
  processes.Insert(c.worker, {.inc = c.inc, .slots = c.slots});
  for (const SlotId slot : c.slots) {
    engines.erase(slot);
    stops.Remove(slot.value);
    Engine& e = engines.Insert(
        slot, Engine{.model = EngineModel(cost, job.engine_quantum, job.tokens_per_step, job.step_gap_s)});
    e.ref = {{c.worker, c.inc}, slot};
    e.slow = faults.Slow(slot.value, job.seed) ? faults.shape().slow_factor : 1;
    SetFactor(e);
    time.Hold(slot.value, Role::kNone, now);
  }
}

void Simulator::Impl::Do(const command::PrepareRow& c) {
  Send(event::RowReady{c.ordinal, c.issue, job.prompt_tokens}, job.row_s);
}

void Simulator::Impl::Do(const command::StartChunk& c) {
  Engine* e = Find(SlotOf(c));
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
  const bool cached = known != nullptr && known->second.engine == c.slot.value &&
                      known->second.caches == e->caches &&
                      (job.controller.rollout.kv_on_update == KvOnUpdate::kKeep || known->second.v == c.v);
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

void Simulator::Impl::Do(const command::CancelChunk& c) {
  Engine* e = Find(SlotOf(c));
  if (e == nullptr) return;
  e->model.CatchUp(now);
  const EngineRun* r = e->model.Find(c.tid);
  if (r == nullptr || r->att != c.att) return;
  Report(*e, e->model.Take(c.tid), event::ChunkEnd::kCancelled);
  Schedule(*e);
}

void Simulator::Impl::Do(const command::ForgetGroup& c) {
  Engine* e = Find(SlotOf(c));
  if (e != nullptr) e->groups.erase(c.gid);
}

void Simulator::Impl::Do(const command::EnvStep& c) {
  event::EnvStepped r{.worker = c.worker, .tid = c.tid, .att = c.att, .turn = c.turn};
  r.observation_tokens = c.turn == 0 ? job.prompt_tokens : job.turns.observation_tokens;
  r.done = c.turn >= draws.Turns(c.tid);
  r.reward = (SampleUid(c.tid) >> 7) % 2 == 0 ? 1 : 0;
  Send(std::move(r), draws.TurnSeconds(c.tid, c.turn));
}

void Simulator::Impl::Do(const command::AppendObservation& c) {
  if (auto* known = samples.find(c.tid); known != nullptr) known->second.turn_begin = -1;
}

void Simulator::Impl::Do(const command::StorePayload& c) {
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

void Simulator::Impl::Do(const command::Grade& c) {
  const double reward = (SampleUid(c.tid) >> 7) % 2 == 0 ? 1 : 0;
  Send(event::Graded{c.grader, c.tid, c.att, GradeOutcome::kOk, reward, {}, ""}, job.reward_s);
}

void Simulator::Impl::Do(const command::Drain& c) {
  Engine* e = Find(SlotOf(c));
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

void Simulator::Impl::Do(const command::Release& c) {
  Engine* e = Find(SlotOf(c));
  if (e == nullptr) return;
  e->role = Role::kNone;
  time.Hold(c.slot.value, Role::kNone, now);
  e->groups.clear();
  ++e->caches;
  report.switch_s += job.release_s;
  Send(event::Released{c.worker, c.slot, c.epoch,
                       static_cast<int64_t>(job.hardware.memory_bytes) * job.devices_per_slot},
       job.release_s);
}

void Simulator::Impl::Do(const command::Grant& c) {
  Engine* e = Find(SlotOf(c));
  if (e == nullptr) return;
  e->epoch = c.epoch;
  e->role = c.role;
  report.switch_s += job.grant_s;
  Send(event::Granted{c.worker, c.slot, c.epoch}, job.grant_s);
}

void Simulator::Impl::Do(const command::FetchState& c) {
  const double bytes = job.model.parameters * 14;
  Ready(SlotOf(c), c.request, c.step, c.weights_digest,
        bytes / (job.hardware.net_bytes_per_s * static_cast<double>(job.devices_per_slot)));
}

void Simulator::Impl::Ready(const SlotRef& ref, int64_t request, StepNumber step, uint64_t digest,
                            double seconds) {
  Engine* e = Find(ref);
  if (e == nullptr && faulty) return;
  TP_CHECK(e != nullptr);
  e->state_step = step;
  e->training = false;
  e->state = digest;
  Send(event::StateReady{ref.worker, ref.slot, step, digest, "", request}, seconds);
}

void Simulator::Impl::Do(const command::FormGroup& c) {
  Engine* e = Find(SlotOf(c));
  if (e == nullptr && faulty) return;
  TP_CHECK(e != nullptr);
  e->group_epoch = c.group_epoch;
  Send(event::GroupFormed{c.worker, c.slot, c.group_epoch, ""}, job.group_s);
}

double Simulator::Impl::ScoreSeconds(const SampleId& tid, bool with_prompt) const {
  const auto n =
      static_cast<double>((with_prompt ? job.prompt_tokens : 0) + controller->FindPayload(tid)->response_len);
  return static_cast<double>(job.further_models) * cost.Score(n, n * n, job.train_efficiency);
}

void Simulator::Impl::Do(const command::Preview& c) {
  Engine* e = Find(SlotOf(c));
  if (e == nullptr && faulty) return;
  TP_CHECK(e != nullptr && e->role == Role::kActor && e->epoch == c.epoch && !e->training);
  e->scoring_until = std::max(e->scoring_until, now);
  for (const SampleId& tid : c.rows) {
    const double seconds = e->slow * ScoreSeconds(tid, !job.prompt_once || tid == c.rows.front());
    e->scoring_until += seconds;
    early[tid] = {e->ref, e->scoring_until, seconds};
  }
}

double Simulator::Impl::LateScores(const command::Train& c) {
  double late = 0;
  for (const auto& group : c.share->groups) {
    for (const SampleId& tid : group) {
      const auto done = early.extract(tid);
      if (!done.empty() && done.mapped().done <= now && Find(done.mapped().at) != nullptr) {
        time.Busy(Role::kActor, done.mapped().seconds);
      } else {
        late += ScoreSeconds(tid, !job.prompt_once || tid == group.front());
      }
    }
  }
  return late;
}

void Simulator::Impl::Do(const command::Train& c) {
  Engine* e = Find(SlotOf(c));
  if (e == nullptr && faulty) return;
  TP_CHECK(e != nullptr);
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
  const TrainingLayout layout{
      .data = c.world / c.tensor,
      .tensor = c.tensor,
      .zero = job.zero,
      .micro_batches =
          job.micro_batch_tokens > 0
              ? std::max<int64_t>(
                    1, static_cast<int64_t>(std::ceil(tokens / static_cast<double>(job.micro_batch_tokens))))
              : 0,
      .one_host = job.one_host};
  s.seconds[c.slot] = e->slow * Noise(*e) *
                          (LateScores(c) / static_cast<double>(c.tensor) +
                           cost.TrainShare(layout, tokens, squares, job.recompute, job.train_efficiency)) +
                      cost.Collectives(layout, tokens, job.recompute);
  e->training = true;
  e->scoring_until = now;  // what was not done by now is not waited for
  if (job.slow_beside != 1) Share(*e);
  if (static_cast<int64_t>(s.members.size()) == c.world) {
    double slowest = 0;
    for (const auto& [slot, seconds] : s.seconds) slowest = std::max(slowest, seconds);
    Push(slowest, Kind::kTrained, c.lease);
  }
}

event::GivenRow Simulator::Impl::GivenRowOf(const SampleId& tid, const std::vector<Version>& stale) const {
  event::GivenRow row{tid, 0, 0};
  const record::Enq* enq = controller->FindPayload(tid);
  if (enq == nullptr) return row;
  row.digest = enq->digest;
  for (const record::VersionTokens& run : enq->versions) {
    if (std::ranges::find(stale, run.v) != stale.end()) row.masked += run.tokens;
  }
  return row;
}

void Simulator::Impl::Trained(int64_t id) {
  const auto it = training.find(id);
  if (it == training.end()) return;  // called off
  Step s = std::move(it->second);
  training.erase(it);
  // With a member that is gone the others wait in a collective until they are called off.
  if (std::ranges::any_of(s.members, [&](const command::Train& c) { return Find(SlotOf(c)) == nullptr; }))
    return;
  uint64_t digest = Find(SlotOf(s.members.front()))->state;
  double slowest = 0;
  for (const auto& [slot, seconds] : s.seconds) slowest = std::max(slowest, seconds);
  for (const SampleId& tid : lease.tids) digest = Mix64(digest ^ SampleUid(tid));
  for (const command::Train& c : s.members) {
    Engine* e = Find(SlotOf(c));
    e->state = digest;
    e->state_step = c.step;
    e->training = false;
    if (job.slow_beside != 1) Share(*e);
    const double seconds = job.engine_quantum > 1 ? s.seconds.at(c.slot) : slowest;
    time.Busy(Role::kActor, seconds);
    event::TrainDone done{c.worker, c.slot, c.step, c.lease, true, digest, seconds, {}};
    for (const auto& group : c.share->groups) {
      for (const SampleId& tid : group) done.rows.push_back(GivenRowOf(tid, c.share->stale));
    }
    Send(std::move(done));
  }
}

void Simulator::Impl::Do(const command::AbortStep& c) {
  training.erase(c.lease);
  Engine* e = Find(SlotOf(c));
  if (e == nullptr) return;
  e->training = false;
  Send(event::StepAborted{c.worker, c.slot, c.lease, e->state_step, e->state}, 0.01);
}

void Simulator::Impl::Do(const command::RestoreState& c) {
  const auto kept = c.ckpt < 0 ? recovery.find(c.step.value) : checkpoints.find(c.ckpt);
  const auto& from = c.ckpt < 0 ? recovery : checkpoints;
  if (kept == from.end()) {
    Send(event::StateReady{c.worker, c.slot, c.step, 0, "no such copy", c.request}, 0.1);
    return;
  }
  Ready(SlotOf(c), c.request, c.step, kept->second,
        job.model.parameters * 14 /
            (job.hardware.host_bytes_per_s * static_cast<double>(job.devices_per_slot)));
}

void Simulator::Impl::Do(const command::VerifyCheckpoint& c) {
  Send(event::CheckpointVerified{c.ckpt, checkpoints.contains(c.ckpt) ? "" : "missing"}, 0.1);
}

void Simulator::Impl::Do(const command::CopyRecovery& c) {
  if (const Engine* e = Find(SlotOf(c)); e != nullptr) recovery[c.step.value] = e->state;
  while (recovery.size() > 2) recovery.erase(recovery.begin());
  Send(event::RecoveryCopied{c.worker, c.slot, c.step, ""});
}

void Simulator::Impl::Do(const command::Publish& c) {
  published[c.v] = c.digest;
  Send(event::Published{c.worker, c.slot, c.v, ""}, job.publish_s);
}

void Simulator::Impl::Do(const command::Load& c) {
  Engine* e = Find(SlotOf(c));
  if (e == nullptr) return;
  e->v = c.v;
  e->weights = c.digest;
  const double rate = job.hardware.net_bytes_per_s * static_cast<double>(job.devices_per_slot);
  // Between two steps; what it was generating waits for it and goes on with the new weights.
  const double loaded = e->model.Stall(c.alias ? 0.001 : cost.weight_bytes() / rate, now);
  Send(event::Loaded{c.worker, c.slot, c.v, published.at(c.v), ""}, loaded - now + job.message_s);
  if (job.controller.rollout.kv_on_update != KvOnUpdate::kKeep) {
    const double again = e->model.Recompute();
    report.prefilled += again;
    report.prefilled_again += again;
  }
  e->noise = Noise(*e);
  SetFactor(*e);
  Schedule(*e);
}

void Simulator::Impl::Do(const command::WriteCheckpoint& c) {
  const Engine* e = Find(SlotOf(c));
  if (e == nullptr) return;
  const double seconds = faults.shape().checkpoint_s * DiskFactor();
  if (faults.CheckpointFails()) {
    Send(event::CheckpointFailed{c.ckpt, "no space left on device"}, seconds);
    return;
  }
  checkpoints[c.ckpt] = e->state;
  Send(event::CheckpointWritten{c.ckpt, c.step, Mix64(e->state), e->state}, seconds);
}

void Simulator::Impl::Do(const command::StepReport& c) {
  report.per_step.push_back({now - (report.per_step.empty() ? 0 : reported), time.Take(now)});
  reported = now;
  if (report.lag_hist.size() < c.lag_hist.size()) report.lag_hist.resize(c.lag_hist.size());
  for (size_t i = 0; i < c.lag_hist.size(); ++i) report.lag_hist[i] += c.lag_hist[i];
}

void Simulator::Impl::Do(const command::Finish& c) {
  if (stopping && report.steps_trained < job.controller.steps) return Halt();  // and goes on later
  over = true;
  report.done = c.code == 0;
  report.why = c.why;
}

}  // namespace tidepool::scheduler
