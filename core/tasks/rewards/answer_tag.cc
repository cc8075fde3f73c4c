#include "core/tasks/rewards/reward_plugin.h"
#include "core/tasks/row_scores.h"

namespace tidepool::tasks {

TP_PLUGIN(Reward, answer_tag) {
  return {.doc = "1 if the text of the last <answer> tag is the answer, as text or as a number",
          .make = WithoutArgument<AnswerTagScore>};
}

}  // namespace tidepool::tasks
