#pragma once
// Scores that several rewards give to a row: what its fields say, and the grading rule. Pure; thread-safe.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/tasks/reward.h"

namespace tidepool::tasks {

// Empty: no number, or more than a number.
std::optional<int64_t> WholeNumber(std::string_view text);

struct CountdownRow {
  std::vector<int64_t> numbers;
  int64_t target = 0;
};
// From fields["numbers"] and fields["target"]; empty where they are missing or malformed.
std::optional<CountdownRow> ReadCountdown(const RewardInput& input);
inline constexpr const char* kCountdownFields =
    "the row needs fields numbers (a JSON list of integers) and target (an integer)";

// The answer is a JSON list in order; the response's list is in its last answer tag, or all of it. Empty
// where the row is malformed.
std::optional<double> SortingRowScore(const RewardInput& input, double tolerance);
inline constexpr const char* kSortingFields =
    "the row needs an answer (a JSON list of numbers) and a field direction (ascending or descending)";

// 1 if the text of the last answer tag is the answer, as text or as a number; kData without an answer.
Verdict AnswerTagScore(const RewardInput& input);

}  // namespace tidepool::tasks
