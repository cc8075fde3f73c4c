// From a job's config to what the trainer is told.

#include "core/train/trainer.h"

namespace tidepool::train {

StatusOr<TrainerOptions> OptionsFromJob(const JobConfig& job) {
  TrainerOptions o;
  switch (job.job) {
    case JobKind::kRl:
      o.objective = Objective::kPolicy;
      break;
    case JobKind::kSft:
      o.objective = Objective::kSupervised;
      break;
    case JobKind::kDpo:
      o.objective = Objective::kPreference;
      break;
    case JobKind::kRewardModel:
      o.objective = Objective::kReward;
      break;
    case JobKind::kDistill:
      o.objective = Objective::kDistill;
      break;
  }
  if (o.objective == Objective::kPolicy) {
    TP_ASSIGN_OR_RETURN(o.loss, algorithms::Resolve(job.algorithm, job.rollout.max_new_tokens));
    o.temperature = job.rollout.temperature;
    if (!(o.temperature > 0)) {
      return InvalidArgument("rollout.temperature is " + std::to_string(o.temperature) +
                             "; training needs a value above 0 (greedy samples have no gradient)");
    }
  }
  o.shaping = ShapingFromJob(job);
  for (const RewardFunction& f : job.reward.functions) o.component_weights.push_back(f.weight);
  o.preference = {.ipo = job.preference.loss == PreferenceLoss::kIpo,
                  .beta = job.preference.beta,
                  .label_smoothing = job.preference.label_smoothing};
  o.length_average = job.preference.length_average;
  o.margin = job.reward_model.margin;
  o.centre = job.reward_model.centre;
  const DistillConfig& d = job.distill;
  o.distill = {.divergence = d.divergence == DistillDivergence::kGkd ? algorithms::Divergence::kJsd
                                                                     : algorithms::Divergence::kMixed,
               .weight = d.divergence == DistillDivergence::kForward   ? 1
                         : d.divergence == DistillDivergence::kReverse ? 0
                                                                       : d.weight,
               .temperature = d.temperature};
  const TrainConfig& t = job.train;
  o.optimizer = {.beta1 = t.beta1,
                 .beta2 = t.beta2,
                 .eps = t.adam_eps,
                 .weight_decay = t.weight_decay,
                 .max_grad_norm = t.max_grad_norm};
  o.schedule.kind = t.schedule;
  o.schedule.peak = t.learning_rate;
  o.schedule.min_ratio = t.min_learning_rate_ratio;
  o.schedule.warmup_steps = t.warmup_steps;
  o.schedule.steps = t.steps;
  o.critic_schedule = o.schedule;
  if (job.algorithm.critic.learning_rate) o.critic_schedule.peak = *job.algorithm.critic.learning_rate;
  o.critic_warmup_steps = job.algorithm.critic.warmup_steps;
  o.epochs = t.epochs;
  o.minibatches = t.minibatches;
  o.micro_batch_tokens = t.micro_batch_tokens;
  o.recompute = t.recompute;
  o.router_aux_coef = t.router_aux_coef;
  return o;
}

NeededCompanions Needed(const TrainerOptions& o) {
  const bool policy = o.objective == Objective::kPolicy;
  return {.reference = o.objective == Objective::kPreference || (policy && o.loss.needs_reference()),
          .teacher = o.objective == Objective::kDistill || (policy && o.loss.needs_teacher()),
          .critic = policy && o.loss.needs_critic()};
}

}  // namespace tidepool::train
