#include <string_view>

#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {
namespace {

StatusOr<Reward> MakeContains(const std::string& argument) {
  return Reward([argument](const RewardInput& in) {
    const std::string_view wanted =
        argument.empty() ? std::string_view(in.answer) : std::string_view(argument);
    if (wanted.empty()) return NoAnswer();
    return Ok(in.text.find(wanted) != std::string::npos ? 1 : 0);
  });
}

}  // namespace

TP_PLUGIN(Reward, contains) {
  return {.argument = "text",
          .doc = "1 if the response contains the text (default: the answer)",
          .make = MakeContains};
}

}  // namespace tidepool::tasks
