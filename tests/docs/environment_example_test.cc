// The environments of docs/adding_an_environment.md and docs/adding_a_control_task.md, compiled as they stand
// there and played.

#include <gtest/gtest.h>

#include "adding_a_control_task_0.inc"
#include "adding_an_environment_0.inc"

namespace tidepool::environments {
namespace {

std::unique_ptr<TextEnvironment> Guess() {
  auto options = tasks::OptionValues::Parse(TextEnvironmentPlugin_guess().options, {{"most", "[40, 60]"}});
  EXPECT_TRUE(options.ok()) << options.status().ToString();
  auto made = TextEnvironmentPlugin_guess().make(*options, 1);
  EXPECT_TRUE(made.ok());
  return std::move(made).value();
}

TEST(DocsEnvironmentTest, AGoodPlayerFindsTheNumberInTime) {
  const auto environment = Guess();
  for (int64_t index = 0; index < 50; ++index) {
    const auto game = environment->Make(index % 2 == 0, index);
    (void)game->Reset();
    TextStep step;
    for (int64_t turn = 0; turn < environment->max_turns() && !step.done; ++turn)
      step = game->Step(game->Solve());
    EXPECT_TRUE(step.solved) << index;
    EXPECT_EQ(step.reward, 1);
  }
}

TEST(DocsEnvironmentTest, NothingThatIsSaidIsAnError) {
  const auto game = Guess()->Make(false, 0);
  const std::string first = game->Reset();
  for (const char* words : {"", "more", "-3", "99999999999999999999", "<answer></answer>"})
    EXPECT_EQ(game->Step(words).observation, "That is no number.");
  EXPECT_EQ(game->Step("<answer>1</answer>").observation.substr(0, 4), "More");
  EXPECT_EQ(game->Reset(), first);
}

TEST(DocsControlTaskTest, TheRightActionReachesTheGoal) {
  ControlPlugin plugin = ControlPlugin_corridor();
  const auto rules = plugin.make({}, plugin.spec);
  ASSERT_TRUE(rules.ok());
  MoveResult at{.state = (*rules)->Start(Rng(1))};
  const float right = 1;
  for (int i = 0; i < 8 && !at.terminated; ++i) at = (*rules)->Play(at.state, &right, Rng(1));
  EXPECT_TRUE(at.terminated);
  EXPECT_EQ(at.reward, 1);
}

}  // namespace
}  // namespace tidepool::environments
