// What is kept and how a run ends: checkpoints, stop, final model.

#include <algorithm>

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {

bool Controller::Impl::CheckpointDue() const {
  const bool must = StepsDone() || shutdown.requested();
  return checkpoints.Due(state.step(), must, state.checkpoints(), now);
}

void Controller::Impl::AdvanceCheckpoint() {
  if (finished || writing || trainer.phase != StatePhase::kReady || trainer.training || !CheckpointDue())
    return;
  if (shutdown.requested() && !shutdown.MayCheckpoint(now)) return;
  writing = WritingCheckpoint{state.next_checkpoint(), state.step(), state.next_lsn()};
  out.Record(record::CheckpointBegin{writing->ckpt, writing->step});
  out.Do(command::WriteCheckpoint{trainer.leader, writing->ckpt, writing->step, state.version()});
  waits.Begin({WaitKind::kCheckpoint, 0},
              {trainer.leader, now, now + FromSeconds(options.config.cluster.start_timeout_s),
               "checkpoint " + std::to_string(writing->ckpt)});
}

void Controller::Impl::On(const event::CheckpointWritten& e) {
  if (!writing || e.ckpt != writing->ckpt) {
    Refuse();
    return;
  }
  if (e.weights_digest != 0 && trainer.digest != 0 && e.weights_digest != trainer.digest) {
    On(event::CheckpointFailed{e.ckpt, "its weights differ from the trainer's"});
    return;
  }
  Moved();
  waits.End({WaitKind::kCheckpoint, 0});
  const WritingCheckpoint w = *writing;
  writing.reset();
  checkpoints.Written();
  out.Record(record::CheckpointCommit{w.ckpt, w.step, w.cut, e.manifest_digest, trainer.digest});
  for (const int64_t id : checkpoints.ToDelete(state.checkpoints())) {
    const StepNumber step = state.checkpoints().at(id).step;
    out.Record(record::CheckpointDelete{id});
    out.Do(command::DeleteCheckpoint{id, step});
  }
  // A later fold that comes to another state here is refused: what it would decide from was not what
  // happened.
  out.Record(record::Snapshot{state.Digest()});
  // Whatever was trained up to here will not be needed again; its payload stays on disk.
  out.Expect(tokens_kept.size());
  for (const SampleId& tid : tokens_kept.SortedKeys()) {
    const Group* g = state.ledger().Find(KeyOf(tid));
    if (g != nullptr && (g->phase != GroupPhase::kTrained || g->step > w.step)) continue;
    out.Do(command::DiscardTokens{tid, g == nullptr ? 0 : g->samples[static_cast<size_t>(tid.sample)].att});
    tokens_kept.erase(tid);
  }
}

void Controller::Impl::On(const event::CheckpointFailed& e) {
  if (!writing || e.ckpt != writing->ckpt) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kCheckpoint, 0});
  const StepNumber step = writing->step;
  writing.reset();
  out.Warn("checkpoint=" + std::to_string(e.ckpt) + " step=" + std::to_string(step.value) +
           " event=write_failed why=\"" + e.why + "\"");
  if (checkpoints.Failed(step, now)) {
    Fail("checkpoint", "controller", {},
         std::to_string(checkpoints.failures()) + " checkpoints in a row could not be written: " + e.why);
  }
}

// --- the end

void Controller::Impl::DropLeftovers() {
  std::vector<GroupKey> keys;
  for (const auto& [key, g] : state.ledger().groups()) {
    if (g.phase != GroupPhase::kTrained && g.phase != GroupPhase::kLeased) keys.push_back(key);
  }
  for (const GroupKey& key : keys) DropGroup(key, DropReason::kOperator);
}

void Controller::Impl::AdvanceEnd() {
  if (finished) return;
  if (shutdown.requested()) {
    const bool step_over = !trainer.training || !shutdown.MayFinishStep(now);
    if (!step_over) return;
    const bool state_good = trainer.phase == StatePhase::kReady && !trainer.training;
    const bool saved = CheckpointPolicy::NewestStep(state.checkpoints()) == state.step();
    if (state_good && !saved && shutdown.MayCheckpoint(now)) return;  // AdvanceCheckpoint is at it
    if (trainer.training) AbortStep("stopped before its end");
    const bool all_steps = StepsDone();
    const bool evaluated =
        eval_questions <= 0 || !options.config.eval.after_train || state.evals().contains(state.step());
    if (all_steps && evaluated && state_good && shutdown.MayCheckpoint(now)) {
      AdvanceFinal();  // there is time for the rest of the end
      return;
    }
    if (all_steps) DropLeftovers();
    Finish(0, shutdown.why() + (saved ? "" : "; the newest checkpoint is older than the last step"));
    return;
  }
  if (StepsDone()) AdvanceFinal();
}

bool Controller::Impl::TargetReached() const {
  const double target = options.config.eval.stop_at_accuracy;
  return target > 0 && std::ranges::any_of(state.evals(), [&](const auto& item) {
           const record::EvalResult& r = item.second;
           return r.total > 0 && static_cast<double>(r.correct) >= target * static_cast<double>(r.total);
         });
}

bool Controller::Impl::StepsDone() const {
  return state.step().value >= options.config.train.steps || TargetReached();
}

// All steps are done: last evaluation, last checkpoint, the model for others, the end.
void Controller::Impl::AdvanceFinal() {
  if (!TrainerIdle() || evaluation.Pending()) return;
  if (trainer.published != state.version() || CheckpointDue()) return;
  if (options.config.checkpoint.save_final && !final_saved) {
    final_saving = true;
    out.Do(command::SaveFinal{trainer.leader});
    waits.Begin({WaitKind::kFinal, 0},
                {trainer.leader, now, now + FromSeconds(options.config.cluster.start_timeout_s), ""});
    return;
  }
  DropLeftovers();
  Finish(0, TargetReached() ? "eval.stop_at_accuracy reached" : "all steps done", /*complete=*/true);
}

void Controller::Impl::On(const event::FinalSaved& e) {
  if (!final_saving) {
    Refuse();
    return;
  }
  Moved();
  waits.End({WaitKind::kFinal, 0});
  final_saving = false;
  if (!e.error.empty()) {
    Fail("save_final", "controller", {}, "final/ could not be written: " + e.error);
    return;
  }
  final_saved = true;
}

}  // namespace tidepool::scheduler
