// Gymnasium's MountainCar-v0 (core/environments/control.h).
#include "core/environments/control.h"
#include "core/environments/control_tasks/control_plugin.h"

namespace tidepool::environments {

TP_PLUGIN(Control, mountain_car) {
  return {.spec = {.reference = "MountainCar-v0",
                   .continuous = false,
                   .observation_size = 2,
                   .actions = 3,
                   .max_episode_steps = 200,
                   .solved_return = -110,
                   .reward = "-1 a step until the flag"},
          .make = [](const ControlOptions&, VectorSpec&) -> StatusOr<std::unique_ptr<Rules>> {
            using MountainCar = Control<2, StepMountainCar, All<2>>;
            return MakeRules<MountainCar>(MountainCar::State{-0.6, 0}, MountainCar::State{-0.4, 0});
          }};
}

}  // namespace tidepool::environments
