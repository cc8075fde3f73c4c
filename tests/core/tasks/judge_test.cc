#include "core/tasks/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tidepool::tasks {
namespace {

using testing::HasSubstr;
using testing::Not;
using Outcome = Verdict::Outcome;

Judge Make(const RewardFunction& function) {
  auto judge = Judge::Create(function);
  EXPECT_TRUE(judge.ok()) << judge.status().ToString();
  return *std::move(judge);
}

TEST(JudgeTest, EachPlaceIsFilledOnceWhateverTheTextsSay) {
  const Judge judge = Make({.prompt = "Q {question} R {response} A {answer} R {response} {other}"});
  EXPECT_EQ(judge.Ask({.prompt = "{response}", .answer = "7", .text = "{answer} {question}"}),
            "Q {response} R {answer} {question} A 7 R {answer} {question} {other}");
}

TEST(JudgeTest, TheUsualPromptAsksForTheUsualScale) {
  const Judge judge = Make({});
  const std::string asked = judge.Ask({.prompt = "6 * 7?", .answer = "42", .text = "41"});
  for (const char* said : {"6 * 7?", "42", "41", "0 (useless) to 10 (perfect)"})
    EXPECT_THAT(asked, HasSubstr(said));
  EXPECT_THAT(asked, HasSubstr("Reference answer"));
  EXPECT_THAT(judge.Ask({.prompt = "6 * 7?", .text = "41"}), Not(HasSubstr("Reference answer")));
  EXPECT_EQ(judge.Read("7").score, 0.7);
  EXPECT_EQ(judge.Read("I would say 7/10.").score, 0.7);
  EXPECT_EQ(judge.Read("2.5").score, 0.25);
}

TEST(JudgeTest, TheScaleMayBeOfAnyKind) {
  const Judge stars = Make({.score_min = 1, .score_max = 5});
  EXPECT_EQ(stars.Read("1").score, 0);
  EXPECT_EQ(stars.Read("3").score, 0.5);
  const Judge faults = Make({.score_min = 4, .score_max = 0});
  EXPECT_EQ(faults.Read("1 fault").score, 0.75);
}

TEST(JudgeTest, APatternSaysWhichNumberCounts) {
  const Judge json = Make({.score_pattern = R"("score"\s*:\s*([0-9.]+))"});
  EXPECT_EQ(json.Read(R"({"reasons": 3, "score": 8})").score, 0.8);
  const Judge whole = Make({.score_pattern = R"((?<=Grade: )\d+)"});
  EXPECT_EQ(whole.Read("3 reasons. Grade: 9").score, 0.9);
}

TEST(JudgeTest, AnAnswerWithoutAScoreIsNoScore) {
  const Judge judge = Make({});
  EXPECT_EQ(judge.Read("very good").outcome, Outcome::kData);
  EXPECT_THAT(judge.Read("very\ngood").detail, HasSubstr("has no score: 'very good'"));
  EXPECT_THAT(judge.Read("11").detail, HasSubstr("the judge's score 11 is not between 0 and 10"));
  EXPECT_THAT(judge.Read("-1").detail, HasSubstr("-1 is not between"));
  EXPECT_EQ(judge.Read("\xff\xfe").outcome, Outcome::kData);
  const Judge word = Make({.score_pattern = "good|bad"});
  EXPECT_THAT(word.Read("bad").detail, HasSubstr("is no number: 'bad'"));
  EXPECT_EQ(Make({.score_pattern = "(nan)"}).Read("nan").outcome, Outcome::kData);
}

TEST(JudgeTest, ANumberThatMayGoOnIsNoScore) {
  const Judge judge = Make({});
  EXPECT_EQ(judge.Read("I say 1", /*cut=*/true).outcome, Outcome::kData);
  EXPECT_THAT(judge.Read("1", true).detail, HasSubstr("cut at max_new_tokens"));
  EXPECT_EQ(judge.Read("1 of", true).score, 0.1);
  EXPECT_EQ(judge.Read("1").score, 0.1);
}

TEST(JudgeTest, AnAnswerIsQuotedUpToACharacter) {
  const Judge judge = Make({});
  for (size_t before = 0; before < 4; ++before) {  // 98 to 101 bytes, and the 100th is any of a character's
    for (const size_t bytes : {98, 99, 100, 101}) {
      std::string answer(before, 'x');
      while (answer.size() < bytes) answer += "\xe4\xbd\xa0";
      for (const std::string& said : {judge.Read(answer).detail, judge.Read("7" + answer).detail})
        EXPECT_NO_THROW((void)nlohmann::json(said).dump()) << said;
    }
  }
}

TEST(JudgeTest, WhatCannotGradeIsRefused) {
  EXPECT_THAT(Judge::Create({.prompt = "How good is it?"}).status().message(),
              HasSubstr("prompt: has no {response}"));
  EXPECT_THAT(Judge::Create({.score_pattern = "("}).status().message(),
              HasSubstr("score_pattern: bad regular expression at character 1"));
  EXPECT_THAT(Judge::Create({.score_min = 3, .score_max = 3}).status().message(),
              HasSubstr("score_max: is score_min"));
}

}  // namespace
}  // namespace tidepool::tasks
