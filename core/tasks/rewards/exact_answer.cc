#include <string>
#include <string_view>

#include "core/tasks/grading.h"
#include "core/tasks/rewards/reward_plugin.h"
#include "core/tasks/row_scores.h"

namespace tidepool::tasks {

Verdict ExactAnswer(const RewardInput& input) {
  const auto it = input.fields.find("answer_rule");
  std::string rule = it == input.fields.end() ? "" : it->second;
  if (rule == "countdown") {
    const auto row = ReadCountdown(input);
    if (!row) return BadData(kCountdownFields);
    if (!input.ended) return Ok(0, "cut at the limit");
    const auto tagged = ExtractAnswer(input.text);
    const double score = CountdownExpressionScore(tagged ? *tagged : std::string(Trim(input.text)),
                                                  row->numbers, static_cast<double>(row->target));
    return Ok(score == 1 ? 1 : 0);
  }
  if (rule == "sorting") {
    const auto score = SortingRowScore(input, 1e-9);
    if (!score) return BadData(kSortingFields);
    return input.ended ? Ok(*score) : Ok(0, "cut at the limit");
  }
  const std::string_view answer = Trim(input.answer);
  if (answer.empty()) return NoAnswer();
  if (rule.empty()) rule = DecimalsEqual(answer, answer) ? "last_number" : "text";
  if (rule == "gsm8k") return Ok(Gsm8kScore(input.text, answer, Gsm8kMethod::kStrict));
  if (rule == "answer_tag") return AnswerTagScore(input);
  if (rule != "last_number" && rule != "text") {
    return BadData("answer_rule is '" + rule +
                   "'; expected last_number, text, countdown, sorting, gsm8k or answer_tag");
  }
  if (!input.ended) return Ok(0, "cut at the limit");
  if (rule == "text") return Ok(Trim(input.text) == answer ? 1 : 0);
  const auto last = LastNumber(input.text);
  if (!last) return Ok(0, "no number");
  std::string wanted(answer);
  std::erase(wanted, ',');
  return Ok(DecimalsEqual(*last, wanted) ? 1 : 0);
}

TP_PLUGIN(Reward, exact_answer) {
  return {.doc = "1 if the answer is right by the task's own rule, else 0",
          .make = WithoutArgument<ExactAnswer>};
}

}  // namespace tidepool::tasks
