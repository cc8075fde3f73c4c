#include "workers/cli/eval_sets.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tidepool::workers {
namespace {

tasks::RewardInput Said(const std::string& answer, const std::string& text) {
  tasks::RewardInput input;
  input.prompt = "?";
  input.answer = answer;
  input.text = text;
  input.response_tokens = 3;
  input.ended = true;
  input.max_new_tokens = 8;
  return input;
}

std::map<std::string, EvalTally::Measure> ByName(const EvalTally& tally, const std::vector<int64_t>& ks) {
  std::map<std::string, EvalTally::Measure> out;
  for (const EvalTally::Measure& m : tally.Measures(ks)) out.emplace(m.name, m);
  return out;
}

TEST(EvalTallyTest, CountsSetsTogetherAndApart) {
  const auto rewards = MakeRewards({"exact_answer", "length_penalty:2"});
  ASSERT_TRUE(rewards.ok()) << rewards.status().message();
  EvalTally total({"exact_answer", "length_penalty:2"});
  for (const int right : {1, 3}) {  // of four questions
    EvalTally tally({"exact_answer", "length_penalty:2"});
    for (EvalTally* t : {&tally, &total}) t->AddRows(4);
    for (int i = 0; i < 4; ++i) {
      const Grade grade = GradeAnswer(*rewards, Said("7", i < right ? "7" : "8"), "");
      EXPECT_EQ(grade.error, "");
      EXPECT_EQ(grade.first, i < right ? 1 : 0);
      for (EvalTally* t : {&tally, &total}) t->Add(i, grade, 3, true);
    }
    EXPECT_EQ(ByName(tally, {})["accuracy"].of.mean, right / 4.0);
  }
  auto measures = ByName(total, {});
  EXPECT_EQ(total.rows(), 8);
  EXPECT_EQ(measures["accuracy"].of.mean, 0.5);
  EXPECT_EQ(measures["reward/exact_answer"].of.mean, 0.5);
  EXPECT_NEAR(measures["reward"].of.mean, 0.5 + measures["reward/length_penalty:2"].of.mean, 1e-12);
  EXPECT_LT(measures["reward"].of.low, measures["reward"].of.mean);
}

TEST(EvalTallyTest, AGradedRewardHasNoAccuracy) {
  EvalTally tally({"mine"});
  tally.AddRows(2);
  tally.Add(0, {.rewards = {{"mine", 2.5}}, .first = 2.5, .sum = 2.5, .error = "", .of_data = false}, 3,
            true);
  tally.Add(1, {.rewards = {{"mine", -1.0}}, .first = -1, .sum = -1, .error = "", .of_data = false}, 3, true);
  EXPECT_TRUE(tally.graded());
  const auto measures = tally.Measures({1});
  ASSERT_EQ(measures.size(), 1U);
  EXPECT_EQ(measures[0].name, "reward");
  EXPECT_EQ(measures[0].of.mean, 0.75);
  EXPECT_LT(measures[0].of.low, -1) << "not cut to where a share may be";
}

TEST(EvalTallyTest, WhatCouldNotBeScoredIsCountedApart) {
  const auto rewards = MakeRewards({"exact_answer"});
  ASSERT_TRUE(rewards.ok());
  EvalTally tally({"exact_answer"});
  tally.AddRows(2);
  const Grade grade = GradeAnswer(*rewards, Said("", "7"), "");  // the row has no answer
  EXPECT_TRUE(grade.error.starts_with("exact_answer: ")) << grade.error;
  EXPECT_TRUE(grade.of_data);
  tally.Add(0, grade, 3, true);
  EXPECT_FALSE(GradeAnswer(*rewards, Said("7", "7"), "the worker gave it up").of_data);
  tally.Add(1, GradeAnswer(*rewards, Said("7", "7"), ""), 3, /*ended=*/false);
  EXPECT_EQ(tally.answers(), 2);
  EXPECT_EQ(tally.unscored(), 1);
  EXPECT_EQ(tally.cut(), 1);
  EXPECT_TRUE(std::isnan(ByName(tally, {})["reward"].of.low)) << "one question has no interval";
}

TEST(EvalRewardsTest, OfARunHaveItsWeights) {
  JobConfig run;
  run.reward.functions = {{.name = "exact_answer"}, {.name = "length_penalty:7", .weight = 0.5}};
  const auto rewards = RewardsOfRun(run);
  ASSERT_TRUE(rewards.ok()) << rewards.status().message();
  const Grade grade = GradeAnswer(*rewards, Said("7", "7"), "");
  EXPECT_NE(grade.rewards.at("length_penalty:7"), 0);
  EXPECT_EQ(grade.sum, grade.first + 0.5 * grade.rewards.at("length_penalty:7"));
}

TEST(EvalRewardsTest, WhatARewardSaysBesidesItsScoreIsKept) {
  const auto grade = [](double score, const char* said) {
    return [=](const tasks::RewardInput&) {
      return tasks::Verdict{tasks::Verdict::Outcome::kOk, score, said};
    };
  };
  const Grade both = GradeAnswer({{"a", grade(1, "well said")}, {"b", grade(0, "")}}, Said("7", "7"), "");
  EXPECT_EQ(both.details, (std::map<std::string, std::string>{{"a", "well said"}}));
}

TEST(EvalRewardsTest, AreNamedInErrors) {
  EXPECT_NE(MakeRewards({"exact_anser"}).status().message().find("exact_answer"), std::string::npos);
  EXPECT_TRUE(MakeRewards({"exact_anser"}).status().message().starts_with("--reward: "));
  EXPECT_FALSE(MakeRewards({"exact_answer", "exact_answer"}).ok());
}

}  // namespace
}  // namespace tidepool::workers
