// The second example of docs/adding_a_control_task.md, as it stands there.
#include <gtest/gtest.h>

#include <algorithm>

#include "adding_a_control_task_1.inc"

namespace tidepool::policy {
namespace {

TEST(AddingAControlTaskTest, TheExampleLearnsTheShortestWay) {
  const auto score = LearnTheCorridor(25);
  ASSERT_TRUE(score.ok()) << score.status().message();
  EXPECT_GT(*score, 0.6);  // four steps: 1 - 3 x 0.1
}

}  // namespace
}  // namespace tidepool::policy
