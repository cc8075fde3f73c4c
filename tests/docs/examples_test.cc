// The C++ examples of the documentation, compiled as files of their kind and used as the pages say.

#include <gtest/gtest.h>

#include <set>

#include "adding_a_reward_0.inc"
#include "adding_a_task_0.inc"

namespace tidepool::tasks {
namespace {

TEST(DocsExampleTest, TheRewardScoresAnagrams) {
  const Reward reward = RewardPlugin_anagram().make("").value();
  RewardInput input;
  input.answer = "listen";
  input.text = " silent\n";
  input.ended = true;
  EXPECT_EQ(reward(input).score, 1);
  input.text = "listens";
  EXPECT_EQ(reward(input).score, 0);
  input.text = "silent";
  input.ended = false;
  EXPECT_EQ(reward(input).score, 0);
  input.answer.clear();
  EXPECT_EQ(reward(input).outcome, Verdict::Outcome::kData);
}

TEST(DocsExampleTest, TheTaskAsksForTwiceANumberAndRepeatsNothing) {
  const TaskPlugin added = TaskPlugin_twice();
  auto options = OptionValues::Parse(added.options, {{"digits", "[1, 2]"}, {"style", "\"terse\""}});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(*added.units(*options), 99);
  auto task = added.make(*options, {.size = 80, .held_out = 10, .seed = 5});
  ASSERT_TRUE(task.ok()) << task.status().ToString();
  std::set<std::string> prompts;
  for (int64_t i = 0; i < (*task)->train_size(); ++i) {
    const Question q = (*task)->Train(i);
    EXPECT_TRUE(prompts.insert(q.prompt).second) << q.prompt;
    const int64_t number = std::stoll(q.prompt.substr(2));
    EXPECT_EQ(q.prompt, "2*" + std::to_string(number) + "=");
    EXPECT_EQ(q.answer, std::to_string(2 * number));
  }
  for (int64_t i = 0; i < (*task)->held_out_size(); ++i)
    EXPECT_TRUE(prompts.insert((*task)->HeldOut(i).prompt).second);
}

}  // namespace
}  // namespace tidepool::tasks
