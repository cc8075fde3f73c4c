#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {

// What it is asked and how its answer is read: core/tasks/judge.h. Computed in workers/side/judge_model.cc.
TP_PLUGIN(Reward, judge) {
  return {
      .argument = "a word, where there are several",
      .doc =
          "0 to 1: the number that a language model in the folder `path` answers when it is asked to grade",
      .keys = {"path", "dtype", "max_tokens", "prompt", "score_pattern", "score_min", "score_max",
               "max_new_tokens"}};
}

}  // namespace tidepool::tasks
