// Text games, all of the table, and the host that replays them.

#include "core/environments/text_game.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/environments/episode.h"

namespace tidepool::environments {
namespace {

std::unique_ptr<TextEnvironment> Make(const std::string& name,
                                      const std::map<std::string, std::string>& options = {},
                                      uint64_t seed = 1) {
  auto made = MakeTextEnvironment(name, options, seed);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(made).value();
}

const char* Junk(int i) {
  static const char* kJunk[] = {"",
                                "?",
                                "<answer>",
                                "</answer><answer>",
                                "<answer>Sideways</answer>",
                                "\x80\xff",
                                "9999999999999999999999",
                                "  \n"};
  return kJunk[i % 8];
}

TEST(TextGameTest, EveryGameFollowsFromItsActions) {
  for (const TextEnvironmentInfo& info : ListTextEnvironments()) {
    SCOPED_TRACE(info.name);
    const auto environment = Make(info.name);
    const auto again = Make(info.name);
    EXPECT_GT(environment->max_turns(), 0);
    for (int64_t index = 0; index < 20; ++index) {
      const auto a = environment->Make(index % 2 == 1, index);
      const auto b = again->Make(index % 2 == 1, index);
      EXPECT_EQ(a->Reset(), b->Reset());
      std::vector<std::string> said;
      for (int64_t turn = 0; turn < environment->max_turns(); ++turn) {
        const std::string action = turn % 3 == 2 ? Junk(static_cast<int>(turn + index)) : a->Solve();
        const TextStep x = a->Step(action), y = b->Step(action);
        EXPECT_EQ(x.observation, y.observation);
        EXPECT_EQ(x.reward, y.reward);
        EXPECT_EQ(x.done, y.done);
        EXPECT_TRUE(std::isfinite(x.reward));
        EXPECT_TRUE(x.done || !x.observation.empty());
        EXPECT_TRUE(x.done || !x.solved);
        if (x.done) break;
      }
      const std::string first = b->Reset();  // as at its beginning
      EXPECT_EQ(first, environment->Make(index % 2 == 1, index)->Reset());
    }
  }
}

TEST(TextGameTest, TheGoodPlayerIsRight) {
  for (const TextEnvironmentInfo& info : ListTextEnvironments()) {
    SCOPED_TRACE(info.name);
    const auto environment = Make(info.name);
    for (int64_t index = 0; index < 50; ++index) {
      const auto game = environment->Make(false, index);
      (void)game->Reset();
      double reward = 0;
      TextStep step;
      for (int64_t turn = 0; turn < environment->max_turns() && !step.done; ++turn) {
        step = game->Step(game->Solve());
        reward += step.reward;
      }
      EXPECT_TRUE(step.done && step.solved) << index;
      EXPECT_NEAR(reward, 1, 1e-9);
    }
  }
}

TEST(TextGameTest, NoHeldOutGameIsTrainedOn) {
  // Where the default games are few or slow to tell.
  std::map<std::string, std::map<std::string, std::string>> options = {
      {"frozen_lake", {{"style", "\"terse\""}, {"side", "[3, 4]"}}}};
  for (const TextEnvironmentInfo& info : ListTextEnvironments()) {
    SCOPED_TRACE(info.name);
    const auto environment = Make(info.name, options[info.name]);
    // What is said on the good player's way tells games apart.
    const auto story = [&](bool held_out, int64_t index) {
      const auto game = environment->Make(held_out, index);
      std::string text = game->Reset();
      for (int64_t turn = 0; turn < environment->max_turns(); ++turn) {
        const TextStep step = game->Step(game->Solve());
        text += "|" + step.observation;
        if (step.done) break;
      }
      return text;
    };
    std::set<std::string> trained;
    for (int64_t i = 0; i < 400; ++i) trained.insert(story(false, i));
    EXPECT_GT(trained.size(), 20U);
    for (int64_t i = 0; i < 100; ++i) EXPECT_FALSE(trained.contains(story(true, i))) << story(true, i);
  }
}

TEST(FrozenLakeTest, WalksAsTheMapSays) {
  const auto environment = Make("frozen_lake", {{"style", "\"terse\""}, {"frozen", "100"}, {"side", "3"}});
  const auto game = environment->Make(false, 0);
  EXPECT_EQ(game->Reset(), "PFFFFFFFG?");
  TextStep step = game->Step("l");
  EXPECT_EQ(step.observation, "PFFFFFFFG?") << "a wall keeps the place";
  EXPECT_EQ(step.reward, 0);
  step = game->Step("x");
  EXPECT_EQ(step.observation, "PFFFFFFFG?") << "no move";
  EXPECT_LT(step.reward, 0);
  EXPECT_EQ(game->Step("rr").observation, "SPFFFFFFG?") << "one move a turn";
  EXPECT_EQ(game->Step("d").observation, "SFFFPFFFG?");
  EXPECT_EQ(game->Step("r").observation, "SFFFFPFFG?");
  step = game->Step("d");
  EXPECT_TRUE(step.done && step.solved);
  EXPECT_EQ(step.reward, 1);

  const auto near =
      Make("frozen_lake", {{"style", "\"terse\""}, {"frozen", "100"}, {"side", "3"}, {"view", "\"near\""}})
          ->Make(false, 0);
  EXPECT_EQ(near->Reset(), "#FF#?") << "left, down, right, up";
  EXPECT_EQ(near->Step("d").observation, "#FFS?");

  const auto chat = Make("frozen_lake", {{"frozen", "100"}, {"side", "2"}})->Make(false, 0);
  EXPECT_NE(chat->Reset().find("<answer>Left</answer>"), std::string::npos);
  EXPECT_LT(chat->Step("Right").reward, 0) << "an answer has its tag";
  EXPECT_EQ(chat->Step("I go <answer> Right </answer>").observation, "SP\nFG\n");
}

TEST(FrozenLakeTest, HolesEndTheWalkWithoutAReward) {
  const auto environment = Make("frozen_lake", {{"style", "\"terse\""}, {"frozen", "50"}, {"side", "4"}});
  int64_t drowned = 0;
  for (int64_t index = 0; index < 60; ++index) {
    const auto game = environment->Make(false, index);
    const std::string map = game->Reset();
    if (map[1] != 'H') continue;
    const TextStep step = game->Step("r");
    EXPECT_TRUE(step.done);
    EXPECT_FALSE(step.solved);
    EXPECT_EQ(step.reward, 0);
    ++drowned;
  }
  EXPECT_GT(drowned, 5);
}

TEST(TallyTest, CountsAndHasALongTail) {
  const auto environment = Make("tally", {{"style", "\"terse\""}, {"turns", "40"}});
  std::vector<int64_t> lengths;
  for (int64_t index = 0; index < 300; ++index) {
    const auto game = environment->Make(false, index);
    std::string text = game->Reset();
    int64_t total = std::stoll(text), turns = 0;
    TextStep step;
    while (!step.done) {
      EXPECT_EQ(game->Solve(), std::to_string(total));
      step = game->Step(turns % 2 == 0 ? std::to_string(total) : std::to_string(total + 1));
      ++turns;
      if (!step.done) total += std::stoll(step.observation);
    }
    EXPECT_EQ(step.solved, turns == 1) << "one wrong total";
    lengths.push_back(turns);
  }
  std::sort(lengths.begin(), lengths.end());
  EXPECT_EQ(lengths[150], 3);
  EXPECT_GE(lengths[295], 12);
}

TEST(TextGameTest, BadOptionsAreNamed) {
  EXPECT_NE(MakeTextEnvironment("frozen_lak", {}, 1).status().message().find("did you mean 'frozen_lake'?"),
            std::string::npos);
  EXPECT_TRUE(
      MakeTextEnvironment("tally", {{"turns", "2"}}, 1).status().message().starts_with("median_turns: "));
}

JobConfig LakeJob(const std::string& view = "\"near\"", int64_t held_out = 64) {
  EnvironmentConfig lake{.name = "frozen_lake"};
  lake.options = {{"style", "\"terse\""}, {"view", view}};
  lake.size = 10;
  lake.held_out = held_out;
  JobConfig c;
  c.job = RlJob{.algorithm = {}, .environment = lake};
  return c;
}

TEST(EpisodeTest, SamplesOfAGroupPlayOneGameAndEpochsAreShuffled) {
  const auto source = EpisodeSource::Create(LakeJob());
  ASSERT_TRUE(source.ok());
  const auto maps = EpisodeSource::Create(LakeJob("\"map\""));
  std::multiset<std::string> first, second;
  std::vector<std::string> order[2];
  for (int64_t i = 0; i < 10; ++i) {
    const std::string row = maps->Game({i, 0, SampleId::kRowSample})->Reset();
    EXPECT_EQ(row, maps->Game({i, 1, 3})->Reset());
    first.insert(row);
    order[0].push_back(row);
    second.insert(maps->Game({i + 10, 0, 0})->Reset());
    order[1].push_back(maps->Game({i + 10, 0, 0})->Reset());
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(order[0], order[1]);
  EXPECT_NE(EpisodeSource::Create(LakeJob("\"near\"", 7))->identity(), source->identity());
}

TEST(EpisodeTest, AHostThatDoesNotKnowAnEpisodeArrivesAtTheSamePlace) {
  const auto source = EpisodeSource::Create(LakeJob());
  ASSERT_TRUE(source.ok());
  Rng rng(3);
  EpisodeHost steady(*source);
  for (int64_t e = 0; e < 40; ++e) {
    const SampleId tid{e, 0, static_cast<int32_t>(e % 4)};
    std::vector<std::string> actions;
    uint64_t history = 0;
    std::string before;
    double earned = 0;
    for (int64_t turn = 0; turn <= source->max_turns(); ++turn) {
      const auto here = steady.Play(tid, 0, actions);
      ASSERT_TRUE(here.ok());
      EpisodeHost fresh(*source);  // another process
      const auto there = fresh.Play(tid, 0, actions);
      ASSERT_TRUE(there.ok());
      EXPECT_EQ(here->observation, there->observation);
      EXPECT_EQ(here->reward, there->reward);
      EXPECT_EQ(here->done, there->done);
      EXPECT_EQ(here->history, there->history);
      EXPECT_EQ(here->state, there->state);
      EXPECT_EQ(here->state == 0, here->done);
      EXPECT_EQ(here->turns, turn);
      if (turn > 0) history = ExtendHistory(history, before, earned);
      EXPECT_EQ(here->history, history) << "of what was said before";
      before = here->observation;
      earned = here->reward;
      if (here->done) break;
      ASSERT_LT(turn, source->max_turns()) << "the limit ends an episode";
      actions.emplace_back(1, "ldru"[rng.Below(4)]);
    }
  }
  EXPECT_EQ(steady.replayed(), 0);
}

TEST(EpisodeTest, ARepeatedTurnIsNotPlayedTwiceAndTheOldestEpisodeIsForgotten) {
  const auto source = EpisodeSource::Create(LakeJob());
  EpisodeHost host(*source, /*capacity=*/2);
  const std::vector<std::string> two = {"x", "y"};
  const auto first = host.Play({1, 0, 0}, 0, two);
  const auto again = host.Play({1, 0, 0}, 0, two);
  EXPECT_EQ(first->reward, again->reward) << "a penalty is charged once";
  EXPECT_EQ(again->turns, 2);
  const int64_t before = host.replayed();
  (void)host.Play({2, 0, 0}, 0, {"x"});
  (void)host.Play({3, 0, 0}, 0, {"x"});
  (void)host.Play({1, 0, 0}, 0, {"x", "y", "z"});
  EXPECT_EQ(host.replayed(), before + 2) << "forgotten, so two actions are played once more";
  EXPECT_EQ(host.Play({1, 0, 0}, 1, {"x"})->turns, 1) << "another attempt begins anew";
}

TEST(EpisodeTest, LatencyHasItsMedianAndAHeavyTail) {
  const EnvironmentLatency latency{.median_s = 0.1, .tail = 1.2, .max_s = 2};
  std::vector<double> drawn;
  for (int64_t i = 0; i < 4000; ++i) drawn.push_back(TurnLatency(latency, 7, {i, 0, 0}, 1 + i % 5));
  EXPECT_EQ(drawn[17], TurnLatency(latency, 7, {17, 0, 0}, 3)) << "of (seed, sample, turn)";
  std::sort(drawn.begin(), drawn.end());
  EXPECT_NEAR(drawn[2000], 0.1, 0.01);
  EXPECT_GT(drawn[3960], 1.0);
  EXPECT_EQ(drawn.back(), 2);
  EXPECT_EQ(TurnLatency({}, 7, {1, 0, 0}, 1), 0);
  // Stragglers are samples: all of their turns are slow, beside what those take anyway.
  EnvironmentLatency slow = latency;
  slow.straggler_share = 0.01;
  slow.straggler_s = 5;
  int64_t stragglers = 0;
  for (int64_t i = 0; i < 20000; ++i) {
    const double more = TurnLatency(slow, 7, {i, 0, 0}, 1) - TurnLatency(latency, 7, {i, 0, 0}, 1);
    EXPECT_EQ(more > 4, TurnLatency(slow, 7, {i, 0, 0}, 2) > 4.5);
    stragglers += more > 4 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(stragglers), 200, 60);
}

}  // namespace
}  // namespace tidepool::environments
