#pragma once
// What a small policy for control tasks is: an actor and a critic, each a few dense tanh layers, over one
// flat arena of weights with the same index space, digest and optimizer as a language model's. No LibTorch.
//
//   h_0 = observation,  h_{k+1} = tanh(W_k h_k + b_k),  out = W h + b
//   discrete:  logits [actions] of a categorical distribution
//   Gaussian:  means [actions], log_std [actions] a parameter of its own, independent of the observation
//   value:     a head of its own; its hidden layers are separate, or those of the actor (`shared`)
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
  std::string environment;     // what it was made for
  [[nodiscard]] int64_t action_size() const { return continuous ? actions : 1; }
  friend bool operator==(const PolicySpec&, const PolicySpec&) = default;
};

// kInvalidArgument: a size out of range (observations 1 to 65536, actions 1 to 4096, 1 to 8 layers of 1 to
// 4096).
Status CheckSpec(const PolicySpec& spec);
// Names in order: actor.K.weight [out, in], actor.K.bias, [critic.K.weight, critic.K.bias],
// policy_head.weight, policy_head.bias, [log_std], value_head.weight, value_head.bias.
std::vector<model::Parameter> PolicyLayout(const PolicySpec& spec);

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
