#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {

// Computed in workers/side/score_model.cc.
TP_PLUGIN(Reward, reward_model) {
  return {.argument = "a word, where there are several",
          .doc = "the score of a trained reward model (job: reward_model) in the folder `path`",
          .keys = {"path", "dtype", "max_tokens"}};
}

}  // namespace tidepool::tasks
