// Gymnasium's CartPole-v1 (core/environments/control.h).
#include "core/environments/control.h"
#include "core/environments/control_tasks/control_plugin.h"

namespace tidepool::environments {

TP_PLUGIN(Control, cartpole) {
  return {.spec = {.reference = "CartPole-v1",
                   .continuous = false,
                   .observation_size = 4,
                   .actions = 2,
                   .max_episode_steps = 500,
                   .solved_return = 475,
                   .reward = "1 a step until the pole falls or the cart leaves"},
          .make = [](const ControlOptions&, VectorSpec&) -> StatusOr<std::unique_ptr<Rules>> {
            using CartPole = Control<4, StepCartPole, All<4>>;
            return MakeRules<CartPole>(-0.05, 0.05);
          }};
}

}  // namespace tidepool::environments
