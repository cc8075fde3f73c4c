#include "scheduler/best_checkpoint.h"
#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

// Group ids of evaluation questions: beyond those of groups, equal for nothing else.
constexpr int64_t kEvalGroups = int64_t{1} << 48;

GroupId EvalGroup(const SampleId& tid) { return {kEvalGroups + (int64_t{tid.issue} << 24) + tid.ordinal}; }

}  // namespace

Evaluations::Evaluations(Machines& all) : Machine(all), evaluation_(facts_.eval_questions) {}

void Evaluations::Graded(const event::Graded& e) {
  evaluation_.Graded(e.tid, e.reward, e.rewards);
  out_.Do(command::DiscardTokens{e.tid, e.att});
}

void Evaluations::Lost(const SampleId& tid, int32_t att, const std::string& why) {
  evaluation_.Lost(tid, why);
  out_.Do(command::DiscardTokens{tid, att});
}

void Evaluations::TokensLost(const event::TokensLost& e) {
  constexpr int32_t kMost = 5;  // of one question
  if (!evaluation_.Expects(e.tid) || evaluation_.attempt(e.tid) != e.att) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  all_.samples.Withdraw(e.tid);
  if (e.data || e.att - evaluation_.attempt() + 1 >= kMost) {
    out_.Warn("data_invalid",
              "the answer " + ToString(e.tid) + " is left out of its evaluation, its tokens " +
                  (e.data ? "are wrong: " : "were lost " + std::to_string(kMost) + " times: ") + e.why,
              {{"tid", ToString(e.tid)}});
    return Lost(e.tid, e.att, e.why);
  }
  out_.Warn("tokens_lost", "question " + ToString(e.tid) + " is asked again, its tokens are lost: " + e.why,
            {{"tid", ToString(e.tid)}});
  out_.Do(command::DiscardTokens{e.tid, e.att});
  evaluation_.AskAgain(e.tid);
  Ask(e.tid);
}

void Evaluations::Ask(const SampleId& tid) {
  const Request r{.tid = tid,
                  .gid = EvalGroup(tid),
                  .att = evaluation_.attempt(tid),
                  .prompt_len = 0,
                  .max_new = facts_.max_new,
                  .generated = 0,
                  .only = evaluation_.active()->v,
                  .v_min = {},
                  .v_max = {},
                  .on = {},
                  .home = {},
                  .probe = false,
                  .errors = 0};
  if (facts_.environment) {
    all_.samples.BeginEpisode(r);
  } else {
    all_.rollouts.Add(r);
  }
}

void Evaluations::Plan() {
  const EvalOptions& c = options_.eval;
  const StepNumber step = state_.step();
  if (facts_.eval_questions <= 0 || !all_.life.running() || state_.evals().contains(step) ||
      evaluation_.Planned(step))
    return;
  const bool due = (c.before_train && step.value == 0) || (c.after_train && facts_.StepsDone()) ||
                   (c.every_steps > 0 && step.value > 0 && step.value % c.every_steps == 0);
  if (due) evaluation_.Plan({step, state_.version()});
}

void Evaluations::Cancel(const std::string& why) {
  if (!evaluation_.Pending()) return;
  out_.Note("evaluation_cancelled", "the evaluation is called off: " + why);
  for (const SampleId& tid : std::set(evaluation_.left())) {
    if (all_.rollouts.requests().Find(tid) == nullptr)
      out_.Do(command::DiscardTokens{tid, evaluation_.attempt(tid)});
    all_.samples.Withdraw(tid);
    all_.rollouts.ForgetGroup(EvalGroup(tid));
  }
  evaluation_.Cancel();
}

void Evaluations::Advance() {
  if (all_.life.over()) return;
  if (evaluation_.Finished()) {
    const record::EvalResult r = evaluation_.Take();
    const std::string step = std::to_string(r.step.value);
    if (r.lost > 0) {
      out_.Warn("evaluation_incomplete",
                "the evaluation of step " + step + " lacks " + std::to_string(r.lost) + " of " +
                    std::to_string(r.total + r.lost) +
                    " answers, which could not be graded; the last one: " + r.why_lost,
                {{"step", step}, {"lost", std::to_string(r.lost)}});
    }
    out_.Record(r);
    out_.Do(command::EvalReport{r});
    if (const std::string& metric = options_.checkpoint.keep_best;
        !metric.empty() && !OfTrainer(metric) && !EvalValue(r, metric)) {
      out_.Warn("no_best",
                "the evaluation of step " + step + " has no " + metric + " to tell the best checkpoint by" +
                    (r.lost > r.total ? ": most of its answers are lost" : ""),
                {{"step", step}});
    }
    all_.checkpoints.KeepBest();
  }
  // Only older weights than the newest can be gone.
  if (const auto& job = evaluation_.active();
      job && job->v != state_.version() && !all_.rollouts.Serves(job->v))
    Cancel("the last worker with version " + ToString(job->v) + " is gone");
  if (evaluation_.active() || evaluation_.waiting().empty()) return;
  if (!evaluation_.Begin(state_.next_lsn())) return;
  for (const SampleId& tid : std::set(evaluation_.left())) Ask(tid);
}

}  // namespace tidepool::scheduler
