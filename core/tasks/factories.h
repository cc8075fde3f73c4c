#pragma once
// The table behind MakeTask: one entry a task. Each file of tasks gives its entries; registry.cc
// puts them together.

#include <memory>
#include <vector>

#include "core/tasks/question_space.h"
#include "core/tasks/task.h"

namespace tidepool::tasks {

struct TaskEntry {
  TaskInfo info;
  // Options are checked; may still refuse combinations (kInvalidArgument, "NAME: ...").
  StatusOr<std::unique_ptr<Task>> (*make)(const OptionValues& options, const TaskRequest& request) = nullptr;
  // Held-out units in the space.
  StatusOr<int64_t> (*units)(const OptionValues& options) = nullptr;
};

std::vector<TaskEntry> ArithmeticTasks();  // products, chain_sum, modular, linear_equations
std::vector<TaskEntry> StringTasks();      // reverse, sort_digits, sort_letters
std::vector<TaskEntry> WordTasks();        // spell_backward, letter_counting
std::vector<TaskEntry> CountdownTasks();   // countdown
std::vector<TaskEntry> NumberTasks();      // number_sorting, gcd, lcm, base_conversion

// `style`: how prompts are worded.
Option StyleOption(const char* default_style);

// A task whose questions are decoded from (stratum, code) picks of a QuestionSpace.
class SpaceTask : public Task {
 public:
  explicit SpaceTask(QuestionSpace space) : space_(std::move(space)) {}
  [[nodiscard]] int64_t train_size() const final { return space_.train_size(); }
  [[nodiscard]] int64_t held_out_size() const final { return space_.held_out_size(); }
  [[nodiscard]] Question Train(int64_t index) const final { return Decode(space_.Train(index)); }
  [[nodiscard]] Question HeldOut(int64_t index) const final { return Decode(space_.HeldOut(index)); }

 protected:
  // Different picks give different questions.
  [[nodiscard]] virtual Question Decode(const QuestionSpace::Pick& pick) const = 0;

 private:
  QuestionSpace space_;
};

// What a SpaceTask class T needs: T::Strata(options) -> StatusOr<vector<int64_t>>, and a
// constructor T(space, options, seed).
template <typename T>
StatusOr<std::unique_ptr<Task>> MakeSpaceTask(const OptionValues& options, const TaskRequest& request) {
  TP_ASSIGN_OR_RETURN(std::vector<int64_t> strata, T::Strata(options));
  TP_ASSIGN_OR_RETURN(QuestionSpace space,
                      QuestionSpace::Create(std::move(strata), request.size, request.held_out, request.seed));
  std::unique_ptr<Task> task = std::make_unique<T>(std::move(space), options, request.seed);
  return task;
}

template <typename T>
StatusOr<int64_t> CountSpace(const OptionValues& options) {
  TP_ASSIGN_OR_RETURN(const std::vector<int64_t> strata, T::Strata(options));
  int64_t total = 0;
  for (const int64_t n : strata) total = SaturatingAdd(total, n);
  return total;
}

}  // namespace tidepool::tasks
