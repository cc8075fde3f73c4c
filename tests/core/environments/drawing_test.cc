#include "core/environments/drawing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace tidepool::environments {
namespace {

// Values of the animations of an attribute, in the order of the picture.
std::vector<std::vector<std::string>> Animated(const std::string& svg, const std::string& what) {
  std::vector<std::vector<std::string>> out;
  for (size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) {
    const size_t begin = svg.find("values=\"", at) + 8, end = svg.find('"', begin);
    auto& values = out.emplace_back();
    for (size_t from = begin; from <= end;) {
      const size_t to = std::min(svg.find(';', from), end);
      values.push_back(svg.substr(from, to - from));
      from = to + 1;
    }
  }
  return out;
}

// An episode of instance 3 with one action over and over.
std::vector<float> Repeated(const VectorOptions& options, float action) {
  const std::vector<uint64_t> index = {3};
  auto environment = VectorEnvironment::Create(options, index);
  std::vector<float> actions;
  VectorStep step;
  do {
    actions.push_back(action);
    EXPECT_TRUE((*environment)->Step(std::vector<float>{action}, step).ok());
  } while (step.flags.front() == 0);
  return actions;
}

TEST(DrawingTest, EveryEnvironmentHasAPictureOfAllItsSteps) {
  for (const VectorSpec& spec : ListVectorEnvironments()) {
    SCOPED_TRACE(spec.name);
    const VectorOptions options{.name = spec.name, .options = {}, .max_episode_steps = 30, .seed = 2};
    const std::vector<float> actions = Repeated(options, 1);
    const auto frames = ReplayEpisode(options, 3, actions);
    ASSERT_TRUE(frames.ok()) << frames.status().message();
    EXPECT_EQ(frames->rewards.size(), actions.size());
    EXPECT_EQ(frames->observations.size(), (actions.size() + 1) * static_cast<size_t>(spec.observation_size));
    const std::string svg = DrawEpisode(*frames, "a <b> & c");
    EXPECT_TRUE(svg.starts_with("<svg xmlns=")) << svg.substr(0, 80);
    EXPECT_TRUE(svg.ends_with("</svg>\n"));
    EXPECT_NE(svg.find("a &lt;b> &amp; c"), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("script"), std::string::npos);
    EXPECT_EQ(svg.find("http", 40), std::string::npos) << "nothing is fetched";
    const auto across = Animated(svg, "attributeName=\"cx\"");
    ASSERT_FALSE(across.empty());  // of the curve at the bottom
    EXPECT_GT(across.back().size(), actions.size() + 1) << "the end is held";
    EXPECT_EQ(across.back().front(), "70");
    EXPECT_EQ(across.back().back(), "610");
  }
}

TEST(DrawingTest, TheCartGoesWhereItIsPushed) {
  const VectorOptions options{.name = "cartpole", .options = {}, .max_episode_steps = 0, .seed = 1};
  const std::string svg = DrawEpisode(*ReplayEpisode(options, 3, Repeated(options, 1)), "t");
  const auto moves = Animated(svg, "type=\"translate\"");
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_GT(std::stod(moves[0].back()), std::stod(moves[0].front()));
  const auto turns = Animated(svg, "type=\"rotate\"");
  ASSERT_EQ(turns.size(), 1U);
  EXPECT_LT(std::stod(turns[0].back()), -12) << "the pole falls to the other side, past its limit";
}

// A pendulum that goes over the top turns on, and not back by a whole turn.
TEST(DrawingTest, AnglesGoOnPastAHalfTurn) {
  EpisodeFrames e;
  e.spec = *FindVectorEnvironment({.name = "pendulum", .options = {}, .max_episode_steps = 0, .seed = 1});
  for (const double angle : {2.8, 3.1, 3.4, 3.7}) {
    for (const double x : {std::cos(angle), std::sin(angle), 6.0})
      e.observations.push_back(static_cast<float>(x));
  }
  e.actions = {2, 2, 2};
  e.rewards = {-1, -1, -1};
  const auto turns = Animated(DrawEpisode(e, "t"), "type=\"rotate\"");
  ASSERT_EQ(turns.size(), 1U);
  EXPECT_NEAR(std::stod(turns[0][0]), -160.4, 0.1);
  EXPECT_NEAR(std::stod(turns[0][3]), -212.0, 0.1);
}

TEST(DrawingTest, WhatHasNoSceneOfItsOwnIsShownAsNumbers) {
  const VectorOptions options{.name = "cartpole", .options = {}, .max_episode_steps = 0, .seed = 1};
  EpisodeFrames e = *ReplayEpisode(options, 3, Repeated(options, 1));
  e.spec.name = "tetris";
  const std::string svg = DrawEpisode(e, "t");
  EXPECT_EQ(Animated(svg, "attributeName=\"cy\"").size(), 5U) << "four numbers, and the return";
  EXPECT_EQ(Animated(svg, "attributeName=\"opacity\"").size(), 2U) << "two choices";
}

TEST(DrawingTest, ActionsThatAreNoEpisodeAreRefused) {
  const VectorOptions options{.name = "cartpole", .options = {}, .max_episode_steps = 0, .seed = 1};
  std::vector<float> actions = Repeated(options, 1);
  actions.push_back(1);
  EXPECT_EQ(ReplayEpisode(options, 3, actions).status().code(), StatusCode::kInvalidArgument);
  actions.resize(2);
  EXPECT_EQ(ReplayEpisode(options, 3, actions).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReplayEpisode(options, 3, {7}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::environments
