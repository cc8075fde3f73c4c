#include "core/environments/vector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/base/rng.h"
#include "core/environments/control.h"

namespace tidepool::environments {
namespace {

std::vector<float> Actions(const VectorSpec& spec, size_t instances, Rng& rng) {
  std::vector<float> out;
  for (size_t i = 0; i < instances * static_cast<size_t>(spec.action_size()); ++i) {
    out.push_back(spec.continuous ? static_cast<float>(3 * rng.Normal())
                                  : static_cast<float>(rng.Below(spec.actions)));
  }
  return out;
}

// A set of instances equals each instance alone, episode after episode.
TEST(VectorEnvironmentTest, InstancesDoNotDependOnEachOther) {
  for (const VectorSpec& listed : ListVectorEnvironments()) {
    const VectorOptions options{.name = listed.name, .max_episode_steps = 40, .seed = 9};
    const std::vector<uint64_t> indices = {3, 4, 100};
    auto together = VectorEnvironment::Create(options, indices);
    ASSERT_TRUE(together.ok());
    std::vector<std::unique_ptr<VectorEnvironment>> alone;
    for (const uint64_t index : indices)
      alone.push_back(std::move(*VectorEnvironment::Create(options, std::vector<uint64_t>{index})));
    Rng rng(1);
    VectorStep all, one;
    const VectorSpec& spec = (*together)->spec();
    const auto width = static_cast<size_t>(spec.observation_size),
               acted = static_cast<size_t>(spec.action_size());
    for (int t = 0; t < 300; ++t) {
      const std::vector<float> actions = Actions(spec, 3, rng);
      ASSERT_TRUE((*together)->Step(actions, all).ok());
      for (size_t i = 0; i < 3; ++i) {
        ASSERT_TRUE(alone[i]->Step(std::span(actions).subspan(i * acted, acted), one).ok());
        EXPECT_EQ(one.rewards[0], all.rewards[i]);
        EXPECT_EQ(one.flags[0], all.flags[i]);
        for (size_t k = 0; k < width; ++k) EXPECT_EQ(one.observations[k], all.observations[i * width + k]);
        EXPECT_EQ(alone[i]->states()[0], (*together)->states()[i]);
      }
    }
  }
}

// CartPole by hand: the scalar step function, its own episode ends, and the limit told apart from the fall.
TEST(VectorEnvironmentTest, EqualsScalarSteppingWithResets) {
  const VectorOptions options{.name = "cartpole", .max_episode_steps = 25, .seed = 2};
  auto set = VectorEnvironment::Create(options, std::vector<uint64_t>{7});
  ASSERT_TRUE(set.ok());
  std::array<double, 4> state = (*set)->states()[0].state;
  Rng rng(4);
  VectorStep step;
  int64_t steps = 0, episode = 0, terminated = 0, truncated = 0;
  for (int t = 0; t < 2000; ++t) {
    // Now and then the balancing choice, so that both ends occur.
    const float action =
        rng.Chance(0.2) ? (state[2] + 0.3 * state[3] > 0 ? 1.0F : 0.0F) : static_cast<float>(rng.Below(2));
    const Transition<4> expected = StepCartPole(state, static_cast<int64_t>(action));
    ASSERT_TRUE((*set)->Step(std::span(&action, 1), step).ok());
    ++steps;
    EXPECT_EQ(step.rewards[0], 1.0F);
    const uint8_t flag = expected.terminated ? kTerminated : steps == 25 ? kTruncated : 0;
    ASSERT_EQ(step.flags[0], flag);
    if (flag == 0) {
      state = expected.state;
      EXPECT_TRUE(step.final_observations.empty());
    } else {
      (flag == kTerminated ? terminated : truncated) += 1;
      for (size_t k = 0; k < 4; ++k)
        EXPECT_EQ(step.final_observations[k], static_cast<float>(expected.state[k]));
      EXPECT_EQ(step.scores[0], static_cast<double>(steps));
      steps = 0;
      ++episode;
      state = (*set)->states()[0].state;
      for (const double x : state) EXPECT_LE(std::fabs(x), 0.05);
    }
    EXPECT_EQ((*set)->states()[0].episode, episode);
    for (size_t k = 0; k < 4; ++k) EXPECT_EQ(step.observations[k], static_cast<float>(state[k]));
  }
  EXPECT_GT(terminated, 5);
  EXPECT_GT(truncated, 5);
}

TEST(VectorEnvironmentTest, GoesOnFromItsStates) {
  for (const VectorSpec& listed : ListVectorEnvironments()) {
    const VectorOptions options{.name = listed.name, .seed = 5};
    auto whole = VectorEnvironment::Create(options, std::vector<uint64_t>{0, 1});
    Rng rng(3);
    VectorStep a, b;
    for (int t = 0; t < 120; ++t) ASSERT_TRUE((*whole)->Step(Actions((*whole)->spec(), 2, rng), a).ok());
    auto moved = VectorEnvironment::Resume(options, (*whole)->states());
    ASSERT_TRUE(moved.ok());
    EXPECT_EQ((*moved)->Observations(), a.observations);
    for (int t = 0; t < 300; ++t) {
      const std::vector<float> actions = Actions((*whole)->spec(), 2, rng);
      ASSERT_TRUE((*whole)->Step(actions, a).ok());
      ASSERT_TRUE((*moved)->Step(actions, b).ok());
      ASSERT_EQ(a.observations, b.observations);
      ASSERT_EQ(a.flags, b.flags);
    }
    EXPECT_EQ((*whole)->states(), (*moved)->states());
  }
}

TEST(VectorEnvironmentTest, EpisodesAndInstancesStartApart) {
  std::set<std::array<double, 4>> starts;
  for (int64_t episode = 0; episode < 5; ++episode) {
    auto set =
        VectorEnvironment::Create({.name = "acrobot", .seed = 5}, std::vector<uint64_t>{0, 1, 2, 3}, episode);
    for (const InstanceState& s : (*set)->states()) starts.insert(s.state);
  }
  EXPECT_EQ(starts.size(), 20U);
  EXPECT_EQ(
      (*VectorEnvironment::Create({.name = "acrobot", .seed = 5}, std::vector<uint64_t>{2}, 3))->states()[0],
      (*VectorEnvironment::Create({.name = "acrobot", .seed = 5}, std::vector<uint64_t>{0, 2}, 3))
          ->states()[1]);
}

// One in three slips each way: counted over many instances.
TEST(VectorEnvironmentTest, FrozenLakeSlips) {
  constexpr size_t kInstances = 3000;
  std::vector<uint64_t> indices(kInstances);
  for (size_t i = 0; i < kInstances; ++i) indices[i] = i;
  auto set = VectorEnvironment::Create({.name = "frozen_lake_grid", .seed = 1}, indices);
  VectorStep step;
  ASSERT_TRUE((*set)
                  ->Step(std::vector<float>(kInstances, 2.0F), step)
                  .ok());  // right: down, right or up from the corner
  std::map<int64_t, int> places;
  for (const InstanceState& s : (*set)->states()) ++places[static_cast<int64_t>(s.state[0])];
  for (const int64_t place : {0, 1, 4})
    EXPECT_NEAR(places[place] / static_cast<double>(kInstances), 1.0 / 3, 0.03);
  EXPECT_EQ(places.size(), 3U);
}

TEST(VectorEnvironmentTest, SaysWhatIsWrong) {
  EXPECT_EQ(FindVectorEnvironment({.name = "cartpol"}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FindVectorEnvironment({.name = "cartpole", .options = {{"map", "4x4"}}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(FindVectorEnvironment({.name = "frozen_lake_grid", .options = {{"map", "5x5"}}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      FindVectorEnvironment({.name = "frozen_lake_grid", .options = {{"map", "8x8"}}})->observation_size, 64);
  auto set = VectorEnvironment::Create({.name = "cartpole"}, std::vector<uint64_t>{0});
  const InstanceState before = (*set)->states()[0];
  VectorStep step;
  for (const std::vector<float>& actions :
       {std::vector<float>{}, {2.0F}, {0.5F}, {-1.0F}, {NAN}, {0.0F, 1.0F}}) {
    EXPECT_EQ((*set)->Step(actions, step).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ((*set)->states()[0], before);
  InstanceState bad = before;
  bad.state[1] = INFINITY;
  EXPECT_EQ(VectorEnvironment::Resume({.name = "cartpole"}, {bad}).status().code(),
            StatusCode::kInvalidArgument);
  bad = before;
  bad.steps = 500;
  EXPECT_EQ(VectorEnvironment::Resume({.name = "cartpole"}, {bad}).status().code(),
            StatusCode::kInvalidArgument);
  bad = {.state = {16, 0, 0, 0}};
  EXPECT_EQ(VectorEnvironment::Resume({.name = "frozen_lake_grid"}, {bad}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::environments
