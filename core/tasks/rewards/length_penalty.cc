#include <algorithm>
#include <optional>

#include "core/tasks/rewards/reward_plugin.h"
#include "core/tasks/row_scores.h"

namespace tidepool::tasks {
namespace {

// Soft overlong penalty (DAPO, arXiv:2503.14476, eq. 13): 0 up to L - b tokens, then falling to -1 at L.
StatusOr<Reward> MakeLengthPenalty(const std::string& argument) {
  const std::optional<int64_t> given = argument.empty() ? std::optional<int64_t>(0) : WholeNumber(argument);
  if (!given || (*given < 1 && !argument.empty())) {
    return InvalidArgument("length_penalty: expected a number of tokens after the colon; found '" + argument +
                           "'");
  }
  return Reward([given](const RewardInput& in) {
    if (in.max_new_tokens <= 0) return BadData("length_penalty needs max_new_tokens > 0");
    const int64_t buffer =
        std::min(*given > 0 ? *given : std::max<int64_t>(1, in.max_new_tokens / 4), in.max_new_tokens);
    const int64_t free = in.max_new_tokens - buffer;
    const double over = static_cast<double>(free - in.response_tokens) / static_cast<double>(buffer);
    return Ok(std::clamp(over, -1.0, 0.0));
  });
}

}  // namespace

TP_PLUGIN(Reward, length_penalty) {
  return {.argument = "tokens",
          .doc = "0 down to -1 over the last tokens before the limit (DAPO eq. 13); default a quarter of it",
          .make = MakeLengthPenalty};
}

}  // namespace tidepool::tasks
