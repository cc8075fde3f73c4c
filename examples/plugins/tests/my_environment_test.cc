#include <gtest/gtest.h>

#include "core/environments/text_game.h"

namespace tidepool::environments {
namespace {

// tests/core/environments/text_game_test.cc takes in every environment of the table as well: a replay says
// what the first run said, no held-out game is trained on.
TEST(MyEnvironmentTest, AGoodPlayerIsRightAndNothingThatIsSaidIsAnError) {
  const auto environment = MakeTextEnvironment("my_environment", {}, /*seed=*/1);
  ASSERT_TRUE(environment.ok()) << environment.status().message();
  for (int64_t index = 0; index < 20; ++index) {
    const auto game = (*environment)->Make(index % 2 == 0, index);
    (void)game->Reset();
    (void)game->Step("neither here nor there");
    (void)game->Reset();
    TextStep step;
    double reward = 0;
    for (int64_t turn = 0; turn < (*environment)->max_turns() && !step.done; ++turn) {
      step = game->Step(game->Solve());
      reward += step.reward;
    }
    EXPECT_TRUE(step.solved) << index;
    EXPECT_NEAR(reward, 1, 1e-9);
  }
}

}  // namespace
}  // namespace tidepool::environments
