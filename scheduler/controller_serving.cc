// Who serves which weights, and how good they are on held-out questions.

#include <algorithm>

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {
namespace {

// Group ids of evaluation questions: beyond those of groups, equal for nothing else.
constexpr int64_t kEvalGroups = int64_t{1} << 48;

GroupId EvalGroup(const SampleId& tid) { return {kEvalGroups + (int64_t{tid.issue} << 24) + tid.ordinal}; }

}  // namespace

void Controller::Impl::RollWeights() {
  if (finished) return;
  const Version v = state.version();
  const bool available =
      trainer.phase == StatePhase::kReady && trainer.published == v && state.versions().IsPublished(v);
  weights.SetTarget(v, state.WeightsDigest(v), available ? trainer.leader : WorkerRef{});
  const auto serving = [&](const WeightRoll::Place& p) {
    const auto* e = dispatcher.FindEngine(p.ref.worker);
    return e != nullptr && e->open() && !e->in_flight.empty() && MayServe(e->version);
  };
  const auto hold = [&](const WeightRoll::Place& p) {
    const auto* e = dispatcher.FindEngine(p.ref.worker);
    if (e == nullptr || !pool.Holds(e->slot, Role::kRollout)) return true;
    const bool has_it = p.loaded == e->version;  // else overwritten by a load that failed or came too late
    // Pinned samples end on the weights that they began with.
    if (has_it && options.config.rollout.pin_version && MayServe(e->version) &&
        dispatcher.NeededFor(p.ref.worker))
      return true;
    if (has_it && evaluation.active() && evaluation.active()->v != v && e->version == evaluation.active()->v)
      return true;
    const auto ghosts = ghosts_until.find(p.ref.worker);
    if (ghosts == ghosts_until.end()) return false;
    if (now < ghosts->second && dispatcher.HasGhosts(p.ref.worker)) return true;
    ghosts_until.erase(ghosts);
    return false;
  };
  for (command::Load& load :
       weights.Assign(serving, hold, [this](const WorkerRef& ref) { return HasState(ref); })) {
    dispatcher.SetBar(load.worker.worker, Dispatcher::Bar::kLoading, true);
    verified.erase(load.worker.worker);  // its memory is torn until the digest is compared
    if (options.config.rollout.pin_version) DropPinnedOn(load.worker.worker);
    waits.Begin(
        {WaitKind::kLoad, load.worker.worker.value},
        {load.worker, now, now + FromSeconds(options.config.cluster.start_timeout_s), ToString(load.v)});
    out.Do(std::move(load));
  }
}

void Controller::Impl::On(const event::Loaded& e) {
  if (!health.IsCurrent(e.worker)) {
    Refuse();
    return;
  }
  const WeightRoll::Outcome outcome = weights.Loaded(e);
  if (outcome == WeightRoll::Outcome::kRefused) {
    Refuse();
    return;
  }
  waits.End({WaitKind::kLoad, e.worker.worker.value});
  Moved();
  switch (outcome) {
    case WeightRoll::Outcome::kAdmit:
      verified[e.worker.worker] = e.v;
      out.Record(record::Loaded{e.worker, e.v, e.digest});
      out.Record(record::Admit{e.worker, e.v});
      out.Do(command::Admit{e.worker, e.v});
      dispatcher.Admit(e.worker.worker, e.v);
      health.Admitted(e.worker.worker);
      break;
    case WeightRoll::Outcome::kRetry:
      out.Warn("worker=" + ToString(e.worker) + " event=load_again version=" + ToString(e.v) +
               (e.error.empty() ? "" : " why=\"" + e.error + "\""));
      break;
    default:
      Replace(e.worker, e.error.empty() ? "its weights differ from the published ones" : e.error);
  }
}

// --- evaluation

void Controller::Impl::PlanEvaluation() {
  const EvalConfig& c = options.config.eval;
  const StepNumber step = state.step();
  if (eval_questions <= 0 || shutdown.requested() || state.evals().contains(step) || evaluation.Planned(step))
    return;
  const bool due = (c.before_train && step.value == 0) || (c.after_train && StepsDone()) ||
                   (c.every_steps > 0 && step.value > 0 && step.value % c.every_steps == 0);
  if (due) evaluation.Plan({step, state.version()});
}

void Controller::Impl::CancelEvaluation(const std::string& why) {
  if (!evaluation.Pending()) return;
  out.Warn("event=evaluation_cancelled why=\"" + why + "\"");
  for (const SampleId& tid : std::set(evaluation.left())) {
    if (dispatcher.Find(tid) == nullptr) out.Do(command::DiscardTokens{tid, evaluation.attempt()});
    WithdrawRequest(tid);
    GroupDone(EvalGroup(tid));
  }
  evaluation.Cancel();
}

void Controller::Impl::AdvanceEvaluation() {
  if (finished) return;
  if (evaluation.Finished()) {
    const Evaluation::Outcome o = evaluation.Take();
    if (o.lost > 0)
      out.Warn("event=evaluation_incomplete step=" + std::to_string(o.job.step.value) +
               " lost=" + std::to_string(o.lost));
    out.Record(record::EvalResult{o.job.step, o.job.v, o.correct, o.total});
    out.Do(command::EvalReport{o.job.step, o.job.v, o.correct, o.total});
  }
  const auto gone = [&](const Version& v) {  // only older weights than the newest can be gone
    if (v == state.version()) return false;
    return std::none_of(dispatcher.engines().begin(), dispatcher.engines().end(),
                        [&](const auto& item) { return item.second.version == v; });
  };
  if (evaluation.active() && gone(evaluation.active()->v)) {
    CancelEvaluation("the last worker with version " + ToString(evaluation.active()->v) + " is gone");
  }
  if (evaluation.active() || evaluation.waiting().empty()) return;
  const auto job = evaluation.Begin();
  for (const SampleId& tid : evaluation.left()) {
    const Request r{.tid = tid,
                    .gid = EvalGroup(tid),
                    .att = evaluation.attempt(),
                    .prompt_len = 0,
                    .max_new = max_new,
                    .generated = 0,
                    .only = job->v,
                    .v_min = {},
                    .v_max = {},
                    .on = {},
                    .home = {},
                    .probe = false,
                    .errors = 0};
    if (environment) {
      BeginEpisode(r);
    } else {
      dispatcher.Add(r);
    }
  }
}

}  // namespace tidepool::scheduler
