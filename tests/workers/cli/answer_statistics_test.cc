#include "workers/cli/answer_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "workers/cli/answer_progress.h"

namespace tidepool::workers {
namespace {

TEST(AnswerStatisticsTest, OneAnswerAQuestionHasWilsonsInterval) {
  std::vector<QuestionScore> questions(10, {1, 0, 0.0});
  for (int i = 0; i < 8; ++i) questions[static_cast<size_t>(i)] = {1, 1, 1.0};
  const MeanInterval a = Accuracy(questions);
  EXPECT_DOUBLE_EQ(a.mean, 0.8);
  EXPECT_NEAR(a.low, 0.4902, 1e-4);  // Wilson (1927) for 8 of 10
  EXPECT_NEAR(a.high, 0.9433, 1e-4);
  const MeanInterval none = Accuracy(std::vector<QuestionScore>(10, {1, 0, 0.0}));
  EXPECT_DOUBLE_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.2775, 1e-4);
}

// Four answers to a question that come out alike are one draw, not four.
TEST(AnswerStatisticsTest, AnswersToOneQuestionDoNotNarrowTheInterval) {
  std::vector<QuestionScore> one, four;
  for (int i = 0; i < 50; ++i) {
    one.push_back({1, i % 2, static_cast<double>(i % 2)});
    four.push_back({4, 4 * (i % 2), 4.0 * (i % 2)});
  }
  const MeanInterval a = Accuracy(one), b = Accuracy(four);
  EXPECT_DOUBLE_EQ(a.mean, b.mean);
  EXPECT_NEAR(a.high - a.low, b.high - b.low, 1e-12);
}

TEST(AnswerStatisticsTest, PassAtKIsTheShareOfDrawsWithoutReplacement) {
  // 5 answers, 2 right: of the 10 pairs, 3 have none right.
  EXPECT_DOUBLE_EQ(PassAtK({{5, 2, 2.0}}, 2).mean, 0.7);
  EXPECT_DOUBLE_EQ(PassAtK({{5, 2, 2.0}}, 1).mean, 0.4);
  EXPECT_DOUBLE_EQ(PassAtK({{5, 2, 2.0}}, 4).mean, 1);
  EXPECT_DOUBLE_EQ(PassAtK({{5, 0, 0.0}}, 4).mean, 0);
  // A question with fewer scored answers than k says nothing about pass@k.
  EXPECT_DOUBLE_EQ(PassAtK({{5, 2, 2.0}, {1, 0, 0.0}}, 2).mean, 0.7);
  const MeanInterval many = PassAtK({{4, 1, 1.0}, {4, 2, 2.0}, {4, 3, 3.0}, {4, 0, 0.0}}, 2);
  EXPECT_NEAR(many.mean, (0.5 + 5.0 / 6 + 1 + 0) / 4, 1e-12);
  EXPECT_LT(many.low, many.mean);
  EXPECT_GE(many.low, 0);
  EXPECT_LE(many.high, 1);
}

TEST(AnswerStatisticsTest, ARewardOfZerosAndOnesIsAShareAndAGradedOneIsNot) {
  std::vector<QuestionScore> shares(20, {1, 1, 1.0});
  shares[0] = {1, 0, 0.0};
  const MeanInterval share = MeanReward(shares);
  EXPECT_DOUBLE_EQ(share.low, Accuracy(shares).low);
  EXPECT_LE(share.high, 1);
  for (QuestionScore& q : shares) q.sum *= 2;
  EXPECT_GT(MeanReward(shares).high, 1.9);
}

TEST(AnswerProgressTest, SaysHowFarAndHowLong) {
  EXPECT_EQ(AnswerProgress::Line(10, 30, 10, 1000, 10),
            "[==========>                   ] 10 of 30, 100 tok/s, about 20.0s left");
  EXPECT_EQ(AnswerProgress::Line(30, 30, 0, 0, 0), "[==============================] 30 of 30");
}

}  // namespace
}  // namespace tidepool::workers
