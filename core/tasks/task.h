#pragma once
// Generated questions with answers that a program can check: what a policy is trained and judged on
// when no data set is at hand.
//
// A question is a pure function of (task, options, size, held_out, seed, index): no state, no
// clock, the same on every machine. Held-out questions are never among the training ones, by
// construction: both are disjoint slices of one permutation of the task's question space (see
// core/tasks/question_space.h; `products` holds out unordered pairs). Tasks are immutable after
// creation, so every const function may be called from any thread.
//
//   TP_ASSIGN_OR_RETURN(auto task, MakeTask({.name = "products", .options = {{"factors", "[2, 9]"}},
//                                            .held_out = 9, .seed = 1}));
//   task->Train(0).prompt == "What is 7 * 8? Reply with only the number."
//
// A new task: one file in core/tasks/tasks/ (docs/adding_a_task.md).

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fields.h"
#include "core/base/status.h"
#include "core/tasks/options.h"

namespace tidepool::tasks {

struct Message {
  std::string role;  // system | user | assistant | tool
  std::string content;
  friend bool operator==(const Message&, const Message&) = default;
};
TP_FIELDS(Message, role, content)

// One row of data, generated or read from JSONL.
struct Question {
  std::string prompt;             // plain text; chat models wrap it as one user message. With
                                  // `messages`: the last user turn's text, for logs
  std::vector<Message> messages;  // the conversation, where the row gave one; else empty
  std::string answer;
  // What else graders need. `answer_rule` names how `exact_answer` compares (core/tasks/reward.h).
  // JSONL fields that are not strings are kept as JSON text.
  std::map<std::string, std::string> fields;
  // What a supervised job learns of `messages`: assistant turns from this one on. -1: `messages` are the
  // prompt, and what is learned is `answer`.
  int64_t learned_from = -1;
  // Of a pair in which the prompt is followed by more than one turn on either side: all of them. Else empty,
  // and the two answers are `answer` and fields["rejected"], which are the last turns otherwise.
  std::vector<Message> chosen_turns, rejected_turns;
  // `prompt` is text as it stands: no chat template is put around it. In sft it is learned whole.
  bool raw = false;
  friend bool operator==(const Question&, const Question&) = default;
};

// What MakeTask gives calls the plug-in for its questions in the time that cluster.plugin_timeout_s gives
// (core/base/limited_call.h). PluginThrew: it threw.
class Task {
 public:
  virtual ~Task() = default;
  [[nodiscard]] virtual int64_t train_size() const = 0;             // distinct training questions, > 0
  [[nodiscard]] virtual int64_t held_out_size() const = 0;          // >= 0
  [[nodiscard]] virtual Question Train(int64_t index) const = 0;    // requires 0 <= index < train_size()
  [[nodiscard]] virtual Question HeldOut(int64_t index) const = 0;  // requires 0 <= index < held_out_size()
};

struct TaskRequest {
  std::string name;
  // Option name -> JSON text, as DataConfig::options has it; absent ones take their default.
  std::map<std::string, std::string> options = {};
  int64_t size = 4096;     // distinct training questions; fewer where the space has fewer
  int64_t held_out = 256;  // in the task's unit (products: unordered pairs); at most half the space
  uint64_t seed = 1;
};

struct TaskInfo {
  std::string name;
  std::string doc;            // one line
  std::string held_out_unit;  // "questions", "unordered pairs"
  std::vector<Option> options;
  std::string file;  // that defines it
};

// All tasks, by name.
const std::vector<TaskInfo>& ListTasks();
// Null if there is none of that name.
const TaskInfo* FindTask(std::string_view name);
// "task NAME (FILE)", for messages.
std::string TaskLabel(std::string_view name);

// The only door to a task. kNotFound: no such task (the nearest name is in the message). kInvalidArgument: an
// option is unknown or out of range, or more is held out than half the space; the message starts with the
// option's name; or the plug-in threw. kFailedPrecondition: it gave no task, or one without questions.
StatusOr<std::unique_ptr<Task>> MakeTask(const TaskRequest& request);

// Number of held-out units in the space that the options describe (2^62 stands for "or more").
StatusOr<int64_t> CountUnits(const std::string& name, const std::map<std::string, std::string>& options);

}  // namespace tidepool::tasks
