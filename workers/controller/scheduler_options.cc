#include "workers/controller/scheduler_options.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "core/algorithms/registry.h"
#include "core/base/group_condition.h"
#include "core/base/limited_call.h"
#include "core/base/plugin_label.h"
#include "core/config/training_slots.h"
#include "scheduler/policies/policy_plugin.h"

namespace tidepool::workers {
namespace {

// Supervised learning is evaluated by generation only where that is asked for: it needs an engine and a
// grader.
bool Evaluates(const JobConfig& c) {
  return (AnswersHeldOut(c) && c.eval.every_steps > 0) ||
         (c.rl() != nullptr && (c.eval.before_train || c.eval.after_train));
}

// A step needs something of its rows beside the loss: further models, or log-probs before the first update.
bool NeedsColumns(const JobConfig& c) {
  if (c.rl() == nullptr || c.model.is_policy()) return false;
  const auto a = algorithms::Resolve(c.rl()->algorithm, c.rollout.max_new_tokens);
  return a.ok() && (FurtherModels(c) > 0 || a->needs_old_first() || c.train.epochs * c.train.minibatches > 1);
}

// Reward functions judge a sample one after the other; models are loaded at the same time.
double SecondsOfRewards(const RewardConfig& c) {
  double sum = c.by_model() ? c.load_timeout_s : 0;
  for (const RewardFunction& f : c.functions) sum += f.timeout_s;
  return sum > 0 ? sum : scheduler::RewardOptions().timeout_s;
}

std::vector<std::vector<SlotId>> Gangs(const JobConfig& c) {
  std::vector<std::vector<SlotId>> gangs;
  for (const std::vector<int64_t>& engine : config::EngineGangs(c)) {
    gangs.emplace_back();
    for (const int64_t slot : engine) gangs.back().push_back({slot});
  }
  return gangs;
}

}  // namespace

int64_t FurtherModels(const JobConfig& c) {
  if (c.rl() == nullptr || c.model.is_policy()) return 0;
  const auto a = algorithms::Resolve(c.rl()->algorithm, c.rollout.max_new_tokens);
  if (!a.ok()) return 0;
  return (a->needs_reference() ? 1 : 0) + (a->needs_teacher() ? 1 : 0) + (a->needs_critic() ? 1 : 0);
}

scheduler::ControllerOptions SchedulerOptions(const JobConfig& c, int64_t held_out) {
  scheduler::ControllerOptions o;
  o.job = c.kind();
  o.seed = c.seed;
  o.deterministic = c.deterministic;
  o.steps = c.train.steps;
  o.max_nonfinite_steps = c.train.max_nonfinite_steps;
  o.fleet = {.placement = c.scheduler.placement,
             .policy = c.scheduler.policy,
             .slots = c.cluster.slots,
             .min_slots = c.cluster.min_slots,
             .gangs = Gangs(c),
             .actor_slots = c.scheduler.actor_slots,
             .rollout_floor = c.scheduler.rollout_floor,
             .zero = c.train.zero > 0,
             .tensor = c.train.mesh.tp,
             .experts = c.train.mesh.ep,
             .uneven_dp = c.scheduler.uneven_dp,
             .launch_workers = c.cluster.launch_workers,
             .reattach_grace_s = c.cluster.reattach_grace_s,
             .heartbeat_s = c.cluster.heartbeat_s,
             .start_timeout_s = c.cluster.start_timeout_s,
             .stall_timeout_s = c.cluster.stall_timeout_s};
  // A device worker whose control task is a program of its own waits for that in each step.
  if (const EnvironmentConfig* e = c.environment(); e != nullptr && c.model.is_policy() && e->is_service()) {
    o.fleet.quiet_s = 2 * (e->start_timeout_s + e->reset_timeout_s + e->step_timeout_s) + 60;
    o.fleet.stall_timeout_s = std::max(o.fleet.stall_timeout_s, o.fleet.quiet_s);
  }
  o.batch = {.groups_per_step = c.train.groups_per_step,
             .group_size = SamplesPerRow(c),
             .redundancy = c.rl() != nullptr ? c.rollout.redundancy : 0,
             .max_lag_versions = c.scheduler.max_lag_versions,
             .on_stale = c.scheduler.on_stale,
             .max_reissues = c.scheduler.max_reissues,
             .oversample = c.scheduler.oversample,
             .oversample_mode = c.scheduler.oversample_mode,
             .straggler_wait = c.scheduler.straggler_wait,
             .min_step_batch_fraction = c.scheduler.min_step_batch_fraction,
             .infra_drop_alarm = c.scheduler.infra_drop_alarm,
             .infra_drop_stop = c.scheduler.infra_drop_stop};
  if (const RlJob* rl = c.rl()) {
    o.batch.drops_equal_rewards = algorithms::FilterOf(rl->algorithm) == "zero_variance";
    for (const std::string& text : rl->algorithm.keep_groups) {  // a config that is loaded has no other ones
      if (auto condition = ParseGroupCondition(text); condition.ok())
        o.batch.keep_groups.push_back(*std::move(condition));
    }
    o.batch.filter_rounds = rl->algorithm.filter_rounds;
    // Parts of a model compute together, or not at all.
    o.batch.early_columns = c.train.early_columns && NeedsColumns(c) && c.train.mesh.parts() == 1;
  }
  o.rollout = {.max_prompt_tokens = c.data.max_prompt_tokens,
               .max_new_tokens = c.rollout.max_new_tokens,
               .chunk_tokens = c.rollout.chunk_tokens,
               .block_tokens = c.rollout.block_tokens,
               .max_concurrent = c.rollout.max_concurrent,
               .kv_cache_tokens = c.rollout.kv_cache_tokens,
               .admission = c.rollout.admission,
               .kv_on_update = c.rollout.kv_on_update,
               .pin_version = c.rollout.pin_version,
               .repack_s = c.rollout.repack_s};
  o.reward = {.workers = c.reward.workers,
              .max_retries = c.reward.max_retries,
              // The next call can be full when one comes back.
              .in_flight_per_worker = std::max(scheduler::RewardOptions().in_flight_per_worker,
                                               (c.reward.concurrency + 1) * c.reward.batch),
              .timeout_s = SecondsOfRewards(c.reward)};
  if (const EnvironmentConfig* e = c.environment()) {
    o.environment = {.used = true,
                     .in_rollout = c.model.is_policy(),
                     .workers = e->workers,
                     .max_turn_tokens = e->max_turn_tokens,
                     .max_retries = e->max_retries,
                     .reset_timeout_s = e->reset_timeout_s,
                     .step_timeout_s = e->step_timeout_s,
                     .episode_timeout_s = e->episode_timeout_s,
                     .slow_replays = e->is_service()};
    // A sample waits until a program takes it, which is nobody's failure. How long a session may take is
    // its worker's to see to, who ends it; it cannot be played by another one.
    if (e->is_endpoint()) {
      constexpr double kEver = 1e8;
      o.environment.reset_timeout_s = o.environment.step_timeout_s = o.environment.episode_timeout_s = kEver;
      o.environment.max_retries = 0;
      o.environment.holds_rows = true;
    }
  }
  const int64_t rows = c.eval.samples > 0 ? std::min(c.eval.samples, held_out) : held_out;
  o.eval = {.rows = Evaluates(c) ? rows : 0,
            .every_steps = c.eval.every_steps,
            .before_train = c.eval.before_train,
            .after_train = c.eval.after_train,
            .stop_at_accuracy = c.eval.stop_at_accuracy};
  o.checkpoint = {.every_steps = c.checkpoint.every_steps,
                  .keep = c.checkpoint.keep,
                  .recovery_every_steps = c.checkpoint.recovery_every_steps,
                  .save_final = c.checkpoint.save_final,
                  .keep_best = c.checkpoint.keep_best};
  return o;
}

StatusOr<scheduler::Placement> LimitedPlacement(const scheduler::FleetOptions& fleet) {
  const std::string name = fleet.policy.empty() ? Name(fleet.placement) : fleet.policy;
  const std::string label = PluginLabel("policy", scheduler::PolicyPlugins(), name);
  const LimitedCall making({.what = label, .on = "the config of the job"});
  TP_RETURN_IF_ERROR(scheduler::CheckPolicy(fleet.placement, fleet.policy));
  scheduler::Placement placement = scheduler::PlacementOf(fleet.placement, fleet.policy);
  placement.decide = [label, decide = std::move(placement.decide)](
                         const scheduler::PoolView& pool, const scheduler::LedgerView& ledger,
                         const scheduler::Forecast& forecast, TimePoint now) {
    const LimitedCall call({.what = label, .on = "a plan"});
    const auto threw = [](const std::string& what) {
      return scheduler::Plan{.roles = {}, .why = {}, .failed = "decide() threw " + what};
    };
    try {
      return decide(pool, ledger, forecast, now);
    } catch (const std::exception& e) {
      return threw(std::string("an exception: ") + e.what());
    } catch (...) {
      return threw("something that is no std::exception");
    }
  };
  return placement;
}

storage::StorePlace StoreOf(const JobConfig& config) {
  const CheckpointConfig& c = config.checkpoint;
  if (c.store.empty()) return {};
  return {.store = c.store,
          .below = "",
          .endpoint = c.s3_endpoint,
          .region = c.s3_region,
          .timeout_s = c.store_timeout_s};
}

}  // namespace tidepool::workers
