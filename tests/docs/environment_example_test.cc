// The environment of docs/adding_an_environment.md, compiled as it stands there and played.

#include <gtest/gtest.h>

#include <set>

#include "core/environments/text_game.h"

namespace tidepool::environments {
namespace {

#include "adding_an_environment_0.inc"

const std::vector<TextEnvironmentInfo> kAdded = {
#include "adding_an_environment_1.inc"
};

std::unique_ptr<TextEnvironment> Guess() {
  auto options = tasks::OptionValues::Parse(kAdded[0].options, {{"most", "[40, 60]"}});
  EXPECT_TRUE(options.ok()) << options.status().ToString();
  auto made = kAdded[0].make(*options, 1);
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

}  // namespace
}  // namespace tidepool::environments
