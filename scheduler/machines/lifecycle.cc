#include <algorithm>
#include <cmath>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

Lifecycle::Lifecycle(Machines& all) : Machine(all), watchdog_(FromSeconds(options_.fleet.stall_timeout_s)) {}

void Lifecycle::On(const event::Started&) {
  if (begun()) return;
  phase_ = RunPhase::kRunning;
  Moved();
  const ControllerOptions& c = options_;
  if (state_.end_run() && state_.end_run()->finished == 1 && facts_.StepsDone()) {
    out_.Do(command::Finish{0, "already finished", true});
    phase_ = RunPhase::kOver;
    return;
  }
  all_.slots.Begin();
  all_.workers.Begin();
  const record::RunTerms terms{
      .run_id = c.run_id,
      .job = Name(c.job),
      .digest = c.config_digest,
      .groups_per_step = c.batch.groups_per_step,
      .group_size = c.batch.group_size,
      .max_lag_versions = c.batch.max_lag_versions,
      .on_stale = Name(c.batch.on_stale),
      .oversample = c.batch.oversample,
      .min_step_batch_fraction = c.batch.min_step_batch_fraction,
      .max_reissues = c.batch.max_reissues,
      .steps = c.steps,
      .data_size = c.data_rows,
      .slots = c.fleet.slots,
      .recovery_steps = c.checkpoint.recovery_every_steps,
      .deterministic = c.deterministic ? 1 : 0,
      .oversample_mode = Name(c.batch.oversample_mode),
      .pin_version = c.rollout.pin_version ? 1 : 0,
      .rollout_floor = facts_.needs_rollout && facts_.placement.keeps_floor ? c.fleet.rollout_floor : 0,
      .stall_ms = static_cast<int64_t>(c.fleet.stall_timeout_s * 1e3),
      .checkpoint_steps = c.checkpoint.every_steps,
      .row_digests = 1,
      .min_slots = all_.workers.min_slots(),
      .redundancy = c.batch.redundancy};
  if (state_.empty()) {
    out_.Record(record::Config(terms));
  } else {
    // Also when nothing changed: it tells a reader of the journal that the run goes on after END_RUN.
    if (state_.config()->digest != terms.digest || state_.end_run()) out_.Record(record::Config(terms));
    Resume();
  }
  all_.samples.Start();
  all_.workers.Start();
  all_.trainer.Plan(/*restore=*/state_.ever_checkpointed());
}

void Lifecycle::Resume() {
  all_.trainer.CloseOpenStep();
  all_.slots.Recover(/*keep_holders=*/options_.fleet.reattach_grace_s > 0);
  all_.workers.Resume();
  all_.slots.LoseAbandoned();
  all_.samples.Resume();
  if (!all_.workers.SomeReattach()) all_.samples.ResumeRows();
}

void Lifecycle::On(const event::StopRequested& e) {
  if (e.now || stopping()) {
    Fail("stopped", "operator", e.why.empty() ? "stopped at once" : e.why);
    return;
  }
  phase_ = RunPhase::kStopping;
  shutdown_ = Shutdown(e.why.empty() ? "stop requested" : e.why, now_);
  step_to_save_ = state_.step();
  all_.evaluations.Cancel("the run is being stopped");
  all_.steps.EndEvaluation();
}

void Lifecycle::On(const event::StorageFailed& e) { Fail("storage", "controller", e.what); }

bool Lifecycle::Refuse() {
  ++refused_;
  return false;
}

void Lifecycle::Fail(const std::string& kind, const std::string& actor, const std::string& what) {
  EndBy({kind, actor, {}, what});
}

void Lifecycle::Fail(const std::string& kind, const WorkerRef& worker, const std::string& what,
                     StepNumber in) {
  EndBy({kind, options_.NameOf(worker.worker), worker.inc, what, worker.worker}, in);
}

void Lifecycle::EndBy(const record::Fault& fault, StepNumber in) {
  if (over()) return;
  out_.Record(fault);
  const int64_t step =
      in.valid() ? in.value : std::max(state_.step(), step_to_save_).value + (all_.steps.open() ? 1 : 0);
  End({3, "fault=" + fault.kind + " actor=" + fault.actor + " step=" + std::to_string(step) + ": " +
              fault.what});
}

void Lifecycle::End(command::Finish finish) {
  if (over()) return;
  all_.slots.Abandon("the run ends");
  out_.Record(record::EndRun{finish.code, finish.why, finish.complete ? 1 : 0});
  out_.Do(std::move(finish));
  phase_ = RunPhase::kOver;
}

void Lifecycle::CheckDeadlines() {
  for (const Waits::Key& key : waits_.Expired(now_)) {
    if (over()) return;
    WaitIsOver(key);
  }
  if (over() || !watchdog_.Stalled(waits_, now_)) return;
  // A turn of an episode, a grading, and a worker that starts have deadlines of their own.
  if (facts_.environment && now_ < all_.samples.episodes().Horizon(now_)) return;
  if (now_ < all_.samples.grading().Horizon(now_)) return;
  for (const auto& [id, w] : fleet_.workers) {
    const Life life = w.vitals().life;
    if (life == Life::kStarting || life == Life::kRestarting) return;
  }
  const std::string line = WhoIsWaitedFor();
  Fail("no_progress", "controller",
       "nothing has moved for " + std::to_string(std::llround(Seconds(now_ - watchdog_.last()))) +
           " s, the limit is cluster.stall_timeout_s (" +
           std::to_string(all_.rollouts.requests().in_flight()) + " chunks in flight); " +
           (line.empty() ? "nobody is waited for" : line));
}

void Lifecycle::WaitIsOver(const Waits::Key& key) {
  const auto* found = waits_.Find(key);
  // Ended with another one that was over, or begun anew by it.
  if (found == nullptr || found->deadline > now_) return;
  const Waits::Wait w = *found;
  waits_.End(key);
  const std::string why =
      std::string("deadline of ") + Name(key.kind) + " passed" + (w.what.empty() ? "" : " (" + w.what + ")");
  switch (key.kind) {
    case WaitKind::kCheckpoint:
      all_.checkpoints.TimedOut(why);
      return;
    case WaitKind::kVerify:
    case WaitKind::kFinal:
    case WaitKind::kRow:
    case WaitKind::kPayload:
      Fail("storage", "controller", why);
      return;
    case WaitKind::kTransition:
      // A worker that is slow to drain is not dead: its transition is called off. One that does not answer to
      // that is.
      if (all_.slots.DrainTimedOut({key.id}, why)) {
        out_.Warn("rolled_back", "slot " + std::to_string(key.id) + " keeps its role: " + why,
                  {{"slot", std::to_string(key.id)}});
        return;
      }
      all_.workers.Replace(w.who, why);
      return;
    case WaitKind::kEngine:
      all_.workers.ReplaceEngine(w.who, w.what);
      return;
    default:
      all_.workers.Replace(w.who, why);
  }
}

// "op=train waiting_for=device-0/inc1 ...; rows_being_read=3; device-2=restarting".
std::string Lifecycle::WhoIsWaitedFor() const {
  std::string line = waits_.Describe(now_, [this](const WorkerRef& who) { return options_.NameOf(who); });
  const auto add = [&](const std::string& what) { line += (line.empty() ? "" : "; ") + what; };
  if (const std::string samples = all_.samples.Describe(); !samples.empty()) add(samples);
  for (const auto& [id, w] : fleet_.workers) {
    if (const Life life = w.vitals().life; life != Life::kHealthy)
      add(options_.NameOf(id) + "=" + Name(life));
  }
  return line;
}

bool Lifecycle::WantsTrainerBack() const {
  const int64_t newest = CheckpointSchedule::NewestStep(state_.checkpoints()).value;
  // Before any step nothing can be lost.
  return !all_.trainer.ready() && state_.step().value > std::max<int64_t>(newest, 0) && MayCheckpoint();
}

void Lifecycle::Advance() {
  if (over()) return;
  if (stopping()) {
    step_to_save_ = std::max(step_to_save_, state_.step());
    const bool step_over = !all_.steps.open() || !shutdown_.MayFinishStep(now_);
    if (!step_over) return;
    const bool state_good = all_.trainer.ready() && !all_.steps.open();
    const bool saved = CheckpointSchedule::NewestStep(state_.checkpoints()) == state_.step();
    if (WantsTrainerBack()) return;
    if (state_good && !saved && MayCheckpoint()) return;  // Checkpoints::Advance is at it
    const bool all_steps = facts_.StepsDone();
    const bool evaluated =
        facts_.eval_questions <= 0 || !options_.eval.after_train || state_.evals().contains(state_.step());
    if (all_steps && evaluated && state_good && MayCheckpoint()) {
      EndWhenComplete();  // there is time for the rest of the end
      return;
    }
    EndStopped();
    return;
  }
  if (facts_.StepsDone()) EndWhenComplete();
}

// Whoever asks for a stop takes exit code 0 for a promise that every step is kept.
void Lifecycle::EndStopped() {
  const std::string waited_for = WhoIsWaitedFor();
  const bool in_step = all_.steps.open().has_value();
  if (in_step) all_.steps.Abort("stopped before its end");
  if (facts_.StepsDone()) all_.samples.DropLeftovers();
  const int64_t newest = std::max<int64_t>(CheckpointSchedule::NewestStep(state_.checkpoints()).value, 0);
  const int64_t lost = step_to_save_.value - newest;  // before any step nothing is lost
  if (lost <= 0) {
    End({0, shutdown_.why()});
    return;
  }
  std::string why = all_.checkpoints.trouble();
  if (in_step || why.empty()) {
    why = std::string(in_step ? "the step that the trainer was at did not end" : "it was not written") +
          " in time" + (waited_for.empty() ? "" : " (" + waited_for + ")");
  }
  Fail("not_saved", "controller",
       shutdown_.why() + ", and no new checkpoint was made, because " + why + "; a resume begins at step " +
           std::to_string(newest) + " and trains " + std::to_string(lost) + " steps again");
}

// All steps are done: last evaluation, last checkpoint, the model for others, the end.
void Lifecycle::EndWhenComplete() {
  if (!all_.trainer.Idle() || all_.evaluations.current().Pending()) return;
  if (all_.trainer.published() != state_.version() || all_.checkpoints.Due()) return;
  if (options_.checkpoint.save_final && !all_.checkpoints.final_saved()) {
    all_.checkpoints.SaveFinal();
    return;
  }
  all_.samples.DropLeftovers();
  End({0, facts_.WhyStepsDone(), /*complete=*/true});
}

}  // namespace tidepool::scheduler
