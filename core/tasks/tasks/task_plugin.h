#pragma once
// One generated task, as the files of this folder define them (docs/adding_a_task.md). core/tasks/task.h says
// what a task promises: a question is a pure function of the options, the seed and its index, and what is
// held out is never trained on.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/plugin.h"
#include "core/tasks/question_space.h"
#include "core/tasks/task.h"

namespace tidepool::tasks {

struct TaskPlugin {
  std::string doc;                          // one line
  std::string held_out_unit = "questions";  // what data.held_out counts
  std::vector<Option> options = {};         // keys of `data`
  // Options are checked; may still refuse combinations (kInvalidArgument, "NAME: ...").
  std::function<StatusOr<std::unique_ptr<Task>>(const OptionValues& options, const TaskRequest& request)>
      make = {};
  // Held-out units in the space.
  std::function<StatusOr<int64_t>(const OptionValues& options)> units = {};
};

std::span<const Plugin<TaskPlugin>> TaskPlugins();  // the table that the build writes

// `style`: how prompts are worded.
Option StyleOption(const char* default_style);
inline bool IsTerse(const OptionValues& options) { return options.Text("style") == "terse"; }

// A question whose answer is a number.
Question NumberQuestion(std::string prompt, int64_t answer);

// A task whose questions are decoded from (stratum, code) picks of a QuestionSpace. `strata`: how many
// questions each stratum has. `decode`: the question of a pick; different picks give different questions.
// `about`: doc, held_out_unit and options.
using StrataOf = StatusOr<std::vector<int64_t>> (*)(const OptionValues& options);
using DecodePick = Question (*)(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t seed);
TaskPlugin SpaceTask(TaskPlugin about, StrataOf strata, DecodePick decode);

}  // namespace tidepool::tasks
