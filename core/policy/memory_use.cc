#include "core/policy/memory_use.h"

#include <algorithm>

namespace tidepool::policy {
namespace {

constexpr int64_t kLane = 16;     // core/policy/network.cc pads outputs to it
constexpr int64_t kNumbers = 8;   // float64 columns of a cell in a step: log-probabilities, advantage, ...
constexpr int64_t kElement = 64;  // parameters begin at multiples of it

int64_t Padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t Elements(const std::vector<model::Parameter>& layout) {
  return layout.back().offset + Padded(layout.back().numel(), kElement);
}
int64_t Elements(const PolicySpec& spec) { return Elements(PolicyLayout(spec)); }

// Observation, action, log-probability, value, reward and flag.
int64_t CellBytes(const PolicySpec& s) { return 4 * (s.observation_size + s.action_size() + 3) + 1; }

}  // namespace

// Of the networks of a gradient step: the actor twice, critics and targets.
model::MemoryUse SquashedTrainingMemory(const PolicySpec& s, const MemorySizes& z) {
  const int64_t p = Elements(s), c = Elements(SoftCriticLayout(s)), cells = z.fragments * z.fragment_cells;
  int64_t outputs = Padded(2 * s.actions, kLane);
  for (const int64_t width : s.hidden) outputs += Padded(width, kLane);
  return {.weights = 4 * p,
          .optimizer = 8 * p + 16 * c + z.replay_capacity * s.transition_size() * 4 + 8 * kElement,
          .gradients = 4 * (p + c + kElement),
          .activations =
              z.replay_batch * (4 * 2 * 6 * outputs + 16 * (s.observation_size + s.actions) + 8 * kNumbers),
          .workspace = 4 * (p + 2 * c) + cells * 3 * CellBytes(s)};
}

model::MemoryUse TrainingMemory(const PolicySpec& s, const MemorySizes& z) {
  if (s.squashed) return SquashedTrainingMemory(s, z);
  const int64_t p = Elements(s), cells = z.fragments * z.fragment_cells;
  int64_t outputs = Padded(s.actions, kLane) + Padded(1, kLane);
  for (const int64_t width : s.hidden) outputs += (s.shared ? 1 : 2) * Padded(width, kLane);
  const int64_t together = std::max(z.fragment_cells, cells / std::max<int64_t>(z.minibatches, 1));
  return {.weights = 4 * p,
          .optimizer = 8 * p,
          .gradients = 4 * p,
          .activations = together * (4 * (2 * outputs + s.observation_size) + 8 * kNumbers),
          // Fragments as they came, decoded, and as the columns of the step.
          .workspace = 4 * p + cells * (3 * CellBytes(s) + 8 * kNumbers)};
}

model::MemoryUse PlayingMemory(const PolicySpec& s, const MemorySizes& z) {
  // What was played, and its encoding on the way to the controller.
  return {.workspace = 4 * Elements(s) + z.fragments * z.fragment_cells * 2 * CellBytes(s)};
}

int64_t ParameterCount(const PolicySpec& spec) {
  int64_t sum = 0;
  for (const model::Parameter& p : PolicyLayout(spec)) sum += p.numel();
  return sum;
}

}  // namespace tidepool::policy
