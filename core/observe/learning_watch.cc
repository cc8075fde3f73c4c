#include "core/observe/learning_watch.h"

namespace tidepool::observe {

std::string LearningWatch::OnStep(const std::map<std::string, double>& metrics) {
  const auto is = [&](const char* name, double value) {
    const auto it = metrics.find(name);
    return it != metrics.end() && it->second == value;
  };
  // A critic learns from equal rewards too.
  const bool silent = is("reward/frac_reward_zero_std", 1) && is("actor/grad_norm", 0) &&
                      !metrics.contains("critic/grad_norm");
  silent_ = silent ? silent_ + 1 : 0;
  if (silent_ != kSteps) return "";
  return "all rewards of each group were equal for " + std::to_string(kSteps) +
         " steps: nothing is learned; learning needs groups in which some samples are right and some wrong. "
         "Read the answers (`tidepool samples RUN`); where none is ever right, a supervised warm start, an "
         "easier task, or a larger model helps (docs/troubleshooting.md)";
}

}  // namespace tidepool::observe
