// Gymnasium's Acrobot-v1 (core/environments/control.h).
#include "core/environments/control.h"
#include "core/environments/control_tasks/control_plugin.h"

namespace tidepool::environments {

TP_PLUGIN(Control, acrobot) {
  return {.spec = {.reference = "Acrobot-v1",
                   .continuous = false,
                   .observation_size = 6,
                   .actions = 3,
                   .max_episode_steps = 500,
                   .solved_return = -100,
                   .reward = "-1 a step until the tip is above the line"},
          .make = [](const ControlOptions&, VectorSpec&) -> StatusOr<std::unique_ptr<Rules>> {
            using Acrobot = Control<4, StepAcrobot, ObserveAcrobot>;
            return MakeRules<Acrobot>(-0.1, 0.1);
          }};
}

}  // namespace tidepool::environments
