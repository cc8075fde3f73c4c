#include <gtest/gtest.h>

#include "core/environments/vector.h"

namespace tidepool::environments {
namespace {

// tests/core/environments/vector_test.cc takes in every control task of the table as well: same seed, same
// steps.
TEST(MyControlTest, TheRightActionsReachTheGoal) {
  const std::vector<uint64_t> instances = {0, 1, 2};
  const auto environment = VectorEnvironment::Create({.name = "my_control"}, instances);
  ASSERT_TRUE(environment.ok()) << environment.status().message();
  VectorStep step;
  std::vector<double> scores;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE((*environment)->Step(std::vector<float>(instances.size(), 1), step).ok());
    scores.insert(scores.end(), step.scores.begin(), step.scores.end());
  }
  ASSERT_FALSE(scores.empty());
  for (const double score : scores) EXPECT_GE(score, 0.3 - 1e-9);
}

}  // namespace
}  // namespace tidepool::environments
