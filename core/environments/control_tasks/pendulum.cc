// Gymnasium's Pendulum-v1 (core/environments/control.h).
#include <numbers>

#include "core/environments/control.h"
#include "core/environments/control_tasks/control_plugin.h"

namespace tidepool::environments {

TP_PLUGIN(Control, pendulum) {
  return {.spec = {.reference = "Pendulum-v1",
                   .continuous = true,
                   .observation_size = 3,
                   .actions = 1,
                   .low = -2,
                   .high = 2,
                   .max_episode_steps = 200,
                   .solved_return = -200,
                   .reward = "-(angle^2 + 0.1 speed^2 + 0.001 torque^2) a step"},
          .make = [](const ControlOptions&, VectorSpec&) -> StatusOr<std::unique_ptr<Rules>> {
            using Pendulum = Control<2, StepPendulum, ObservePendulum, double>;
            constexpr double kPi = std::numbers::pi;
            return MakeRules<Pendulum>(Pendulum::State{-kPi, -1}, Pendulum::State{kPi, 1});
          }};
}

}  // namespace tidepool::environments
