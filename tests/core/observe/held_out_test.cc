// What a run says of its held-out rows where the trainer judged them.

#include "core/observe/held_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidepool::observe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(HeldOutTest, OfPairsTheShareRankedRightAndTheMargin) {
  TrainerFigures figures;
  AddFigures(StepNumber{1},
             {{"eval/dpo/accuracy/before", 0}, {"eval/dpo/total/before", 8}, {"dpo/accuracy", 0.5}}, figures);
  AddFigures(StepNumber{3}, {{"eval/dpo/accuracy", 0.75}, {"eval/dpo/margin", 0.5}, {"eval/dpo/total", 8}},
             figures);
  AddFigures(StepNumber{6}, {{"eval/dpo/accuracy", 0.5}, {"eval/dpo/margin", 0.25}, {"eval/dpo/total", 8}},
             figures);
  const auto h = HeldOutOf({}, figures);
  ASSERT_TRUE(h);
  EXPECT_EQ(h->measure, "accuracy");
  EXPECT_EQ(h->before->value, 0);
  EXPECT_EQ(h->last->step, 6);
  EXPECT_EQ(h->best->step, 3);
  EXPECT_LT(h->last->low, 0.5);
  EXPECT_EQ(h->more, (std::map<std::string, double>{{"margin", 0.25}}));
  EXPECT_THAT(HeldOutLines(*h, 6),
              ElementsAre(HasSubstr("accuracy before: 0.0 %"), HasSubstr("after: 50.0 %"),
                          HasSubstr("best, at step 3: 75.0 %"), "margin: 0.25"));
}

TEST(HeldOutTest, WhereEveryPairTiesThereIsNoShare) {
  const auto before = [](double margin) {
    TrainerFigures figures;
    AddFigures(
        StepNumber{1},
        {{"eval/dpo/accuracy/before", 0}, {"eval/dpo/margin/before", margin}, {"eval/dpo/total/before", 8}},
        figures);
    AddFigures(StepNumber{2}, {{"eval/dpo/accuracy", 0.75}, {"eval/dpo/margin", 0.5}, {"eval/dpo/total", 8}},
               figures);
    return *HeldOutOf({}, figures);
  };
  const HeldOut ties = before(0);
  EXPECT_EQ(HeldOutLines(ties, 2).front(), "accuracy before: every pair ties");
  EXPECT_THAT(HeldOutLines(ties, 2)[1], HasSubstr("after: 75.0 % (95 % interval"));
  EXPECT_EQ(HeldOutShort(ties.measure, *ties.before), "every pair ties");
  EXPECT_THAT(HeldOutLines(before(-0.5), 2).front(), HasSubstr("before: 0.0 % (95 % interval"))
      << "they are ranked, and wrongly";
}

TEST(HeldOutTest, ALossIsBestWhereItIsLeastAndAnUndoneStepIsForgotten) {
  TrainerFigures figures;
  for (const auto& [step, loss] : {std::pair(2, 0.5), std::pair(4, 0.25), std::pair(6, 0.75)}) {
    AddFigures(StepNumber{step},
               {{"eval/sft/loss", loss},
                {"eval/sft/loss/low", loss - 0.1},
                {"eval/sft/loss/high", loss + 0.1},
                {"eval/sft/total", 16}},
               figures);
  }
  const auto h = HeldOutOf({}, figures);
  ASSERT_TRUE(h);
  EXPECT_EQ(h->measure, "loss");
  EXPECT_EQ(h->best->step, 4);
  EXPECT_DOUBLE_EQ(h->best->high, 0.35);
  EXPECT_THAT(HeldOutLines(*h, 6).back(), HasSubstr("loss best, at step 4: 0.25"));
  AddFigures(StepNumber{3}, {}, figures);  // a restore
  EXPECT_EQ(HeldOutOf({}, figures)->last->step, 2);
}

TEST(HeldOutTest, ARewardThatWasAlwaysZeroOrOneIsAShare) {
  record::EvalResult r{.step = StepNumber{2}, .v = {}, .correct = 15, .total = 16, .rewards = {}};
  r.mean = 15.0 / 16;
  r.deviation = 0.25;  // of 15 ones and a zero
  const auto m = EvalMetrics(r);
  EXPECT_LE(m.at("eval/reward/high"), 1);
  EXPECT_EQ(m.at("eval/reward/low"), m.at("eval/accuracy/low"));
  r.mean = 1.875;  // of weight 2
  r.deviation = 0.5;
  EXPECT_GT(EvalMetrics(r).at("eval/reward/high"), 1.875);
}

TEST(HeldOutTest, AnswersThatWereGradedComeFirst) {
  TrainerFigures figures;
  AddFigures(StepNumber{2}, {{"eval/sft/loss", 0.5}, {"eval/sft/total", 16}}, figures);
  record::EvalResult graded{.step = StepNumber{2}, .v = {}, .correct = 3, .total = 4, .rewards = {}};
  const auto h = HeldOutOf({{StepNumber{2}, graded}}, figures);
  ASSERT_TRUE(h);
  EXPECT_EQ(h->measure, "accuracy");
  EXPECT_EQ(h->last->value, 0.75);
  EXPECT_EQ(h->more.at("loss"), 0.5);
}

TEST(HeldOutTest, AnswersThatWereLostAreSaid) {
  const record::EvalResult before{.step = StepNumber{0},
                                  .v = {},
                                  .correct = 1,
                                  .total = 1,
                                  .mean = 1,
                                  .rewards = {},
                                  .lost = 7,
                                  .why_lost = "judge: Connection refused"};
  record::EvalResult none = before;
  none.step = StepNumber{4}, none.total = none.correct = 0, none.lost = 8;
  const auto h = HeldOutOf({{before.step, before}, {none.step, none}});
  ASSERT_TRUE(h);
  EXPECT_FALSE(h->last);
  EXPECT_THAT(
      HeldOutLines(*h, 4),
      ElementsAre("accuracy before: 100.0 % (1 of 8 rows; 7 lost, the last: judge: Connection refused)",
                  "at step 4: none of 8 answers could be graded, the last: judge: Connection refused"));
  EXPECT_EQ(EvalMetrics(none).at("eval/lost"), 8);
  const auto alone = HeldOutOf({{none.step, none}});
  ASSERT_TRUE(alone) << "an evaluation without an answer is no evaluation that was not held";
  EXPECT_THAT(HeldOutLines(*alone, 4), ElementsAre(HasSubstr("none of 8 answers")));
}

}  // namespace
}  // namespace tidepool::observe
