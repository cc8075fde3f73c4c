// The trainer: its state, optimizer steps and publications.

#include <algorithm>
#include <chrono>

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {
namespace {

constexpr int64_t kTries = 3;              // of one operation on one worker
constexpr double kMinTrainSeconds = 600;   // a first step has no measured time yet
constexpr double kTrainFactor = 20;

}  // namespace

// --- state

// Decides where the trainer's state comes from.
void Controller::Impl::PlanState(bool restore) {
  must_restore = must_restore || restore;
  trainer.phase = StatePhase::kNone;
  trainer.digest = 0;
  trainer.published = {};
  trainer.publishing = trainer.copying = false;
  trainer.publish_tries = trainer.state_tries = 0;
  if (!state.ever_checkpointed()) {
    if (state.step().value > 0) {
      Fail("no_checkpoint", "controller", {}, "the journal has steps but no checkpoint; start anew with --fresh");
      return;
    }
    trainer.ckpt = -2;
    trainer.step = {0};
    trainer.phase = StatePhase::kPlanned;
    return;
  }
  const int64_t behind = state.step().value - recovery.value;
  if (!must_restore && recovery.valid() && (behind == 0 || behind == 1)) {
    if (behind == 1) Restore(-1, recovery);
    trainer.ckpt = -1;
    trainer.step = recovery;
    trainer.digest = state.WeightsDigest(state.version());
    trainer.phase = StatePhase::kPlanned;
    return;
  }
  VerifyNext();
}

void Controller::Impl::VerifyNext() {
  const auto c = CheckpointPolicy::Candidate(state.checkpoints());
  if (!c) {
    Fail("no_checkpoint", "controller", {}, "no checkpoint of this run can be read; start anew with --fresh");
    return;
  }
  trainer.phase = StatePhase::kVerifying;
  trainer.ckpt = c->ckpt;
  trainer.step = c->step;
  trainer.digest = c->weights_digest;
  out.Do(command::VerifyCheckpoint{c->ckpt, c->step, c->manifest_digest});
  waits.Begin({WaitKind::kVerify, 0}, {{}, now, now + FromSeconds(options.config.cluster.start_timeout_s), "checkpoint " + std::to_string(c->ckpt)});
}

void Controller::Impl::On(const event::CheckpointVerified& e) {
  if (trainer.phase != StatePhase::kVerifying || e.ckpt != trainer.ckpt) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kVerify, 0});
  if (!e.error.empty()) {
    out.Warn("checkpoint=" + std::to_string(e.ckpt) + " event=rejected why=\"" + e.error + "\"");
    out.Record(record::CheckpointReject{e.ckpt, e.error});
    VerifyNext();
    return;
  }
  // Nothing is undone if the newest step is in it; a new life opens a lineage all the same.
  if (must_restore || trainer.step < state.step()) Restore(trainer.ckpt, trainer.step);
  must_restore = false;
  trainer.phase = StatePhase::kPlanned;
}

void Controller::Impl::Restore(int64_t ckpt, StepNumber step) {
  out.Record(record::Restore{ckpt, step, state.version().lineage, state.lineages()});
  recovery = ckpt >= 0 ? StepNumber{} : step;
  CancelEvaluation("its step was undone");
  RestartUndone();
}

void Controller::Impl::AdvanceState() {
  if (finished || trainer.phase != StatePhase::kPlanned) return;
  const SlotId slot{0};
  // Its holder may be one of an earlier life that has not come back.
  if (!pool.Holds(slot, Role::kActor) || !health.IsCurrent(pool.slot(slot).holder)) return;
  trainer.ref = pool.slot(slot).holder;
  trainer.phase = StatePhase::kLoading;
  if (trainer.ckpt == -2) {
    out.Do(command::InitState{trainer.ref});
  } else {
    out.Do(command::RestoreState{trainer.ref, trainer.ckpt, trainer.step, trainer.digest});
  }
  waits.Begin({WaitKind::kState, 0}, {trainer.ref, now, now + FromSeconds(options.config.cluster.start_timeout_s),
                                      trainer.ckpt == -2 ? "init" : "restore"});
}

void Controller::Impl::On(const event::StateReady& e) {
  if (!health.IsCurrent(e.worker) || trainer.phase != StatePhase::kLoading || e.worker != trainer.ref) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kState, 0});
  std::string error = e.error;
  if (error.empty() && e.step != trainer.step) error = "it holds step " + std::to_string(e.step.value) + ", not " + std::to_string(trainer.step.value);
  if (error.empty() && trainer.digest != 0 && e.weights_digest != trainer.digest) error = "its weights differ from the committed ones";
  if (error.empty()) {
    trainer.phase = StatePhase::kReady;
    trainer.digest = e.weights_digest;
    trainer.state_tries = 0;
    health.Admitted(e.worker.worker);
    return;
  }
  out.Warn("worker=" + ToString(e.worker) + " event=state_failed step=" + std::to_string(trainer.step.value) + " why=\"" + error + "\"");
  if (++trainer.state_tries < kTries && trainer.ckpt != -1) {
    trainer.phase = StatePhase::kPlanned;
    return;
  }
  if (trainer.ckpt == -2) {
    Fail("state", "w0", e.worker.inc, "the model could not be made: " + error);
  } else if (trainer.ckpt == -1) {
    recovery = {};  // the copy is of no use; the newest checkpoint then
    PlanState(false);
  } else {
    out.Record(record::CheckpointReject{trainer.ckpt, error});
    PlanState(true);
  }
}

void Controller::Impl::ActorLost(const std::string& why) {
  AbortStep("actor lost: " + why);
  if (writing) {
    out.Warn("checkpoint=" + std::to_string(writing->ckpt) + " event=abandoned why=\"actor lost\"");
    writing.reset();
    waits.End({WaitKind::kCheckpoint, 0});
  }
  final_saving = false;
  for (const WaitKind kind : {WaitKind::kState, WaitKind::kPublish, WaitKind::kRecoveryCopy, WaitKind::kFinal}) waits.End({kind, 0});
  trainer.ref = {};
  if (trainer.phase == StatePhase::kVerifying || trainer.phase == StatePhase::kPlanned) return;
  if (trainer.phase == StatePhase::kLoading) {
    trainer.phase = StatePhase::kPlanned;
    return;
  }
  PlanState(false);
}

// --- steps

bool Controller::Impl::TrainerIdle() const {
  return trainer.phase == StatePhase::kReady && !trainer.training && !trainer.publishing && !trainer.copying && !writing && !final_saving;
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

std::vector<GroupKey> Controller::Impl::Batch() const {
  return state.ledger().ChooseBatch({state.step().value + 1}, state.version(), state.versions());
}

void Controller::Impl::AdvanceTraining() {
  if (finished || trainer.phase != StatePhase::kReady) return;
  if (!trainer.training && !trainer.publishing && trainer.published != state.version() && state.ever_checkpointed()) {
    trainer.publishing = true;
    out.Do(command::Publish{trainer.ref, state.version(), trainer.digest});
    waits.Begin({WaitKind::kPublish, 0}, {trainer.ref, now, now + FromSeconds(options.config.cluster.start_timeout_s), ToString(state.version())});
  }
  const int64_t every = options.config.checkpoint.recovery_every_steps;
  if (every > 0 && !trainer.training && !trainer.copying && recovery != state.step() && state.ever_checkpointed() &&
      (state.step().value % every == 0 || !recovery.valid()) && !shutdown.requested()) {
    trainer.copying = true;
    out.Do(command::CopyRecovery{trainer.ref, state.step()});
    waits.Begin({WaitKind::kRecoveryCopy, 0}, {trainer.ref, now, now + FromSeconds(options.config.cluster.start_timeout_s), ""});
  }
  if (!MayTrain() || !pool.Holds({0}, Role::kActor)) return;
  const std::vector<GroupKey> keys = Batch();
  if (!keys.empty()) StartTraining(keys);
}

void Controller::Impl::StartTraining(const std::vector<GroupKey>& keys) {
  const Ledger& ledger = state.ledger();
  const VersionGraph& versions = state.versions();
  const int64_t eta = ledger.rules().max_lag_versions;
  Training t{.lease = state.next_lease(), .step = {state.step().value + 1}, .v = state.version(), .rows = {}, .report = {}, .since = now};
  command::Train train{.worker = trainer.ref, .slot = {0}, .epoch = pool.slot({0}).epoch, .lease = t.lease, .step = t.step,
                       .v = t.v, .groups = {}, .masked = {}, .max_lag_versions = eta};
  std::vector<SampleId> tids;
  double lag_sum = 0;
  t.report.lag_hist.assign(static_cast<size_t>(eta + 1), 0);
  for (const GroupKey& key : keys) {
    const Group& g = *ledger.Find(key);
    auto& rows = train.groups.emplace_back();
    for (size_t k = 0; k < g.samples.size(); ++k) {
      const Sample& s = g.samples[k];
      if (s.phase != SamplePhase::kReady) continue;
      rows.push_back(g.Tid(k));
      Version oldest = s.enq.wv_min;
      int64_t lag = std::max(versions.Lag(s.enq.wv_min, t.v), versions.Lag(s.enq.wv_max, t.v));
      if (lag > eta) {  // on_stale mask: the tokens before this version have no loss
        train.masked.push_back(g.Tid(k));
        oldest = versions.Lag(s.enq.wv_max, t.v) > eta ? Version{} : versions.Ancestor(t.v, std::max<int64_t>(t.v.number - eta, 0));
        lag = eta;
      }
      t.rows.push_back({g.Tid(k), oldest});
      ++t.report.lag_hist[static_cast<size_t>(lag)];
      t.report.lag_max = std::max(t.report.lag_max, lag);
      lag_sum += static_cast<double>(lag);
    }
    tids.insert(tids.end(), rows.begin(), rows.end());
  }
  t.report.step = t.step;
  t.report.lag_mean = lag_sum / static_cast<double>(std::max<size_t>(tids.size(), 1));
  out.Record(record::Lease{t.lease, t.step, std::move(tids), trainer.ref});
  out.Record(record::StepBegin{t.step, t.v});
  out.Do(std::move(train));
  const double limit = std::max(kMinTrainSeconds, kTrainFactor * train_s);
  waits.Begin({WaitKind::kTrain, 0}, {trainer.ref, now, now + FromSeconds(limit), "step=" + std::to_string(t.step.value)});
  trainer.training = std::move(t);
}

void Controller::Impl::AbortStep(const std::string& why) {
  if (!trainer.training) return;
  out.Record(record::StepAbort{trainer.training->step, why});
  out.Record(record::Unlease{trainer.training->lease, why});
  trainer.training.reset();
  waits.End({WaitKind::kTrain, 0});
}

void Controller::Impl::On(const event::TrainDone& e) {
  if (!health.IsCurrent(e.worker) || !trainer.training || e.worker != trainer.ref || e.lease != trainer.training->lease || e.step != trainer.training->step) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kTrain, 0});
  train_failures = 0;
  train_s = train_s == 0 ? e.seconds : 0.8 * train_s + 0.2 * e.seconds;
  if (!e.finite) {
    // No update was made. The batch is set aside, so that it is not what every later step trips over.
    std::set<GroupKey> keys;
    for (const record::TrainedRow& row : trainer.training->rows) keys.insert(KeyOf(row.tid));
    std::string ids;
    for (const GroupKey& key : keys) ids += (ids.empty() ? "" : ",") + std::to_string(key.ordinal) + "." + std::to_string(key.issue);
    const StepNumber step = e.step;
    AbortStep("loss or gradient is not finite");
    out.Warn("step=" + std::to_string(step.value) + " event=nonfinite groups=" + ids);
    for (const GroupKey& key : keys) DropGroup(key, DropReason::kPoison);
    if (++nonfinite >= std::max<int64_t>(options.config.train.max_nonfinite_steps, 1)) {
      Fail("nonfinite", "w0", e.worker.inc, std::to_string(nonfinite) + " steps in a row had a loss or gradient that is not finite; "
           "the weights of step " + std::to_string(state.step().value) + " are kept (last groups: " + ids + ")");
    }
    return;
  }
  nonfinite = 0;
  Training t = std::move(*trainer.training);
  trainer.training.reset();
  t.report.dropped_stale = state.ledger().stale_since_commit();
  t.report.filtered = state.ledger().filtered_since_commit();
  t.report.v = {t.v.lineage, t.step.value};
  out.Record(record::StepCommit{t.step, t.report.v, e.weights_digest, std::move(t.rows)});
  trainer.step = t.step;
  trainer.digest = e.weights_digest;
  out.Do(std::move(t.report));
}

void Controller::Impl::On(const event::TrainFailed& e) {
  if (!health.IsCurrent(e.worker) || !trainer.training || e.worker != trainer.ref || e.lease != trainer.training->lease) {
    Refuse();
    return;
  }
  Moved();
  std::set<GroupKey> keys;
  for (const record::TrainedRow& row : trainer.training->rows) keys.insert(KeyOf(row.tid));
  AbortStep(e.why);
  out.Warn("step=" + std::to_string(e.step.value) + " event=train_failed why=\"" + e.why + "\"");
  if (++train_failures >= kTries) {
    Fail("train", "w0", e.worker.inc, "step " + std::to_string(e.step.value) + " failed " + std::to_string(train_failures) + " times: " + e.why);
    return;
  }
  if (e.data) {
    for (const GroupKey& key : keys) DropGroup(key, DropReason::kDataInvalid);
  }
}

void Controller::Impl::On(const event::Published& e) {
  if (!health.IsCurrent(e.worker) || !trainer.publishing || e.worker != trainer.ref || e.v != state.version()) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kPublish, 0});
  trainer.publishing = false;
  if (!e.error.empty()) {
    out.Warn("version=" + ToString(e.v) + " event=publish_failed why=\"" + e.error + "\"");
    if (++trainer.publish_tries >= kTries) Replace(e.worker, "it could not publish " + ToString(e.v) + ": " + e.error);
    return;
  }
  trainer.publish_tries = 0;
  trainer.published = e.v;
  if (state.versions().IsPublished(e.v)) return;  // again, by a new process of the trainer
  out.Record(record::Publish{e.v, trainer.digest});
  ExpireOld();
  PlanEvaluation();
}

void Controller::Impl::On(const event::RecoveryCopied& e) {
  if (!health.IsCurrent(e.worker) || !trainer.copying || e.worker != trainer.ref || e.step != state.step()) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kRecoveryCopy, 0});
  trainer.copying = false;
  recovery = e.step;
}

}  // namespace tidepool::scheduler
