#include "scheduler/machines/machines.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace tidepool::scheduler {

Facts::Facts(const ControllerOptions& o, const RunState& run, const TimePoint& time)
    : options(o),
      layout(FleetLayout::Even(o.fleet.slots, o.fleet.slots_per_worker, o.fleet.gangs)),
      placement(o.placement == nullptr ? PlacementOf(o.fleet.placement, o.fleet.policy) : *o.placement),
      rl(o.job == JobKind::kRl),
      eval_questions(o.eval.questions()),
      environment(rl && o.environment.used && !o.environment.in_rollout),
      needs_rollout(rl || eval_questions > 0),
      needs_reward((rl || eval_questions > 0) && !environment),
      max_new(o.rollout.max_new_tokens),
      state(run),
      now(time) {}

bool Facts::MayServe(const Version& v) const {
  const VersionGraph& versions = state.versions();
  return v.valid() && versions.Lag(v, state.version()) <= state.ledger().rules().max_lag_versions &&
         versions.IsAncestor(v, state.version());
}

namespace {

// The first evaluation on record that reaches the target, whatever the answers that it lost were; null: none.
const record::EvalResult* FirstThatReaches(double target,
                                           const std::map<StepNumber, record::EvalResult>& evals) {
  if (target <= 0) return nullptr;
  for (const auto& [step, r] : evals) {
    if (r.total > 0 && static_cast<double>(r.correct) >= target * static_cast<double>(r.total + r.lost))
      return &r;
  }
  return nullptr;
}

}  // namespace

bool Facts::TargetReached() const {
  return FirstThatReaches(options.eval.stop_at_accuracy, state.evals()) != nullptr;
}

std::string Facts::WhyStepsDone() const {
  const record::EvalResult* r = FirstThatReaches(options.eval.stop_at_accuracy, state.evals());
  if (r == nullptr) return "all steps done";
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(),
                "reached %.1f %% held-out accuracy at step %lld, as asked (eval.stop_at_accuracy: %g)",
                100.0 * static_cast<double>(r->correct) / static_cast<double>(r->total),
                static_cast<long long>(r->step.value), options.eval.stop_at_accuracy);
  return text.data();
}

bool Facts::StepsDone() const { return state.step().value >= options.steps || TargetReached(); }

Machine::Machine(Machines& all)
    : all_(all),
      facts_(all.facts),
      options_(all.facts.options),
      state_(all.state),
      now_(all.now),
      fleet_(all.fleet),
      out_(all.out),
      waits_(all.waits),
      cost_(all.cost) {}

Machines::Machines(const ControllerOptions& options)
    : facts(options, state, now),
      life(*this),
      workers(*this),
      slots(*this),
      rollouts(*this),
      samples(*this),
      batches(*this),
      trainer(*this),
      steps(*this),
      previews(*this),
      checkpoints(*this),
      evaluations(*this) {}

}  // namespace tidepool::scheduler
