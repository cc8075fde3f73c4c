#pragma once
// What a small policy for control tasks is: an actor and a critic, each a few dense tanh layers, over one
// flat arena of weights with the same index space, digest and optimizer as a language model's. No LibTorch.
//
//   h_0 = observation,  h_{k+1} = tanh(W_k h_k + b_k),  out = W h + b
//   discrete:  logits [actions] of a categorical distribution
//   Gaussian:  means [actions], log_std [actions] a parameter of its own, independent of the observation
//   value:     a head of its own; its hidden layers are separate, or those of the actor (`shared`)
//
// One of an off-policy algorithm (`squashed`) is an actor alone, with relu in place of tanh, and acts inside
// the environment's bounds: a = mid + half tanh(mean + exp(log_std) noise), mean and log_std [actions] both
// heads of the observation, log_std clipped to [-20, 2] (core/policy/squashed.h). Its critics, which the
// trainer alone has, are two of SoftCriticLayout. All of them start as LibTorch's linear layers do: uniform
// in
// +-1/sqrt(inputs), biases too.
//
// Initialised as PPO is usually run (arXiv:2006.05990): orthogonal matrices with gain sqrt(2) in hidden
// layers, 0.01 in the policy head, 1 in the value head; biases 0.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/environments/vector.h"
#include "core/model/layout.h"

namespace tidepool::policy {

struct PolicySpec {
  int64_t observation_size = 0;  // numbers
  int64_t actions = 0;           // choices, or numbers of a Gaussian action
  bool continuous = false;
  std::vector<int64_t> hidden = {64, 64};
  bool shared = false;
  double initial_log_std = 0;  // Gaussian only
  bool squashed = false;       // continuous only
  double low = 0, high = 0;    // squashed: what each number of an action is in
  std::string environment;     // what it was made for
  [[nodiscard]] int64_t action_size() const { return continuous ? actions : 1; }
  // Numbers that a forward gives for an observation: logits, means, or means and then log_std.
  [[nodiscard]] int64_t head_size() const { return squashed ? 2 * actions : actions; }
  // Numbers that a replay store keeps of a step (replay_store.h).
  [[nodiscard]] int64_t transition_size() const { return 2 * observation_size + actions + 2; }
  friend bool operator==(const PolicySpec&, const PolicySpec&) = default;
};

// kInvalidArgument: a size out of range (observations 1 to 65536, actions 1 to 4096, 1 to 8 layers of 1 to
// 4096).
Status CheckSpec(const PolicySpec& spec);
// Names in order: actor.K.weight [out, in], actor.K.bias, [critic.K.weight, critic.K.bias],
// policy_head.weight, policy_head.bias, [log_std], value_head.weight, value_head.bias. Of a squashed one
// policy_head has the rows of means, then those of log_std, and nothing follows it.
std::vector<model::Parameter> PolicyLayout(const PolicySpec& spec);
// Of the two critics of a squashed policy, on (observation, tanh of the action): q1.K.weight, q1.K.bias, ...,
// q1_head.weight [1, hidden], q1_head.bias, then those of q2.
std::vector<model::Parameter> SoftCriticLayout(const PolicySpec& spec);

// The policy that a job asks for, in the environment it names.
StatusOr<PolicySpec> SpecOfJob(const JobConfig& job);
environments::VectorOptions EnvironmentOfJob(const JobConfig& job);

// kInvalidArgument: the policy cannot act in this environment; both sizes are named.
Status CheckPlays(const PolicySpec& spec, const environments::VectorSpec& environment);

// config.json of a policy folder ("model_type": "mlp_policy"); its weights are model.safetensors by the
// layout's names.
StatusOr<PolicySpec> ReadPolicySpec(const std::string& folder);
Status WritePolicySpec(const PolicySpec& spec, const std::string& folder);

}  // namespace tidepool::policy
