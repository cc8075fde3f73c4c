#pragma once
// One rollout of a vector policy: `steps` steps on `instances` environment instances, with everything that
// training asks of it and the states in which the instances were left. What a sample of tokens is to a
// language model; its encoded bytes are the payload that the journal's ENQ record names. Plain data; no
// LibTorch.
//
// A fragment is a pure function of (weights, environment, start states, seed, sample id): it can be played
// again after any loss, and the next one of its lane begins with `ends`, wherever it is played.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/environments/vector.h"
#include "core/policy/spec.h"

namespace tidepool::policy {

struct Fragment {
  int64_t steps = 0, instances = 0;
  int64_t observation_size = 0, action_size = 0;
  std::vector<float>
      observations;            // [steps + 1, instances, observation_size]; the last row follows the last step
  std::vector<float> actions;  // [steps, instances, action_size]
  std::vector<float> log_probs;  // [steps, instances] under the weights that acted
  std::vector<float> values;     // [steps + 1, instances]; of a squashed policy none
  std::vector<float> rewards;    // [steps, instances]
  std::vector<uint8_t> flags;    // [steps, instances] 0, kTerminated or kTruncated of the step's end
  std::vector<float>
      final_observations;      // [truncated, observation_size] in the order of their flags: bootstrap
  std::vector<double> scores;  // returns of the episodes that ended inside
  std::vector<environments::InstanceState> ends;  // [instances]

  [[nodiscard]] int64_t cells() const { return steps * instances; }
  friend bool operator==(const Fragment&, const Fragment&) = default;
};

// Sizes agree, numbers are finite, actions and states are the spec's. kInvalidArgument says what is not.
Status CheckFragment(const Fragment& fragment, const PolicySpec& spec);

// Little-endian; the inverse checks every count before it allocates. kDataLoss: the bytes are no fragment.
std::string EncodeFragment(const Fragment& fragment);
StatusOr<Fragment> DecodeFragment(std::string_view bytes);
// Upper bound of the encoded bytes of a fragment of this size. `kept_steps`: of an episode whose actions its
// states keep (InstanceState::actions).
int64_t FragmentBytes(const PolicySpec& spec, int64_t steps, int64_t instances, int64_t kept_steps = 0);

std::string EncodeStates(const std::vector<environments::InstanceState>& states);
StatusOr<std::vector<environments::InstanceState>> DecodeStates(std::string_view bytes);

}  // namespace tidepool::policy
