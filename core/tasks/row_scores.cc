#include "core/tasks/row_scores.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/tasks/grading.h"
#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {
namespace {

std::optional<std::vector<int64_t>> Integers(const std::string& json_text) {
  const auto list = nlohmann::json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array() || list.empty()) return std::nullopt;
  std::vector<int64_t> out;
  for (const auto& item : list) {
    if (!item.is_number_integer()) return std::nullopt;
    out.push_back(item.get<int64_t>());
  }
  return out;
}

}  // namespace

std::optional<int64_t> WholeNumber(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<CountdownRow> ReadCountdown(const RewardInput& input) {
  const auto numbers = input.fields.find("numbers");
  const auto target = input.fields.find("target");
  if (numbers == input.fields.end() || target == input.fields.end()) return std::nullopt;
  const auto list = Integers(numbers->second);
  const auto value = WholeNumber(target->second);
  if (!list || !value) return std::nullopt;
  return CountdownRow{*list, *value};
}

std::optional<double> SortingRowScore(const RewardInput& in, double tolerance) {
  const auto direction = in.fields.find("direction");
  const auto list = nlohmann::json::parse(in.answer, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array() || list.empty() || direction == in.fields.end()) return std::nullopt;
  std::vector<double> expected;
  for (const auto& item : list) {
    if (!item.is_number()) return std::nullopt;
    expected.push_back(item.get<double>());
  }
  const auto tagged = ExtractAnswer(in.text);
  return SortingScore(
      tagged ? *tagged : std::string(Trim(in.text)), expected,
      direction->second == "descending" ? SortDirection::kDescending : SortDirection::kAscending, tolerance);
}

Verdict AnswerTagScore(const RewardInput& in) {
  if (in.answer.empty()) return NoAnswer();
  const auto given = ExtractAnswer(in.text);
  if (!given) return Ok(0, "no <answer> tag");
  return Ok(*given == Trim(in.answer) || DecimalsEqual(*given, in.answer) ? 1 : 0);
}

}  // namespace tidepool::tasks
