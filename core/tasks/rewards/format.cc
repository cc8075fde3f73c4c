#include <memory>

#include "core/tasks/pattern.h"
#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {
namespace {

StatusOr<Reward> MakeFormat(const std::string& argument) {
  if (argument.empty()) return Reward([](const RewardInput& in) { return Ok(in.ended ? 1 : 0); });
  const auto pattern = Pattern::Compile(argument);
  if (!pattern.ok()) return pattern.status().At("format");
  return Reward([pattern = *pattern](const RewardInput& in) {
    // Text that is no UTF-8 does not have the format; a pattern that backtracks too long is a fault of the
    // config.
    const auto found = pattern->Find(in.text);
    if (!found.ok()) return BadData("format: " + found.status().message());
    return Ok(found->has_value() ? 1 : 0);
  });
}

}  // namespace

TP_PLUGIN(Reward, format) {
  return {.argument = "regular expression",
          .doc = "1 if the response matches; without an argument, if it ended by itself",
          .make = MakeFormat};
}

}  // namespace tidepool::tasks
