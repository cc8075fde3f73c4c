// From a job's config to what the trainer is told.

#include "core/train/trainer.h"

namespace tidepool::train {

namespace {

// What each kind of job adds. `job` has the sections that all kinds share.
struct KindOptions {
  const JobConfig& job;
  TrainerOptions& o;

  Status operator()(const RlJob& rl) const {
    TP_ASSIGN_OR_RETURN(o.loss, algorithms::Resolve(rl.algorithm, job.rollout.max_new_tokens));
    o.temperature = job.rollout.temperature;
    if (!(o.temperature > 0)) {
      return InvalidArgument("rollout.temperature is " + std::to_string(o.temperature) +
                             "; training needs a value above 0 (greedy samples have no gradient)");
    }
    o.shaping = {job.reward.shaping, job.rollout.max_new_tokens, rl.algorithm.overlong_buffer_tokens,
                 rl.algorithm.overlong_factor};
    for (const RewardFunction& f : job.reward.functions) o.component_weights.push_back(f.weight);
    if (rl.algorithm.critic.learning_rate) o.critic_schedule.peak = *rl.algorithm.critic.learning_rate;
    o.critic_warmup_steps = rl.algorithm.critic.warmup_steps;
    return OkStatus();
  }
  Status operator()(const SftJob&) const { return OkStatus(); }
  Status operator()(const DpoJob& dpo) const {
    const PreferenceConfig& p = dpo.preference;
    o.preference = {
        .ipo = p.loss == PreferenceLoss::kIpo, .beta = p.beta, .label_smoothing = p.label_smoothing};
    o.length_average = p.length_average;
    return OkStatus();
  }
  Status operator()(const RewardModelJob& r) const {
    o.margin = r.reward_model.margin;
    o.centre = r.reward_model.centre;
    return OkStatus();
  }
  Status operator()(const DistillJob& distill) const {
    const DistillConfig& d = distill.distill;
    o.distill = {.divergence = d.divergence == DistillDivergence::kGkd ? algorithms::Divergence::kJsd
                                                                       : algorithms::Divergence::kMixed,
                 .weight = d.divergence == DistillDivergence::kForward   ? 1
                           : d.divergence == DistillDivergence::kReverse ? 0
                                                                         : d.weight,
                 .temperature = d.temperature};
    return OkStatus();
  }
};

}  // namespace

AdamWOptions OptimizerOf(const TrainConfig& t) {
  return {.beta1 = t.beta1,
          .beta2 = t.beta2,
          .eps = t.adam_eps,
          .weight_decay = t.weight_decay,
          .max_grad_norm = t.max_grad_norm};
}
ScheduleOptions ScheduleOf(const TrainConfig& t) {
  return {.kind = t.schedule,
          .peak = t.learning_rate,
          .min_ratio = t.min_learning_rate_ratio,
          .warmup_steps = t.warmup_steps,
          .steps = t.steps};
}

StatusOr<TrainerOptions> OptionsFromJob(const JobConfig& job) {
  TrainerOptions o;
  const TrainConfig& t = job.train;
  o.objective = job.kind();
  o.optimizer = OptimizerOf(t);
  o.schedule = ScheduleOf(t);
  o.critic_schedule = o.schedule;
  o.epochs = t.epochs;
  o.minibatches = t.minibatches;
  o.micro_batch_tokens = t.micro_batch_tokens;
  o.recompute = t.recompute;
  o.clean_records = job.rollout.kv_on_update == KvOnUpdate::kRecompute;
  o.router_aux_coef = t.router_aux_coef;
  o.share_gradients = t.zero >= 2;
  o.share_weights = t.zero >= 3;
  o.sum_each_micro_batch = job.deterministic;
  // No more are expected at a time.
  if (job.rl() != nullptr && t.early_columns) o.early_rows = t.groups_per_step * job.rollout.group_size;
  TP_RETURN_IF_ERROR(std::visit(KindOptions{job, o}, job.job));
  return o;
}

NeededCompanions Needed(const TrainerOptions& o) {
  const bool policy = o.objective == JobKind::kRl;
  return {.reference = o.objective == JobKind::kDpo || (policy && o.loss.needs_reference()),
          .teacher = o.objective == JobKind::kDistill || (policy && o.loss.needs_teacher()),
          .critic = policy && o.loss.needs_critic()};
}

}  // namespace tidepool::train
