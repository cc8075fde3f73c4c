// my_control: what is controlled, in a sentence.
//
// To do: write the rules. docs/adding_a_control_task.md explains them. All that decides the next step is in
// the four numbers of the state, and every chance is drawn from the Rng that is handed in.
#include "core/environments/control_tasks/control_plugin.h"

namespace tidepool::environments {
namespace {

// As an example: a corridor of nine places; the goal is at its right end. Choices: 0 left, 1 right.
class MyControl : public Rules {
 public:
  std::array<double, 4> Start(Rng rng) const override { return {static_cast<double>(rng.InRange(0, 4))}; }

  MoveResult Play(const std::array<double, 4>& state, const float* action, Rng /*rng*/) const override {
    const double place = std::clamp(state[0] + (action[0] == 1 ? 1 : -1), 0.0, 8.0);
    const bool arrived = place == 8;
    return {.state = {place}, .reward = arrived ? 1.0 : -0.1, .terminated = arrived};
  }

  void Observe(const std::array<double, 4>& state, float* out) const override {
    out[0] = static_cast<float>(state[0] / 4 - 1);  // about -1 to 1 is learned best
  }
};

}  // namespace

TP_PLUGIN(Control, my_control) {
  return {.spec = {.reference = "a corridor of nine places",
                   .continuous = false,
                   .observation_size = 1,
                   .actions = 2,
                   .max_episode_steps = 40,
                   .solved_return = 0.3,
                   .reward = "1 at the right end, -0.1 a step"},
          .make = [](const ControlOptions&, VectorSpec&) { return MakeRules<MyControl>(); }};
}

}  // namespace tidepool::environments
