#include <gtest/gtest.h>

#include <set>

#include "core/tasks/task.h"

namespace tidepool::tasks {
namespace {

// tests/core/tasks/task_test.cc takes in every task of the table as well: nothing repeats, nothing held out
// is trained on.
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
    EXPECT_EQ(q.answer, std::to_string(std::stoll(q.prompt) + 1)) << q.prompt;
  }
}

}  // namespace
}  // namespace tidepool::tasks
