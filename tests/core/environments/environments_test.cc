#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/environments/control.h"
#include "core/environments/toy_text.h"

namespace tidepool::environments {
namespace {

TEST(CartPoleTest, WorkedNumbersFromRest) {
  Transition<4> s = StepCartPole({0, 0, 0, 0}, 1);
  const double first[4] = {0, 0.1951219512, 0, -0.2926829268},
               second[4] = {0.0039024390, 0.3902439024, -0.0058536585, -0.5853658537};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(s.state[i], first[i], 1e-9);
  s = StepCartPole(s.state, 1);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(s.state[i], second[i], 1e-9);
  EXPECT_EQ(s.reward, 1);
  EXPECT_FALSE(s.terminated);
}

TEST(CartPoleTest, PushingOneWayEndsBeforeTwelveSteps) {
  std::array<double, 4> state{};
  int steps = 0;
  for (bool done = false; !done; ++steps) {
    const Transition<4> s = StepCartPole(state, 1);
    state = s.state;
    done = s.terminated;
    ASSERT_LT(steps, 12);
  }
  EXPECT_GT(std::fabs(state[2]), 0.2094395);
}

TEST(PendulumTest, HangingStillCostsPiSquared) {
  const Transition<2> s = StepPendulum({3.0 * std::acos(-1.0), 0}, 0);  // wraps to -pi
  EXPECT_NEAR(s.reward, -std::acos(-1.0) * std::acos(-1.0), 1e-12);
  const Transition<2> pushed = StepPendulum({0, 0}, 100);  // torque is cut at 2
  EXPECT_NEAR(pushed.state[1], 0.3, 1e-12);
  EXPECT_NEAR(pushed.reward, -0.004, 1e-12);
}

TEST(MountainCarTest, TheLeftWallStopsTheCar) {
  const Transition<2> s = StepMountainCar({-1.2, -0.07}, 0);
  EXPECT_EQ(s.state[0], -1.2);
  EXPECT_EQ(s.state[1], 0);
  EXPECT_TRUE(StepMountainCar({0.499, 0.07}, 2).terminated);
}

TEST(AcrobotTest, RestIsAnEquilibriumAndAnyAngleEnds) {
  const Transition<4> s = StepAcrobot({0, 0, 0, 0}, 1);
  for (const double v : s.state) EXPECT_NEAR(v, 0, 1e-12);
  EXPECT_EQ(s.reward, -1);
  for (const double far : {1e6, 1e300, -1e300}) {
    const Transition<4> wrapped = StepAcrobot({far, -far, 0, 0}, 2);
    EXPECT_LE(std::fabs(wrapped.state[0]), 3.15);
  }
}

// Value of the best policy from the start, undiscounted, within `steps`.
double BestValue(const TransitionTable& table, int64_t start, int steps) {
  std::map<int64_t, double> value;
  for (int k = 0; k < steps; ++k) {
    std::map<std::pair<int64_t, int64_t>, double> q;
    for (const Outcome& o : table)
      q[{o.state, o.action}] += o.probability * (o.reward + (o.terminated ? 0 : value[o.next]));
    std::map<int64_t, double> next;
    for (const auto& [key, v] : q) {
      const auto [it, added] = next.try_emplace(key.first, v);
      if (!added) it->second = std::max(it->second, v);
    }
    value = next;
  }
  return value[start];
}

TEST(ToyTextTest, FrozenLakeHasItsKnownOptimum) {
  EXPECT_NEAR(BestValue(FrozenLake("4x4", true, 1.0 / 3).value(), 0, 100), 0.74, 0.01);
  EXPECT_NEAR(BestValue(FrozenLake("8x8", true, 1.0 / 3).value(), 0, 200), 0.91, 0.01);
  EXPECT_EQ(BestValue(FrozenLake("4x4", false, 1.0 / 3).value(), 0, 100), 1);
  EXPECT_EQ(FrozenLake("5x5", false, 1).status().code(), StatusCode::kUnimplemented);
}

TEST(ToyTextTest, ProbabilitiesSumToOne) {
  std::map<std::pair<int64_t, int64_t>, double> sums;
  for (const Outcome& o : FrozenLake("8x8", true, 0.8).value()) sums[{o.state, o.action}] += o.probability;
  for (const auto& [key, sum] : sums) EXPECT_NEAR(sum, 1, 1e-12);
}

}  // namespace
}  // namespace tidepool::environments
