// my_task: what it asks, in a sentence.
//
// To do: write the two functions below. docs/adding_a_task.md explains them. A question is a pure function of
// the options, the seed and its index: no state, no clock, the same on every machine.
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

// How many questions there are, one number a stratum; questions are drawn from all strata alike, so that the
// few short ones are not drowned by the many long ones. Here: one stratum a number of digits, and all numbers
// that have so many.
StatusOr<std::vector<int64_t>> MyTaskStrata(const OptionValues& options) {
  std::vector<int64_t> strata;
  const auto [lo, hi] = options.Range("digits");
  for (int64_t digits = lo; digits <= hi; ++digits) strata.push_back(9 * SaturatingPower(10, digits - 1));
  return strata;
}

// The question of a pick: stratum and code, a number below the size of the stratum. Different picks give
// different questions.
Question MyTask(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t seed) {
  CodeReader code(pick, seed);  // takes the code apart; Take(n) is below n
  const int64_t least = SaturatingPower(10, options.Range("digits").first + pick.stratum - 1);
  const int64_t number = least + code.Take(9 * least);
  const std::string prompt =
      IsTerse(options) ? std::to_string(number) + "+1="
                       : "What comes after " + std::to_string(number) + "? Reply with only the number.";
  return NumberQuestion(
      prompt,
      number + 1);  // graded by its last number; for others set `fields["answer_rule"]` (core/tasks/reward.h)
}

}  // namespace

TP_PLUGIN(Task, my_task) {
  return SpaceTask({.doc = "the number that comes next",
                    .options = {{"digits", OptionKind::kRange, "[1, 3]", 1, 12, {}, "digits of the number"},
                                StyleOption("chat")}},
                   MyTaskStrata, MyTask);
}

}  // namespace tidepool::tasks
