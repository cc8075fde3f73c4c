// What a task of a plug-in does wrong, where C++ code has it from MakeTask.

#include <gtest/gtest.h>

#include <string>

#include "core/base/limited_call.h"
#include "core/tasks/task.h"

namespace tidepool::tasks {
namespace {

const std::string kLabel = "task faulty_task (tests/plugins/faulty/faulty_task.cc)";

StatusOr<std::unique_ptr<Task>> Faulty(const std::string& option, const std::string& how) {
  return MakeTask({.name = "faulty_task", .options = {{option, "\"" + how + "\""}}, .held_out = 10});
}

std::string Thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const PluginThrew& threw) {
    return threw.what();
  }
  return "";
}

TEST(FaultyTaskTest, AQuestionThatThrowsIsNamed) {
  const auto task = Faulty("question", "throw");
  ASSERT_TRUE(task.ok()) << task.status().message();
  EXPECT_EQ(Thrown([&] { (void)(*task)->Train(10000); }),
            kLabel + " threw an exception on question 10000: no such place");
  EXPECT_EQ(Thrown([&] { (void)(*task)->HeldOut(9); }),
            kLabel + " threw an exception on held-out question 9: no such place");
}

TEST(FaultyTaskTest, ATaskThatIsNoneIsRefusedByName) {
  const std::string place = "task: faulty_task (tests/plugins/faulty/faulty_task.cc): ";
  EXPECT_EQ(Faulty("make", "none").status().message(), place + ".make gave no task");
  EXPECT_EQ(Faulty("sizes", "none").status().message(), place + "train_size() is 0, expected 1 or more");
  EXPECT_EQ(Faulty("sizes", "throw").status().message(),
            "task: " + kLabel + ": its train_size() threw an exception: no such place");
}

TEST(FaultyTaskDeathTest, WhatDoesNotComeBackEndsTheProcessByName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string late =
      "error: task faulty_task \\(tests/plugins/faulty/faulty_task.cc\\) did not return within 0.3 s \\(a "
      "key\\) on ";
  const auto hangs = [](const std::string& option, bool held_out) {
    const UsualLimitFor limit({0.3, "a key"});
    const auto task = Faulty(option, "hang");
    (void)(held_out ? (*task)->HeldOut(9) : (*task)->Train(10000));
  };
  EXPECT_EXIT(hangs("question", false), testing::ExitedWithCode(3), late + "question 10000;");
  EXPECT_EXIT(hangs("question", true), testing::ExitedWithCode(3), late + "held-out question 9;");
  EXPECT_EXIT(hangs("sizes", false), testing::ExitedWithCode(3),
              late + "the options of the job \\(its train_size");
}

}  // namespace
}  // namespace tidepool::tasks
