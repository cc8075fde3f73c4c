// What a model answered, judged by every rule.
#include "core/tasks/grading.h"
#include "core/tasks/reward.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  const std::string text(fuzz::View(data, size));
  tasks::RewardInput input{
      .prompt = "p", .answer = "12", .text = text, .response_tokens = 3, .ended = true, .max_new_tokens = 8};
  input.fields = {{"numbers", "[1, 2, 3]"}, {"target", "6"}};
  for (const tasks::RewardInfo& info : tasks::ListRewards()) {
    const auto reward = tasks::MakeReward(info.name);
    if (reward.ok()) (void)(*reward)(input);
  }
  for (const char* rule : {"last_number", "text", "countdown", "gsm8k", "answer_tag"}) {
    input.fields["answer_rule"] = rule;
    (void)tasks::ExactAnswer(input);
  }
  (void)tasks::EvaluateExpression(text);
  (void)tasks::SortingScore(text, {1, 2}, tasks::SortDirection::kAscending, 0.1);
  (void)tasks::DecimalsEqual(text, text);
  return 0;
}
