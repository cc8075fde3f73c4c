#include <gtest/gtest.h>

#include "core/tasks/reward.h"

namespace tidepool::tasks {
namespace {

Verdict Score(const RewardInput& input) {
  auto reward = MakeReward("my_reward");
  EXPECT_TRUE(reward.ok()) << reward.status().message();
  return (*reward)(input);
}

// To do: what your reward says of a few responses.
TEST(MyRewardTest, TheRightAnswerScoresMost) {
  RewardInput input{.prompt = "question",
                    .answer = "42",
                    .text = "42",
                    .response_tokens = 3,
                    .ended = true,
                    .max_new_tokens = 8};
  EXPECT_EQ(Score(input).score, 1);
  input.text = "forty-two";
  EXPECT_LT(Score(input).score, 1);
}

TEST(MyRewardTest, ARowThatCannotBeGradedIsNoZero) {
  EXPECT_EQ(Score({.prompt = "question", .text = "42", .ended = true}).outcome, Verdict::Outcome::kData);
}

}  // namespace
}  // namespace tidepool::tasks
