#pragma once
// The table behind MakeTask: one entry a task. Each file of tasks gives its entries; registry.cc
// puts them together.

#include <functional>
#include <memory>
#include <vector>

#include "core/tasks/question_space.h"
#include "core/tasks/task.h"

namespace tidepool::tasks {

struct TaskEntry {
  TaskInfo info;
  // Options are checked; may still refuse combinations (kInvalidArgument, "NAME: ...").
  std::function<StatusOr<std::unique_ptr<Task>>(const OptionValues& options, const TaskRequest& request)>
      make;
  // Held-out units in the space.
  std::function<StatusOr<int64_t>(const OptionValues& options)> units;
};

std::vector<TaskEntry> ArithmeticTasks();  // products, chain_sum, modular, linear_equations
std::vector<TaskEntry> StringTasks();      // reverse, sort_digits, sort_letters
std::vector<TaskEntry> WordTasks();        // spell_backward, letter_counting
std::vector<TaskEntry> CountdownTasks();   // countdown
std::vector<TaskEntry> NumberTasks();      // number_sorting, gcd, lcm, base_conversion

// `style`: how prompts are worded.
Option StyleOption(const char* default_style);
inline bool IsTerse(const OptionValues& options) { return options.Text("style") == "terse"; }

// A task whose questions are decoded from (stratum, code) picks of a QuestionSpace. `strata`: how many
// questions each stratum has. `decode`: the question of a pick; different picks give different questions.
using StrataOf = StatusOr<std::vector<int64_t>> (*)(const OptionValues& options);
using DecodePick = Question (*)(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t seed);
TaskEntry SpaceTask(TaskInfo info, StrataOf strata, DecodePick decode);

}  // namespace tidepool::tasks
