#include "core/config/policy_rules.h"

#include <algorithm>
#include <array>
#include <string>

#include "core/algorithms/registry.h"
#include "core/config/service_rules.h"
#include "core/environments/text_game.h"
#include "core/environments/vector.h"
#include "core/policy/fragment.h"
#include "core/policy/spec.h"

namespace tidepool::config {
namespace {

constexpr std::array kPolicyKeys = {"model.hidden",
                                    "model.shared",
                                    "model.initial_log_std",
                                    "environment.instances",
                                    "environment.max_episode_steps",
                                    "environment.processes",
                                    "environment.observation_size",
                                    "environment.actions",
                                    "environment.continuous",
                                    "environment.action_low",
                                    "environment.action_high",
                                    "environment.solved_return",
                                    "rollout.steps_per_fragment",
                                    "algorithm.value_coef",
                                    "algorithm.replay.",
                                    "algorithm.sac."};
// Of algorithms that have a policy loss, and of those that train from a replay store.
constexpr std::array kOnPolicyKeys = {
    "algorithm.advantage",  "algorithm.loss",       "algorithm.clip_low",     "algorithm.clip_high",
    "algorithm.dual_clip",  "algorithm.value_coef", "algorithm.entropy_coef", "algorithm.correction",
    "algorithm.tis_max",    "train.epochs",         "train.minibatches",      "model.shared",
    "model.initial_log_std"};
constexpr std::array kOffPolicyKeys = {"algorithm.replay.", "algorithm.sac."};
// A key, or with a point at the end all keys below.
constexpr std::array kTextKeys = {"model.path",
                                  "model.init.",
                                  "model.lora.",
                                  "data.",
                                  "reward.",
                                  "environment.size",
                                  "environment.max_turns",
                                  "environment.max_turn_tokens",
                                  "environment.episode_timeout_s",
                                  "environment.latency.",
                                  "algorithm.advantage_scale",
                                  "algorithm.advantage_eps",
                                  "algorithm.aggregation",
                                  "algorithm.filter",
                                  "algorithm.keep_groups",
                                  "algorithm.filter_rounds",
                                  "algorithm.mask_truncated",
                                  "algorithm.overlong_buffer_tokens",
                                  "algorithm.overlong_factor",
                                  "algorithm.kl.",
                                  "algorithm.critic.",
                                  "algorithm.teacher",
                                  "algorithm.teacher_coef",
                                  "algorithm.opsm",
                                  "algorithm.m2po",
                                  "algorithm.reject",
                                  "algorithm.reject_threshold",
                                  "algorithm.reject_low",
                                  "algorithm.reject_high",
                                  "rollout.group_size",
                                  "rollout.redundancy",
                                  "rollout.max_new_tokens",
                                  "rollout.chunk_tokens",
                                  "rollout.temperature",
                                  "rollout.top_k",
                                  "rollout.top_p",
                                  "rollout.min_p",
                                  "rollout.stop",
                                  "rollout.stop_token_ids",
                                  "rollout.block_tokens",
                                  "rollout.kv_cache_tokens",
                                  "rollout.max_batched_tokens",
                                  "rollout.kv_on_update",
                                  "rollout.record_routing",
                                  "rollout.cuda_graphs",
                                  "train.micro_batch_tokens",
                                  "train.recompute",
                                  "cluster.pace",
                                  "cluster.pace_scale"};
// Of a control task that is a service.
constexpr std::array kServiceKeys = {
    "environment.command",          "environment.addresses",       "environment.start_timeout_s",
    "environment.processes",        "environment.reset_timeout_s", "environment.max_retries",
    "environment.observation_size", "environment.actions",         "environment.continuous",
    "environment.solved_return",    "environment.action_low",      "environment.action_high"};

// Among them, or below one that ends with a point.
template <size_t n>
bool Has(const std::array<const char*, n>& keys, std::string_view key) {
  return std::ranges::any_of(
      keys, [&](std::string_view k) { return k.ends_with('.') ? key.starts_with(k) : key == k; });
}

// The key is of another kind of algorithm than this one.
bool BelongsToOthers(std::string_view key, const AlgorithmConfig& algorithm) {
  return algorithms::UsesReplay(algorithm) ? Has(kOnPolicyKeys, key) : Has(kOffPolicyKeys, key);
}

// An off-policy algorithm acts inside bounds.
void CheckOffPolicy(Binder& b, const JobConfig& c, const RlJob& rl, const environments::VectorSpec& e) {
  const std::string name = rl.algorithm.name;
  if (!e.continuous)
    return b.Complain("algorithm.name", "is " + name + ", which acts by numbers, but " + e.name + " has " +
                                            std::to_string(e.actions) + " choices as actions; write ppo");
  b.Rule(
      {"algorithm.name"}, !(e.low < e.high),
      "is " + name + ", which acts inside bounds, but " + e.name +
          " does not say one range of all numbers of an action (action_low, action_high); write ppo, or have "
          "it say them");
  b.Rule("algorithm.replay.batch_size", {"algorithm.replay.capacity"},
         rl.algorithm.replay.batch_size > rl.algorithm.replay.capacity,
         "is " + std::to_string(rl.algorithm.replay.batch_size) + ", more than algorithm.replay.capacity (" +
             std::to_string(rl.algorithm.replay.capacity) + ")");
  const int64_t cells = c.rollout.max_new_tokens * c.train.groups_per_step;
  b.Rule("algorithm.replay.capacity", {"rollout.steps_per_fragment", "environment.instances"},
         rl.algorithm.replay.capacity < cells,
         "is " + std::to_string(rl.algorithm.replay.capacity) + ", less than the " + std::to_string(cells) +
             " environment steps of one step; raise it");
}

// What the control task says of itself, and the parts of the algorithm.
void AskPlugins(Binder& b, const JobConfig& c, const RlJob& rl) {
  const EnvironmentConfig& e = rl.environment;
  if (e.is_service()) {
    if (!CheckService(b, e)) return;
    if (e.observation_size == 0) return;  // it is asked before the job is run
  } else if (environments::FindTextEnvironment(e.name) != nullptr) {
    return b.Complain("environment.name",
                      e.name + " is a game of words, which model.policy: " + Name(c.model.policy) +
                          " cannot play; take a control task (`tidepool environments`), or a language model");
  }
  const auto environment = environments::FindVectorEnvironment(policy::EnvironmentOfJob(c));
  if (!environment.ok()) {
    return b.ComplainOf("environment.", environment.status());
  }
  b.Rule({"model.initial_log_std"}, !environment->continuous && c.model.initial_log_std != 0,
         "is of a Gaussian policy, but " + e.name + " has " + std::to_string(environment->actions) +
             " choices as actions; remove it");
  const bool off_policy = algorithms::UsesReplay(rl.algorithm);
  if (off_policy) CheckOffPolicy(b, c, rl, *environment);
  if (off_policy && !(environment->continuous && environment->low < environment->high)) return;
  if (b.Good("model.hidden")) {
    if (const auto spec = policy::SpecOfJob(c); !spec.ok())
      return b.Complain("model.hidden", spec.status().message());
  }
  if (b.AllGood({"environment.instances", "rollout.steps_per_fragment"})) {
    const int64_t bytes =
        policy::FragmentBytes(*policy::SpecOfJob(c), c.rollout.steps_per_fragment, e.instances,
                              e.is_service() ? environment->max_episode_steps : 0);
    b.Rule(b.Written("rollout.steps_per_fragment") ? "rollout.steps_per_fragment" : "environment.instances",
           {}, bytes > c.security.max_control_bytes / 2,
           std::to_string(e.instances) + " instances of " + std::to_string(c.rollout.steps_per_fragment) +
               " steps make a message of up to " + std::to_string(bytes) +
               " bytes, more than half of security.max_control_bytes (" +
               std::to_string(c.security.max_control_bytes) +
               "); lower them and raise train.groups_per_step");
  }
  if (off_policy || !b.AllGood({"algorithm.name", "algorithm.advantage", "algorithm.loss"})) return;
  const auto resolved = algorithms::Resolve(rl.algorithm, c.rollout.max_new_tokens, /*environments=*/true);
  if (!resolved.ok()) {
    return b.ComplainOf("", resolved.status());
  }
  const auto& loss = *resolved->policy.loss;
  b.Rule({"algorithm.loss", "algorithm.name"},
         algorithms::NeedsWholeRows(resolved->policy) || loss.whole_batch || loss.row_value,
         "loss " + loss.name +
             " is over whole sequences; a policy of control tasks needs one of single steps, like ppo");
}

}  // namespace

bool BelongsToPolicies(std::string_view key, const JobConfig& config) {
  const bool of_service =
      key == "environment.instances" && config.environment() != nullptr && config.environment()->is_service();
  return !config.model.is_policy() && !of_service && Has(kPolicyKeys, key);
}

bool BelongsToText(std::string_view key, const JobConfig& config) {
  const bool service = config.environment() != nullptr && config.environment()->is_service();
  if (!service && Has(kServiceKeys, key)) return true;
  if (Has(kTextKeys, key)) return true;
  return config.rl() != nullptr && BelongsToOthers(key, config.rl()->algorithm);
}

void CheckPolicy(Binder& b, LoadedConfig& loaded) {
  JobConfig& c = loaded.config;
  auto* rl = std::get_if<RlJob>(&c.job);
  if (rl == nullptr)
    return b.Complain("model.policy",
                      std::string("belongs to job: rl, and this is job: ") + Name(c.kind()) + "; remove it");
  EnvironmentConfig& e = rl->environment;
  for (const auto& [key, origin] : loaded.origins) {
    if (origin.kind == Origin::Kind::kDefault || !b.Good(key)) continue;
    if (BelongsToText(key, c) || key == "model.init" || key == "reward.functions") {
      const bool of_others = BelongsToOthers(key, rl->algorithm);
      b.Complain(key, (of_others ? "means nothing to algorithm.name: " + rl->algorithm.name
                                 : std::string("means nothing to a policy of control tasks (model.policy: ") +
                                       Name(c.model.policy) + ")") +
                          "; remove it (null takes an inherited one away)");
    }
  }
  if (!b.Good("environment.name")) return;
  if (e.name.empty())
    return b.Complain("environment.name",
                      "is missing; a policy needs a control task, for example environment: {name: cartpole}");
  if (b.AllGood({"environment.instances", "rollout.steps_per_fragment"})) {
    const int64_t cells = e.instances * c.rollout.steps_per_fragment;
    Adjust(loaded, "rollout.group_size", c.rollout.group_size, 1, "a group is one fragment");
    Adjust(loaded, "rollout.max_new_tokens", c.rollout.max_new_tokens, cells,
           "environment steps of a fragment");
    Adjust(loaded, "rollout.chunk_tokens", c.rollout.chunk_tokens, cells, "a chunk is a whole fragment");
    b.Rule({"train.minibatches"}, c.train.minibatches > cells * c.train.groups_per_step,
           "is " + std::to_string(c.train.minibatches) + ", more than the " +
               std::to_string(cells * c.train.groups_per_step) + " environment steps of a step; lower it");
  }
  if (!b.Written("environment.held_out"))
    Adjust(loaded, "environment.held_out", e.held_out, 100, "episodes of an evaluation of a policy");
  b.Rule({"model.dtype"}, c.model.dtype != DType::kFloat32,
         std::string("is ") + Name(c.model.dtype) + ", but policies compute in float32; remove it");
  if (!b.as_written()) AskPlugins(b, c, *rl);
}

}  // namespace tidepool::config
