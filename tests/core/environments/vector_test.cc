#include "core/environments/vector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <set>
#include <stdexcept>

#include "core/base/rng.h"
#include "core/base/running_call.h"
#include "core/environments/control.h"
#include "core/environments/control_tasks/control_plugin.h"

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
    EXPECT_EQ(*(*moved)->Observations(), a.observations);
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

// A task of one number that breaks one rule once it is at 3.
class BrokenTask : public Rules {
 public:
  enum class Fault { kReward, kState, kNan, kTooMany, kTooFew, kThrows, kThrowsANumber, kStart };
  explicit BrokenTask(Fault fault) : fault_(fault) {}
  std::array<double, 4> Start(Rng) const override { return {fault_ == Fault::kStart ? std::nan("") : 0}; }
  MoveResult Play(const std::array<double, 4>& state, const float*, Rng) const override {
    const bool now = state[0] == 2;
    if (now && fault_ == Fault::kThrows) throw std::runtime_error("no such place");
    if (now && fault_ == Fault::kThrowsANumber) throw 42;
    return {.state = {now && fault_ == Fault::kState ? std::nan("") : state[0] + 1},
            .reward = now && fault_ == Fault::kReward ? std::nan("") : 1.0};
  }
  void Observe(const std::array<double, 4>& state, float* out) const override {
    const bool now = state[0] == 3;
    if (now && fault_ == Fault::kTooFew) return;
    out[0] = now && fault_ == Fault::kNan ? std::nanf("") : 1.0F;
    if (now && fault_ == Fault::kTooMany) out[1] = out[2] = 1;
  }

 private:
  Fault fault_;
};

// What a plug-in does wrong is told with its file, the place and the value, and never reaches a fragment.
TEST(VectorEnvironmentTest, ATaskThatBreaksItsRulesIsNamedWithWhatItDid) {
  using Fault = BrokenTask::Fault;
  const std::vector<std::pair<Fault, std::string>> cases = {
      {Fault::kReward, "Play gave the reward nan for action 1, but a reward has to be a finite number"},
      {Fault::kState, "Play gave the state nan, 0, 0, 0 for action 1"},
      {Fault::kNan, "Observe gave nan as number 0"},
      {Fault::kTooMany, "Observe wrote at least 3 numbers where .observation_size is 1"},
      {Fault::kTooFew, "Observe did not write number 0 of 1"},
      {Fault::kThrows, "threw an exception: no such place"},
      {Fault::kThrowsANumber, "threw something that is no std::exception"}};
  for (const auto& [fault, said] : cases) {
    SCOPED_TRACE(said);
    ControlTask task{.spec = {.name = "broken",
                              .file = "control_tasks/broken.cc",
                              .observation_size = 1,
                              .actions = 2,
                              .max_episode_steps = 40},
                     .rules = std::make_shared<BrokenTask>(fault)};
    auto set = VectorEnvironment::Of(std::move(task), 1, std::vector<uint64_t>{7});
    ASSERT_TRUE(set.ok());
    ASSERT_TRUE((*set)->Observations().ok());
    const std::vector<float> action = {1};
    VectorStep step;
    ASSERT_TRUE((*set)->Step(action, step).ok());
    ASSERT_TRUE((*set)->Step(action, step).ok());
    const Status broke = (*set)->Step(action, step);
    EXPECT_EQ(broke.code(), StatusCode::kDataLoss);
    EXPECT_TRUE(broke.message().starts_with("control task broken (control_tasks/broken.cc)"))
        << broke.message();
    EXPECT_NE(broke.message().find(said), std::string::npos) << broke.message();
    if (said.find("threw") == std::string::npos) {
      EXPECT_NE(broke.message().find("; instance 7, step "), std::string::npos) << broke.message();
    }
  }
}

TEST(VectorEnvironmentTest, AStartThatIsNoStateIsRefusedLikeAnyOther) {
  ControlTask task{.spec = {.name = "broken", .file = "control_tasks/broken.cc", .observation_size = 1},
                   .rules = std::make_shared<BrokenTask>(BrokenTask::Fault::kStart)};
  const auto set = VectorEnvironment::Of(std::move(task), 1, std::vector<uint64_t>{7});
  EXPECT_EQ(set.status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(set.status().message().starts_with("control task broken (control_tasks/broken.cc): Start gave"))
      << set.status().message();
  EXPECT_TRUE(set.status().message().ends_with("instance 7, step 0 of its episode 0, state nan, 0, 0, 0"));
}

// Crashes in a step, in an observation, or writes far beyond the end of one.
class CrashingTask : public BrokenTask {
 public:
  enum class In { kPlay, kObserve, kBeyond };
  explicit CrashingTask(In in) : BrokenTask(Fault::kState), in_(in) {}
  MoveResult Play(const std::array<double, 4>& state, const float*, Rng) const override {
    if (in_ == In::kPlay) std::abort();
    return {.state = state};
  }
  void Observe(const std::array<double, 4>&, float* out) const override {
    if (in_ == In::kObserve) std::abort();
    for (int i = 0; in_ == In::kBeyond && i < 100'000; ++i) out[i] = 1;
  }

 private:
  In in_;
};

TEST(VectorEnvironmentDeathTest, ACrashNamesTheTaskAndWhereItWas) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto play = [](CrashingTask::In in) {
    RunningCall::TellCrashes();
    ControlTask task{.spec = {.name = "crash",
                              .file = "control_tasks/crash.cc",
                              .observation_size = 1,
                              .actions = 2,
                              .max_episode_steps = 40},
                     .rules = std::make_shared<CrashingTask>(in)};
    auto set = VectorEnvironment::Of(std::move(task), 1, std::vector<uint64_t>{7});
    VectorStep step;
    (void)(*set)->Step(std::vector<float>{1}, step);
  };
  const std::string said =
      "while it ran control task crash .control_tasks/crash.cc. on instance 7, step 0 of its episode 0";
  EXPECT_EXIT(play(CrashingTask::In::kPlay), testing::KilledBySignal(SIGABRT), said);
  EXPECT_EXIT(play(CrashingTask::In::kObserve), testing::KilledBySignal(SIGABRT), said);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they have words of their own
  EXPECT_EXIT(play(CrashingTask::In::kBeyond), testing::KilledBySignal(SIGSEGV), said);
#endif
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
