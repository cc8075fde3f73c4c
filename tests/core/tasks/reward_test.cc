#include "core/tasks/reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/tasks/reward_endpoint.h"

namespace tidepool::tasks {
namespace {

using ::testing::HasSubstr;
using Outcome = Verdict::Outcome;

RewardInput Input(std::string text, std::string answer, bool ended = true) {
  return {.prompt = "p",
          .answer = std::move(answer),
          .text = std::move(text),
          .response_tokens = 4,
          .ended = ended,
          .max_new_tokens = 16};
}

Verdict Score(const char* spec, const RewardInput& input) {
  auto reward = MakeReward(spec);
  EXPECT_TRUE(reward.ok()) << reward.status().message();
  return reward.value()(input);
}

TEST(LacksAnswerTest, ARewardSaysByItsVerdictWhetherItComparesWithTheAnswer) {
  for (const char* spec : {"exact_answer", "gsm8k", "decimal", "contains", "answer_tag"}) {
    const auto reward = MakeReward(spec);
    ASSERT_TRUE(reward.ok()) << spec;
    EXPECT_TRUE(LacksAnswer(*reward, {.prompt = "p"})) << spec;
    EXPECT_FALSE(LacksAnswer(*reward, {.prompt = "p", .answer = "x"})) << spec;
  }
  for (const char* spec : {"contains:x", "format:^x$", "countdown"})
    EXPECT_FALSE(LacksAnswer(*MakeReward(spec), {.prompt = "p"})) << spec;
}

TEST(RewardEndpointTest, ReadsWhatAServerOverHttpIsAskedBy) {
  const auto parts = [](const char* text) {
    const auto e = ParseRewardEndpoint(text);
    if (!e.ok()) return e.status().message();
    return e->http ? e->host + " " + e->port + " " + e->path : std::string("gRPC");
  };
  EXPECT_EQ(parts("unix:/tmp/x"), "gRPC");
  EXPECT_EQ(parts("judge:7001"), "gRPC");
  EXPECT_EQ(parts("http://judge:7001/a/b?c=d"), "judge 7001 /a/b?c=d");
  EXPECT_EQ(parts("http://judge"), "judge 80 /");
  EXPECT_EQ(parts("http://judge?c"), "judge 80 /?c");
  EXPECT_EQ(parts("http://[::1]:7001"), "::1 7001 /");
  EXPECT_EQ(parts("http://[::1]"), "::1 80 /");
  for (const char* wrong :
       {"", "judge", "http://", "http://:7001", "http://judge:", "http://judge:x", "http://judge:0",
        "http://judge:65536", "http://a b/", "http://a/\r\nX: y", "http://me@judge/", "http://judge/#x",
        "http://[::1/", "ftp://judge:1", "judge:7001/grade", "judge:port", ":7001"}) {
    EXPECT_THAT(parts(wrong), HasSubstr("found '" + std::string(wrong) + "'; expected ")) << wrong;
  }
  EXPECT_THAT(parts("https://judge"), HasSubstr("without encryption"));
}

TEST(ExactAnswerTest, LastNumberOfATextThatEndedByItself) {
  EXPECT_EQ(ExactAnswer(Input("56", "56")).score, 1);
  EXPECT_EQ(ExactAnswer(Input("7 * 8 is 56.", "56")).score, 1);
  EXPECT_EQ(ExactAnswer(Input("56 57", "56")).score, 0);
  EXPECT_EQ(ExactAnswer(Input("56", "56", /*ended=*/false)).score, 0);
  EXPECT_EQ(ExactAnswer(Input("none", "56")).score, 0);
  EXPECT_EQ(ExactAnswer(Input("none", "56")).outcome, Outcome::kOk);  // a grader looked: 0 is a reward
}

TEST(ExactAnswerTest, TextAnswersAreTrimmed) {
  EXPECT_EQ(ExactAnswer(Input(" dcba\n", "dcba")).score, 1);
  EXPECT_EQ(ExactAnswer(Input("dcb", "dcba")).score, 0);
}

TEST(ExactAnswerTest, MalformedRowsAreNoZeros) {
  EXPECT_EQ(ExactAnswer(Input("56", "")).outcome, Outcome::kData);
  RewardInput input = Input("1+2", "3");
  input.fields = {{"answer_rule", "countdown"}, {"numbers", "[1,"}, {"target", "3"}};
  EXPECT_EQ(ExactAnswer(input).outcome, Outcome::kData);
  input.fields = {{"answer_rule", "vibes"}};
  EXPECT_EQ(ExactAnswer(input).outcome, Outcome::kData);
  EXPECT_THAT(ExactAnswer(input).detail, HasSubstr("answer_rule is 'vibes'"));
}

TEST(RewardTest, AllAreRegisteredWithADoc) {
  for (const RewardInfo& info : ListRewards()) {
    EXPECT_FALSE(info.doc.empty());
    EXPECT_EQ(MakeReward(info.name).ok(), !info.by_model()) << info.name;
  }
  EXPECT_THAT(MakeReward("exact_anser").status().message(), HasSubstr("did you mean 'exact_answer'?"));
  EXPECT_THAT(MakeReward("judge:tone").status().message(), HasSubstr("add `path: FOLDER`"));
  EXPECT_THAT(MakeReward("exact_answer:x").status().message(), HasSubstr("takes no argument"));
}

TEST(RewardTest, WhatAPluginThrowsAndWhatIsNoNumberIsNoScore) {
  const Reward throws = RunningReward("mine", [](const RewardInput& in) {
    return Verdict{.score = static_cast<double>(std::stoll(in.text))};
  });
  EXPECT_EQ(throws({.text = "17"}).score, 17);
  EXPECT_EQ(throws({.text = "many"}).outcome, Verdict::Outcome::kInfra);
  EXPECT_EQ(throws({.text = "many"}).detail, "mine threw an exception: stoll");
  const Verdict nan = RunningReward("mine", [](const RewardInput&) { return Verdict{.score = NAN}; })({});
  EXPECT_EQ(nan.outcome, Verdict::Outcome::kInfra);
  EXPECT_EQ(nan.detail, "mine gave the score nan, which is no finite number");
  const Verdict number = RunningReward("mine", [](const RewardInput&) -> Verdict { throw 42; })({});
  EXPECT_EQ(number.outcome, Verdict::Outcome::kInfra);
  EXPECT_EQ(number.detail, "mine threw something that is no std::exception");
}

TEST(RewardTest, ASampleIsNamedByItsRow) {
  EXPECT_EQ(NameOf({.row = 3}), "question 3");
  EXPECT_EQ(NameOf({.row = 3, .held_out = true}), "held-out question 3");
  EXPECT_EQ(NameOf({.file = "data.jsonl", .line = 7, .sample = "3.0.1"}), "sample 3.0.1 (data.jsonl:7)");
}

TEST(RewardTest, FormatIsAnEndOrAPattern) {
  EXPECT_EQ(Score("format", Input("x", "", true)).score, 1);
  EXPECT_EQ(Score("format", Input("x", "", false)).score, 0);
  EXPECT_EQ(Score("format:^\\d+$", Input("56", "")).score, 1);
  EXPECT_EQ(Score("format:^\\d+$", Input("it is 56", "")).score, 0);
  EXPECT_EQ(Score("format:a.b", Input("a\nb", "")).score, 1);
  EXPECT_EQ(Score("format:a", Input("\xff\xfe", "")).score, 0);
  EXPECT_THAT(MakeReward("format:(").status().message(), HasSubstr("bad regular expression at character 1"));
}

TEST(RewardTest, PatternThatExplodesIsAFaultOfTheConfigNotAHang) {
  EXPECT_EQ(Score("format:^(a+)+$", Input(std::string(40, 'a') + "b", "")).outcome, Outcome::kData);
}

TEST(RewardTest, LengthPenaltyIsDapos) {
  RewardInput input = Input("", "");
  input.max_new_tokens = 100;
  for (const auto& [tokens, score] :
       std::vector<std::pair<int64_t, double>>{{1, 0}, {60, 0}, {80, -0.5}, {100, -1}, {120, -1}}) {
    input.response_tokens = tokens;
    EXPECT_DOUBLE_EQ(Score("length_penalty:40", input).score, score) << tokens;
  }
  EXPECT_THAT(MakeReward("length_penalty:x").status().message(), HasSubstr("expected a number of tokens"));
}

TEST(RewardTest, Others) {
  EXPECT_EQ(Score("contains", Input("is 56 ok", "56")).score, 1);
  EXPECT_EQ(Score("contains:####", Input("#### 5", "")).score, 1);
  EXPECT_EQ(Score("contains", Input("x", "")).outcome, Outcome::kData);
  EXPECT_EQ(Score("gsm8k", Input("#### 5", "5")).score, 1);
  EXPECT_EQ(Score("gsm8k:flexible", Input("5", "5")).score, 1);
  EXPECT_EQ(Score("answer_tag", Input("<answer>5.0</answer>", "5")).score, 1);
  EXPECT_EQ(Score("answer_tag", Input("5", "5")).score, 0);
  EXPECT_DOUBLE_EQ(Score("decimal", Input("is 5", "5")).score, 0.25);
  RewardInput input = Input("<answer>1+3</answer>", "");
  input.fields = {{"numbers", "[1,2]"}, {"target", "3"}};
  EXPECT_DOUBLE_EQ(Score("countdown", input).score, 0.1);
}

}  // namespace
}  // namespace tidepool::tasks
