#include "core/policy/player.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/policy/distribution.h"

namespace tidepool::policy {
namespace {

using environments::InstanceState;
using environments::VectorEnvironment;

struct Scene {
  environments::VectorOptions environment;
  PolicySpec spec;
  std::unique_ptr<model::Weights> weights;
};

Scene Make(const std::string& name, int64_t limit = 0) {
  Scene s;
  s.environment = {.name = name, .max_episode_steps = limit, .seed = 4};
  const auto found = environments::FindVectorEnvironment(s.environment);
  EXPECT_TRUE(found.ok());
  s.spec = {.observation_size = found->observation_size,
            .actions = found->actions,
            .continuous = found->continuous,
            .hidden = {16, 16},
            .environment = name};
  auto weights = model::Weights::FromLayout(PolicyLayout(s.spec), model::DType::kFloat32);
  EXPECT_TRUE(weights.ok());
  s.weights = std::move(*weights);
  InitializePolicy(s.spec, 1, *s.weights);
  return s;
}

std::vector<InstanceState> Starts(const Scene& s, std::vector<uint64_t> indices) {
  auto made = VectorEnvironment::Create(s.environment, indices);
  EXPECT_TRUE(made.ok());
  return (*made)->states();
}

std::vector<PlayedFragment> PlayAll(Player& player) {
  std::vector<PlayedFragment> out;
  while (player.HasWork()) {
    for (PlayedFragment& p : player.Step()) out.push_back(std::move(p));
  }
  return out;
}

TEST(PlayerTest, FragmentsAreTheSameAloneAndTogether) {
  for (const char* name : {"cartpole", "pendulum", "frozen_lake_grid"}) {
    Scene s = Make(name);
    LocalHost host(s.environment);
    Player together(s.spec, *s.weights, host, 7);
    for (int64_t o = 0; o < 3; ++o) {
      ASSERT_TRUE(
          together
              .Add({.tid = {o, 0, 0},
                    .steps = 40 + 10 * o,
                    .starts = Starts(s, {static_cast<uint64_t>(2 * o), static_cast<uint64_t>(2 * o + 1)})})
              .ok());
    }
    const auto all = PlayAll(together);
    ASSERT_EQ(all.size(), 3U);
    for (const PlayedFragment& p : all) {
      ASSERT_TRUE(p.status.ok()) << p.status.message();
      EXPECT_TRUE(CheckFragment(p.fragment, s.spec).ok());
      Player alone(s.spec, *s.weights, host, 7);
      const int64_t o = p.tid.ordinal;
      ASSERT_TRUE(
          alone
              .Add({.tid = p.tid,
                    .steps = 40 + 10 * o,
                    .starts = Starts(s, {static_cast<uint64_t>(2 * o), static_cast<uint64_t>(2 * o + 1)})})
              .ok());
      EXPECT_EQ(PlayAll(alone).front().fragment, p.fragment);
    }
    EXPECT_EQ(host.sessions(), 0);
  }
}

TEST(PlayerTest, ALaneGoesOnWhereItsLastFragmentEnded) {
  Scene s = Make("cartpole");
  LocalHost host(s.environment);
  Player player(s.spec, *s.weights, host, 7);
  ASSERT_TRUE(player.Add({.tid = {0, 0, 0}, .steps = 30, .starts = Starts(s, {0, 1, 2})}).ok());
  const Fragment first = PlayAll(player).front().fragment;
  ASSERT_TRUE(player.Add({.tid = {1, 0, 0}, .steps = 30, .starts = first.ends}).ok());
  const Fragment second = PlayAll(player).front().fragment;
  const size_t row = 3 * 4;
  EXPECT_TRUE(std::equal(first.observations.end() - static_cast<int64_t>(row), first.observations.end(),
                         second.observations.begin()));
}

// What the trainer recomputes from the same weights is what was recorded.
TEST(PlayerTest, RecordedLogProbsAreThoseOfAForwardOverTheWholeFragment) {
  for (const char* name : {"cartpole", "pendulum"}) {
    Scene s = Make(name);
    LocalHost host(s.environment);
    Player player(s.spec, *s.weights, host, 7);
    ASSERT_TRUE(player.Add({.tid = {0, 0, 0}, .steps = 100, .starts = Starts(s, {0, 1, 2})}).ok());
    const Fragment f = PlayAll(player).front().fragment;
    Network network(s.spec, *s.weights);
    std::vector<float> heads, values;
    network.Forward(f.observations, heads, values);
    EXPECT_EQ(values, f.values);
    const auto log_std = s.spec.continuous ? network.log_std() : std::span<const float>();
    const auto width = static_cast<size_t>(s.spec.actions);
    for (size_t c = 0; c < f.log_probs.size(); ++c) {
      EXPECT_EQ(static_cast<float>(Evaluate(s.spec, std::span(heads).subspan(c * width, width), log_std,
                                            std::span(f.actions).subspan(c, 1))
                                       .logp),
                f.log_probs[c]);
    }
  }
}

TEST(PlayerTest, AnEvaluationEndsWithItsEpisode) {
  Scene s = Make("cartpole");
  LocalHost host(s.environment);
  Player player(s.spec, *s.weights, host, 7);
  for (int64_t q = 0; q < 5; ++q) {
    ASSERT_TRUE(player
                    .Add({.tid = {q, 0, SampleId::kEvalSample},
                          .steps = 500,
                          .greedy = true,
                          .episode = true,
                          .starts = Starts(s, {static_cast<uint64_t>(100 + q)})})
                    .ok());
  }
  for (const PlayedFragment& p : PlayAll(player)) {
    ASSERT_EQ(p.fragment.scores.size(), 1U);
    EXPECT_EQ(p.fragment.scores[0], static_cast<double>(p.fragment.steps));  // a point a step
    EXPECT_NE(p.fragment.flags.back(), 0);
  }
}

// A host that goes away after some steps.
class LostHost : public LocalHost {
 public:
  LostHost(const environments::VectorOptions& options, int after) : LocalHost(options), left_(after) {}
  StatusOr<std::vector<Moved>> Step(const std::vector<Action>& actions) override {
    if (left_-- <= 0) return Unavailable("gone");
    return LocalHost::Step(actions);
  }

 private:
  int left_;
};

TEST(PlayerTest, LostEnvironmentsGiveEveryFragmentBack) {
  Scene s = Make("cartpole");
  LostHost host(s.environment, 10);
  Player player(s.spec, *s.weights, host, 7);
  for (int64_t o = 0; o < 2; ++o)
    ASSERT_TRUE(
        player.Add({.tid = {o, 0, 0}, .steps = 50, .starts = Starts(s, {static_cast<uint64_t>(o)})}).ok());
  const auto all = PlayAll(player);
  ASSERT_EQ(all.size(), 2U);
  for (const PlayedFragment& p : all) EXPECT_EQ(p.status.code(), StatusCode::kUnavailable);
}

// The second session's task breaks; the others go on.
class BreakingHost : public LocalHost {
 public:
  using LocalHost::LocalHost;
  StatusOr<std::vector<Moved>> Step(const std::vector<Action>& actions) override {
    auto moved = LocalHost::Step(actions);
    if (moved.ok() && moved->size() == 2)
      (*moved)[1] = {.session = (*moved)[1].session, .status = DataLoss("the reward nan"), .step = {}};
    return moved;
  }
};

TEST(PlayerTest, ATaskThatBreaksInOneFragmentTakesNoOtherAlong) {
  Scene s = Make("cartpole");
  BreakingHost host(s.environment);
  Player player(s.spec, *s.weights, host, 7);
  for (int64_t o = 0; o < 2; ++o)
    ASSERT_TRUE(
        player.Add({.tid = {o, 0, 0}, .steps = 50, .starts = Starts(s, {static_cast<uint64_t>(o)})}).ok());
  const auto all = PlayAll(player);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].tid.ordinal, 1);
  EXPECT_EQ(all[0].status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(all[0].status.message(), "the reward nan");
  EXPECT_TRUE(all[1].status.ok());
  EXPECT_EQ(host.sessions(), 0);
}

TEST(PlayerTest, CancelledAndDrainedFragmentsLeaveNothing) {
  Scene s = Make("cartpole");
  LocalHost host(s.environment);
  Player player(s.spec, *s.weights, host, 7);
  for (int64_t o = 0; o < 3; ++o)
    ASSERT_TRUE(
        player.Add({.tid = {o, 0, 0}, .steps = 50, .starts = Starts(s, {static_cast<uint64_t>(o)})}).ok());
  (void)player.Step();
  EXPECT_EQ(player.Add({.tid = {0, 0, 0}, .steps = 50, .starts = Starts(s, {0})}).code(),
            StatusCode::kAlreadyExists);
  EXPECT_TRUE(player.Cancel({1, 0, 0}, 0));
  EXPECT_FALSE(player.Cancel({1, 0, 0}, 0));
  EXPECT_EQ(player.Drain().size(), 2U);
  EXPECT_EQ(host.sessions(), 0);
  EXPECT_FALSE(player.HasWork());
}

TEST(FragmentTest, BytesComeBackAndDamageIsFound) {
  Scene s = Make("pendulum", 20);
  LocalHost host(s.environment);
  Player player(s.spec, *s.weights, host, 7);
  ASSERT_TRUE(player.Add({.tid = {0, 0, 0}, .steps = 50, .starts = Starts(s, {0, 1})}).ok());
  const Fragment f = PlayAll(player).front().fragment;
  EXPECT_EQ(f.final_observations.size(), 4U * 3U);
  const std::string bytes = EncodeFragment(f);
  EXPECT_LE(static_cast<int64_t>(bytes.size()), FragmentBytes(s.spec, 50, 2));
  const auto back = DecodeFragment(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, f);
  for (size_t cut = 0; cut < bytes.size(); cut += 7)
    EXPECT_FALSE(DecodeFragment(std::string_view(bytes).substr(0, cut)).ok());
  EXPECT_FALSE(DecodeFragment(bytes + "x").ok());
  Fragment bad = f;
  bad.flags[3] = 3;
  EXPECT_EQ(CheckFragment(bad, s.spec).code(), StatusCode::kInvalidArgument);
  bad = f;
  bad.rewards[0] = NAN;
  EXPECT_EQ(CheckFragment(bad, s.spec).code(), StatusCode::kInvalidArgument);
  bad = f;
  bad.final_observations.pop_back();
  EXPECT_EQ(CheckFragment(bad, s.spec).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::policy
