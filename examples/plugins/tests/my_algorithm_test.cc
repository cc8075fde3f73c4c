#include <gtest/gtest.h>

#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

// tests/core/algorithms compares the gradient of every loss of the table with finite differences as well.
TEST(MyAlgorithmTest, CanBeNamedInAJob) {
  AlgorithmConfig config;
  config.name = "my_algorithm";
  const auto resolved = Resolve(config, /*max_new_tokens=*/8);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->policy.loss->name, "my_algorithm");
}

// To do: what your estimator says of a few rewards.
TEST(MyAlgorithmTest, TheMeanOfAGroupIsTheBaseline) {
  const AdvantageEntry* estimator = FindAdvantage("my_algorithm");
  if (estimator == nullptr) GTEST_SKIP() << "a loss alone: remove this test";
  const Cells cells = Cells::Packed({0, 1, 3});
  const std::vector<double> rewards = {1, 0.25};
  const std::vector<int64_t> group = {0, 0};
  const auto advantages = estimator->compute({}, {.cells = &cells, .rewards = rewards, .group = group});
  EXPECT_EQ(advantages, (std::vector<double>{0.375, -0.375, -0.375}));
}

}  // namespace
}  // namespace tidepool::algorithms
