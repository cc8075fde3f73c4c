// Optimizer steps and publications.

#include <algorithm>
#include <chrono>
#include <utility>

#include "scheduler/balance.h"
#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {
namespace {

constexpr double kMinTrainSeconds = 600;  // a first step has no measured time yet
constexpr double kTrainFactor = 20;
constexpr double kAbortSeconds = 30;  // to leave a collective; then the worker is replaced

}  // namespace

// How long a step may go without a sign of progress. It is no limit on the whole step: a job with long steps
// would never get through one.
Duration Controller::Impl::TrainPatience() const {
  return FromSeconds(std::max(kMinTrainSeconds, kTrainFactor * train_s));
}

bool Controller::Impl::TrainerIdle() const {
  return trainer.phase == StatePhase::kReady && !trainer.training && trainer.aborting.empty() &&
         !trainer.publishing && !trainer.copying && !writing && !final_saving;
}

bool Controller::Impl::MayTrain() const {
  if (finished || !TrainerIdle() || shutdown.requested() || StepsDone()) return false;
  if (trainer.published != state.version() || !state.versions().IsPublished(state.version())) return false;
  if (CheckpointDue()) return false;
  // An evaluation that waits needs the newest weights; a next step would replace them.
  if (!evaluation.waiting().empty()) return false;
  if (evaluation.active() && evaluation.active()->v == state.version()) {
    return std::any_of(dispatcher.engines().begin(), dispatcher.engines().end(),
                       [&](const auto& item) { return item.second.version == state.version(); });
  }
  return true;
}

const std::vector<GroupKey>& Controller::Impl::Batch() {
  const std::pair<int64_t, Version> of{state.ledger().changes(), state.version()};
  if (batch_of != of) {
    batch = state.ledger().ChooseBatch({state.step().value + 1}, state.version(), state.versions());
    batch_of = of;
  }
  return batch;
}

// A batch is ready, but a group that is still generated would expire by training it: worth a short wait if
// that group is about to end (scheduler.straggler_wait of a step's time, once a batch).
bool Controller::Impl::WaitForStraggler() {
  // The decision not to wait stands for this step: slots are already on their way to it.
  if (not_waiting == state.step()) return false;
  if (StragglerIsWorthIt()) return true;
  not_waiting = state.step();
  return false;
}

bool Controller::Impl::StragglerIsWorthIt() {
  if (!rl || urgent.empty() || state.ledger().Replays(state.step()) > 0)
    return false;  // what is trained again is not chosen
  // A group that expires has been slow, so it is usually long. If drops already lean towards long samples,
  // the step waits for urgent groups as long as they take (Q10; their own waits have deadlines); else only
  // for the configured share of a step. In the first steps nothing has been dropped yet: if drops would lean,
  // the step waits about as long as a step took so far.
  const bool filling = state.step().value <= 2 * state.ledger().rules().max_lag_versions;
  if (foreseen.first != state.step()) foreseen = {state.step(), filling && WouldLean()};
  const bool leans = state.ledger().fairness().Leans(), fair = !leans && !foreseen.second;
  double wait_s =
      fair ? options.config.scheduler.straggler_wait * train_s : options.config.cluster.stall_timeout_s / 4;
  if (!fair && !leans)
    wait_s = std::min(wait_s, Seconds(now - TimePoint{}) / static_cast<double>(state.step().value + 1));
  if (wait_s <= 0 || (fair && token_s <= 0)) return false;
  if (straggling_since && now - *straggling_since > FromSeconds(wait_s)) return false;
  for (const GroupId gid : urgent) {
    const int64_t left = dispatcher.ExpectedLeft(gid);
    if (left == 0 || (fair && static_cast<double>(left) * token_s > wait_s)) continue;
    if (!straggling_since) straggling_since = now;
    return true;
  }
  return false;
}

// Whether drops would lean towards long samples (LengthFairness) if every urgent group that cannot end within
// the next step were dropped. The first samples of a run begin together, so their long ones would expire
// together, before any drop has been counted.
bool Controller::Impl::WouldLean() const {
  LengthFairness then = state.ledger().fairness();
  for (const auto& [key, g] : state.ledger().groups()) {
    if (!urgent.contains(g.gid) || static_cast<double>(dispatcher.ExpectedLeft(g.gid)) * token_s <= train_s)
      continue;
    for (size_t k = 0; k < g.samples.size(); ++k) {
      const Request* r = dispatcher.Find(g.Tid(k));
      then.Dropped(r != nullptr ? r->generated + dispatcher.LikelyLeft(*r) : g.samples[k].enq.response_len);
    }
  }
  then.Step();
  return then.Leans();
}

// Groups that would expire at the next version are generated first, as long as its batch is not chosen. Once
// it is chosen without them they are too late: they get no more chunks, unless that step fails.
void Controller::Impl::MarkUrgent() {
  urgent.clear();
  std::set<GroupId> too_late;
  const Ledger& ledger = state.ledger();
  const VersionGraph& versions = state.versions();
  if (rl && !ledger.rules().mask) {
    for (const auto& [key, g] : ledger.groups()) {
      if (g.phase != GroupPhase::kRunning) continue;
      for (size_t k = 0; k < g.samples.size(); ++k) {
        Version oldest = g.samples[k].enq.wv_min;
        if (const Request* r = dispatcher.Find(g.Tid(k)); r != nullptr) oldest = r->v_min;
        if (oldest.valid() && versions.Lag(oldest, state.version()) >= ledger.rules().max_lag_versions) {
          (state.open_lease() >= 0 ? too_late : urgent).insert(g.gid);
          break;
        }
      }
    }
  }
  if (ledger.rules().max_lag_versions > 0) dispatcher.SetUrgent(urgent, too_late);
}

void Controller::Impl::AdvanceTraining() {
  if (finished || trainer.phase != StatePhase::kReady) return;
  if (!trainer.training && !trainer.publishing && trainer.published != state.version() &&
      state.ever_checkpointed()) {
    trainer.publishing = true;
    out.Do(command::Publish{trainer.leader, state.version(), trainer.digest});
    waits.Begin({WaitKind::kPublish, 0},
                {trainer.leader, now, now + FromSeconds(options.config.cluster.start_timeout_s),
                 ToString(state.version())});
  }
  const int64_t every = options.config.checkpoint.recovery_every_steps;
  if (every > 0 && !trainer.training && !trainer.copying && recovery != state.step() &&
      recovery_failed != state.step() && state.ever_checkpointed() &&
      (state.step().value % every == 0 || !recovery.valid()) && !shutdown.requested()) {
    trainer.copying = true;
    out.Do(command::CopyRecovery{trainer.leader, state.step()});
    waits.Begin({WaitKind::kRecoveryCopy, 0},
                {trainer.leader, now, now + FromSeconds(options.config.cluster.start_timeout_s), ""});
  }
  const bool wanted = MayTrain() && !Batch().empty() && !WaitForStraggler();
  // Members take the state and form their group as soon as their slots are theirs.
  if (!wanted && group_checked == pool.generation() && trainer.fetching.empty() && trainer.forming.empty())
    return;
  group_checked = pool.generation();
  if (PrepareGroup() && wanted) {
    straggling_since.reset();
    StartTraining(std::vector<GroupKey>(batch));
  }
}

void Controller::Impl::StartTraining(const std::vector<GroupKey>& keys) {
  const Ledger& ledger = state.ledger();
  const VersionGraph& versions = state.versions();
  const int64_t eta = ledger.rules().max_lag_versions;
  Training t{.lease = state.next_lease(),
             .step = {state.step().value + 1},
             .v = state.version(),
             .rows = {},
             .report = {},
             .tokens = 0,
             .since = now,
             .members = Members(),
             .done = {}};
  std::vector<std::vector<SampleId>> rows;  // [groups]
  std::vector<double> costs;                // [groups]
  std::set<Version> stale;
  std::vector<SampleId> tids;
  double lag_sum = 0;
  t.report.lag_hist.assign(static_cast<size_t>(eta + 1), 0);
  for (const GroupKey& key : keys) {
    const Group& g = *ledger.Find(key);
    auto& group = rows.emplace_back();
    costs.push_back(0);
    for (size_t k = 0; k < g.samples.size(); ++k) {
      const Sample& s = g.samples[k];
      if (s.phase != SamplePhase::kReady) continue;
      group.push_back(g.Tid(k));
      t.tokens += static_cast<double>(s.enq.prompt_len + s.enq.response_len);
      costs.back() += options.sample_cost(s.enq.prompt_len + s.enq.response_len);
      record::TrainedRow row{g.Tid(k), s.enq.wv_min, 0, 0};
      int64_t lag = std::max(versions.Lag(s.enq.wv_min, t.v), versions.Lag(s.enq.wv_max, t.v));
      if (lag > eta) {  // on_stale mask: tokens whose lag is beyond the bound have no loss
        // What is not known run by run has its oldest version between the two that are.
        row.oldest =
            s.enq.versions.empty() ? versions.FirstWithin(s.enq.wv_min, s.enq.wv_max, t.v, eta) : Version{};
        lag = s.enq.versions.empty() ? eta : 0;
        for (const record::VersionTokens& run : s.enq.versions) {
          const int64_t behind = versions.Lag(run.v, t.v);
          if (behind > eta) {
            stale.insert(run.v);
            row.masked += run.tokens;
          } else if (!row.oldest.valid() || behind > lag) {
            row.oldest = run.v;
            lag = behind;
          }
        }
      }
      t.rows.push_back(row);
      ++t.report.lag_hist[static_cast<size_t>(lag)];
      t.report.lag_max = std::max(t.report.lag_max, lag);
      lag_sum += static_cast<double>(lag);
    }
    tids.insert(tids.end(), group.begin(), group.end());
  }
  t.report.step = t.step;
  t.report.members = static_cast<int64_t>(t.members.size());
  t.report.lag_mean = lag_sum / static_cast<double>(std::max<size_t>(tids.size(), 1));
  const auto world = static_cast<int64_t>(t.members.size());
  const auto total_rows = static_cast<int64_t>(tids.size());
  std::vector<record::SlotPlan> plan;
  for (const command::GroupMember& m : t.members)
    plan.push_back({m.slot, Role::kActor, Role::kActor, m.epoch});
  out.Record(record::Lease{t.lease, t.step, std::move(tids), t.members.front().worker});
  out.Record(record::StepBegin{t.step, t.v, std::move(plan)});
  MarkUrgent();
  const auto shares = BalancedPartition(costs, world);
  for (int64_t rank = 0; rank < world; ++rank) {
    const command::GroupMember& m = t.members[static_cast<size_t>(rank)];
    command::Train train{.worker = m.worker,
                         .slot = m.slot,
                         .epoch = m.epoch,
                         .lease = t.lease,
                         .step = t.step,
                         .v = t.v,
                         .share = {},
                         .group_epoch = world > 1 ? trainer.group_epoch : 0,
                         .rank = rank,
                         .world = world,
                         .total_groups = static_cast<int64_t>(rows.size()),
                         .total_rows = total_rows};
    for (const int64_t i : shares[static_cast<size_t>(rank)]) {
      train.share->groups.push_back(std::move(rows[static_cast<size_t>(i)]));
    }
    train.share->stale.assign(stale.begin(), stale.end());
    out.Do(std::move(train));
    waits.Begin({WaitKind::kTrain, m.worker.worker.value},
                {m.worker, now, now + TrainPatience(), "step=" + std::to_string(t.step.value)});
  }
  trainer.training = std::move(t);
}

// `but`: the member that is known to be out of the step already (lost, or it said so).
void Controller::Impl::AbortStep(const std::string& why, const WorkerRef& but) {
  if (!trainer.training) return;
  const Training t = std::move(*trainer.training);
  trainer.training.reset();
  out.Record(record::StepAbort{t.step, why});
  out.Record(record::Unlease{t.lease, why});
  MarkUrgent();
  for (const command::GroupMember& m : t.members) waits.End({WaitKind::kTrain, m.worker.worker.value});
  if (t.members.size() < 2 || t.done.size() == t.members.size()) return;  // nobody is inside it any more
  // Its communicators are unusable once one member has left.
  trainer.group.clear();
  for (const command::GroupMember& m : t.members) {
    if (m.worker == but || !health.IsCurrent(m.worker)) continue;
    trainer.copies.erase(m.worker);  // until it says what it holds
    trainer.aborting.insert(m.worker);
    out.Do(command::AbortStep{m.worker, m.slot, m.epoch, t.lease, t.step, trainer.group_epoch});
    WaitForAbort(m.worker, t.step);
  }
  if (!trainer.aborting.empty() && trainer.phase == StatePhase::kReady) trainer.phase = StatePhase::kElecting;
}

void Controller::Impl::WaitForAbort(const WorkerRef& ref, StepNumber step) {
  waits.Begin({WaitKind::kAbort, ref.worker.value},
              {ref, now, now + FromSeconds(kAbortSeconds), "step=" + std::to_string(step.value)});
}

void Controller::Impl::SetAside(const std::set<GroupKey>& keys, DropReason reason) {
  for (const GroupKey& key : keys) DropGroup(key, reason);
}

void Controller::Impl::On(const event::TrainDone& e) {
  const auto is_member = [&](const command::GroupMember& m) { return m.worker == e.worker; };
  if (!health.IsCurrent(e.worker) || !trainer.training || e.lease != trainer.training->lease ||
      e.step != trainer.training->step ||
      std::none_of(trainer.training->members.begin(), trainer.training->members.end(), is_member) ||
      trainer.training->done.contains(e.worker)) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kTrain, e.worker.worker.value});
  trainer.training->done[e.worker] = e;
  if (trainer.training->done.size() < trainer.training->members.size()) return;
  const event::TrainDone& first = trainer.training->done.begin()->second;
  for (const auto& [ref, done] : trainer.training->done) {
    if (done.finite == first.finite && (!done.finite || done.weights_digest == first.weights_digest))
      continue;
    Fail("replicas_differ", ToString(ref), ref.inc,
         "after step " + std::to_string(e.step.value) + " its weights differ from those of " +
             ToString(first.worker) + "; restart from the newest checkpoint, and look at this device");
    return;
  }
  train_failures = 0;
  train_s = train_s == 0 ? e.seconds : 0.8 * train_s + 0.2 * e.seconds;
  double slowest = 0;
  for (const auto& [ref, done] : trainer.training->done) slowest = std::max(slowest, done.seconds);
  live.TrainStep(static_cast<int64_t>(trainer.training->members.size()), trainer.training->tokens, slowest);
  if (!e.finite) {
    // No update was made. The batch is set aside, so that it is not what every later step trips over.
    std::set<GroupKey> keys;
    for (const record::TrainedRow& row : trainer.training->rows) keys.insert(KeyOf(row.tid));
    std::string ids;
    for (const GroupKey& key : keys)
      ids += (ids.empty() ? "" : ",") + std::to_string(key.ordinal) + "." + std::to_string(key.issue);
    const StepNumber step = e.step;
    AbortStep("loss or gradient is not finite");
    out.Warn("step=" + std::to_string(step.value) + " event=nonfinite groups=" + ids);
    SetAside(keys, DropReason::kPoison);
    if (++nonfinite >= std::max<int64_t>(options.config.train.max_nonfinite_steps, 1)) {
      Fail("nonfinite", "w" + std::to_string(e.worker.worker.value), e.worker.inc,
           std::to_string(nonfinite) +
               " steps in a row had a loss or gradient that is not finite; "
               "the weights of step " +
               std::to_string(state.step().value) + " are kept (last groups: " + ids + ")");
    }
    return;
  }
  nonfinite = 0;
  // Every member was given the whole batch. Thousands of them say the same of it, so that is looked up once.
  const auto& told = trainer.training->done.begin()->second.rows;
  for (const auto& [ref, done] : trainer.training->done) {
    if (&done.rows != &told && done.rows == told) continue;
    const std::string why = OtherRow(done.rows);
    if (why.empty()) continue;
    Fail("rows_differ", ToString(ref), ref.inc, "step " + std::to_string(e.step.value) + ": " + why);
    return;
  }
  Training t = std::move(*trainer.training);
  trainer.training.reset();
  t.report.dropped_stale = state.ledger().stale_since_commit();
  t.report.filtered = state.ledger().filtered_since_commit();
  t.report.v = {t.v.lineage, t.step.value};
  const uint64_t digest = t.done.begin()->second.weights_digest;
  out.Record(record::StepCommit{t.step, t.report.v, digest, std::move(t.rows)});
  trainer.step = t.step;
  trainer.digest = digest;
  for (const command::GroupMember& m : t.members) trainer.copies[m.worker] = {t.step, digest};
  if (!HasState(trainer.leader)) {  // it had no part in this step
    trainer.leader = t.members.front().worker;
    trainer.publish_tries = 0;
  }
  out.Do(std::move(t.report));
}

// Notes what a trainer was given in the rows of the open step; says which of them is not what was stored.
std::string Controller::Impl::OtherRow(const std::vector<std::pair<SampleId, uint64_t>>& given) {
  const std::map<SampleId, uint64_t> digests(given.begin(), given.end());
  for (record::TrainedRow& row : trainer.training->rows) {
    const auto it = digests.find(row.tid);
    row.digest = it == digests.end() ? 0 : it->second;
    const Sample* s = state.ledger().Find(row.tid);
    if (s == nullptr || row.digest == 0 || row.digest != s->enq.digest)
      return "the trainer was given other bytes of sample " + ToString(row.tid) +
             " than its ENQ names; nothing of this step is kept";
  }
  return "";
}

void Controller::Impl::On(const event::TrainFailed& e) {
  const auto is_member = [&](const command::GroupMember& m) { return m.worker == e.worker; };
  if (!health.IsCurrent(e.worker) || !trainer.training || e.lease != trainer.training->lease ||
      std::none_of(trainer.training->members.begin(), trainer.training->members.end(), is_member) ||
      trainer.training->done.contains(e.worker)) {
    Refuse();
    return;
  }
  Moved();
  std::set<GroupKey> keys;
  for (const record::TrainedRow& row : trainer.training->rows) keys.insert(KeyOf(row.tid));
  AbortStep(e.why, e.worker);
  if (e.lost.ordinal >= 0) {
    out.Record(record::Fault{"payload", ToString(e.lost), {}, e.why});
    out.Warn("step=" + std::to_string(e.step.value) + " event=payload_lost sample=" + ToString(e.lost) +
             " why=\"" + e.why + "\"");
    SetAside({KeyOf(e.lost)}, DropReason::kDataInvalid);
    return;
  }
  out.Warn("step=" + std::to_string(e.step.value) + " event=train_failed why=\"" + e.why + "\"");
  if (++train_failures >= kTries) {
    Fail("train", "w" + std::to_string(e.worker.worker.value), e.worker.inc,
         "step " + std::to_string(e.step.value) + " failed " + std::to_string(train_failures) +
             " times: " + e.why);
    return;
  }
  if (e.data) SetAside(keys, DropReason::kDataInvalid);
}

void Controller::Impl::On(const event::Published& e) {
  if (!health.IsCurrent(e.worker) || !trainer.publishing || e.worker != trainer.leader ||
      e.v != state.version()) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kPublish, 0});
  trainer.publishing = false;
  if (!e.error.empty()) {
    out.Warn("version=" + ToString(e.v) + " event=publish_failed why=\"" + e.error + "\"");
    if (++trainer.publish_tries >= kTries)
      Replace(e.worker, "it could not publish " + ToString(e.v) + ": " + e.error);
    return;
  }
  trainer.publish_tries = 0;
  trainer.published = e.v;
  if (state.versions().IsPublished(e.v)) return;  // again, by a new process of the trainer
  out.Record(record::Publish{e.v, trainer.digest});
  ExpireOld();
  MarkUrgent();
  PlanEvaluation();
}

void Controller::Impl::On(const event::RecoveryCopied& e) {
  if (!health.IsCurrent(e.worker) || !trainer.copying || e.worker != trainer.leader ||
      e.step != state.step()) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kRecoveryCopy, 0});
  trainer.copying = false;
  if (e.error.empty()) {
    recovery = e.step;
    return;
  }
  // The run goes on without this copy; the next one is made when it is due.
  recovery_failed = e.step;
  out.Warn("worker=" + ToString(e.worker) +
           " event=recovery_copy_failed step=" + std::to_string(e.step.value) + " why=\"" + e.error + "\"");
}

}  // namespace tidepool::scheduler
