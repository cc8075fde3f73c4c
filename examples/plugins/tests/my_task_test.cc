#include <gtest/gtest.h>

#include <set>

#include "core/tasks/reward.h"
#include "core/tasks/task.h"

namespace tidepool::tasks {
namespace {

// To do: say what is right in a few questions of yours. tests/core/tasks/task_test.cc takes in every task of
// the table as well: nothing repeats, nothing held out is trained on.
TEST(MyTaskTest, AsksWhatItShould) {
  const auto task = MakeTask({.name = "my_task",
                              .options = {{"digits", "[1, 2]"}, {"style", "\"terse\""}},
                              .size = 20,
                              .held_out = 5,
                              .seed = 1});
  ASSERT_TRUE(task.ok()) << task.status().message();
  std::set<std::string> prompts;
  for (int64_t i = 0; i < (*task)->train_size(); ++i) {
    const Question q = (*task)->Train(i);
    EXPECT_TRUE(prompts.insert(q.prompt).second) << q.prompt << " twice";
    RewardInput input{.prompt = q.prompt, .answer = q.answer, .text = q.answer, .ended = true};
    input.fields = q.fields;
    EXPECT_EQ(ExactAnswer(input).score, 1) << q.prompt << " is not answered by " << q.answer;
    input.text = "I do not know";
    EXPECT_EQ(ExactAnswer(input).score, 0) << q.prompt;
  }
}

}  // namespace
}  // namespace tidepool::tasks
