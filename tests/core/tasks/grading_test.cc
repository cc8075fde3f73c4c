#include "core/tasks/grading.h"

#include <gtest/gtest.h>

namespace tidepool::tasks {
namespace {

TEST(LastNumberTest, FindsTheLastOne) {
  const auto last = [](const char* text) { return LastNumber(text).value_or("none"); };
  EXPECT_EQ(last("56"), "56");
  EXPECT_EQ(last("7 * 8 = 56."), "56");
  EXPECT_EQ(last("The answer is 1,024!"), "1024");
  EXPECT_EQ(last("12,34"), "34");
  EXPECT_EQ(last("0.25 or so"), "0.25");
  EXPECT_EQ(last("-3"), "-3");
  EXPECT_EQ(last("x = -3"), "-3");
  EXPECT_EQ(last("10-56"), "56");
  EXPECT_EQ(last("(2)-7"), "7");
  EXPECT_EQ(last("1.2.3"), "2.3");
  EXPECT_EQ(last("no digits"), "none");
  EXPECT_EQ(last(""), "none");
}

TEST(ExtractAnswerTest, TakesTheLastTagTrimmed) {
  EXPECT_EQ(ExtractAnswer("<answer>1</answer> or <answer> 2\n</answer>"), "2");
  EXPECT_EQ(ExtractAnswer("<answer></answer>"), "");
  EXPECT_EQ(ExtractAnswer("<answer>1"), std::nullopt);
  EXPECT_EQ(ExtractAnswer("</answer><answer>"), std::nullopt);
  EXPECT_EQ(ExtractAnswer("<answer>a<answer>b</answer>"), "a<answer>b");
}

TEST(DecimalTest, EqualAsDecimals) {
  EXPECT_TRUE(DecimalsEqual("+007.50", "7.5"));
  EXPECT_TRUE(DecimalsEqual("1e3", "1000"));
  EXPECT_TRUE(DecimalsEqual("-0", "0.00"));
  EXPECT_TRUE(DecimalsEqual("12345678901234567890123456789", "12345678901234567890123456789.0"));
  EXPECT_FALSE(DecimalsEqual("12345678901234567890123456789", "12345678901234567890123456788"));
  EXPECT_FALSE(DecimalsEqual("x", "x"));
  EXPECT_FALSE(DecimalsEqual("", ""));
  EXPECT_FALSE(DecimalsEqual("1.", "2"));
}

TEST(DecimalTest, ChainSumScore) {
  EXPECT_EQ(DecimalScore("1,234", "1234"), 1);
  EXPECT_EQ(DecimalScore("1234.0", "1234"), 1);
  EXPECT_EQ(DecimalScore("", "5"), 0);
  EXPECT_EQ(DecimalScore("7", "5"), 0);
  EXPECT_DOUBLE_EQ(DecimalScore("is 5", "5"), 0.25);
  EXPECT_DOUBLE_EQ(DecimalScore("\xC3\xA9"
                                "5",
                                "5"),
                   0.5);  // characters, not bytes
}

TEST(Gsm8kTest, StrictAndFlexible) {
  EXPECT_EQ(Gsm8kScore("so\n#### 1,234", "1234", Gsm8kMethod::kStrict), 1);
  EXPECT_EQ(Gsm8kScore("#### 5 #### 6", "6", Gsm8kMethod::kStrict), 1);
  EXPECT_EQ(Gsm8kScore("####5", "5", Gsm8kMethod::kStrict), 0);
  EXPECT_EQ(Gsm8kScore("it is 5", "5", Gsm8kMethod::kStrict), 0);
  EXPECT_EQ(Gsm8kScore("it is 5", "5", Gsm8kMethod::kFlexible), 1);
  EXPECT_EQ(Gsm8kScore("it is 5 .", "5", Gsm8kMethod::kFlexible), 1);
  EXPECT_EQ(Gsm8kScore("it is 5.", "5", Gsm8kMethod::kFlexible), 0);  // "5." as it stands
  EXPECT_EQ(Gsm8kScore("#### 5" + std::string(300, ' '), "5", Gsm8kMethod::kStrict), 0);
  EXPECT_EQ(Gsm8kScore("#### 5" + std::string(294, ' '), "5", Gsm8kMethod::kStrict), 1);
}

TEST(ExpressionTest, EvaluatesOrRefuses) {
  const auto value = [](const char* text) { return EvaluateExpression(text).value_or(-12345); };
  EXPECT_DOUBLE_EQ(value("1 + 2 * 3"), 7);
  EXPECT_DOUBLE_EQ(value("(1 + 2) * -3"), -9);
  EXPECT_DOUBLE_EQ(value("8/4/2"), 1);
  EXPECT_DOUBLE_EQ(value("--2"), 2);
  EXPECT_DOUBLE_EQ(value("2.5*2"), 5);
  EXPECT_DOUBLE_EQ(value("00+1"), 1);
  for (const char* bad : {"", "2**3", "7//2", "1/0", "05", "(1", "1)", "1 2", "a", "1+", "0x10"}) {
    EXPECT_FALSE(EvaluateExpression(bad).has_value()) << bad;
  }
  EXPECT_FALSE(EvaluateExpression(std::string(100000, '(')).has_value());
  EXPECT_TRUE(EvaluateExpression(std::string(100000, '-') + "1").has_value());
}

TEST(CountdownTest, TinyZeroRule) {
  const std::vector<int64_t> numbers = {3, 7, 50};
  const auto score = [&](const char* text) { return CountdownScore(text, numbers, 71, 1.0, 0.1); };
  EXPECT_EQ(score("<answer>50 + 3 * 7</answer>"), 1.0);
  EXPECT_EQ(score("first\n<answer>7*3+50</answer>"), 1.0);
  EXPECT_EQ(score("<answer>7*3+50</answer>\nlast line"), 0);
  EXPECT_EQ(score("<answer>71</answer>"), 0.1);
  EXPECT_EQ(score("<answer>50+7*3+0</answer>"), 0.1);
  EXPECT_EQ(score("<answer>50/(3-3)</answer>"), 0.1);
  EXPECT_EQ(score("71"), 0);
}

TEST(CountdownTest, ExpressionRule) {
  EXPECT_EQ(CountdownExpressionScore(std::nullopt, {1, 2}, 3), 0.01);
  EXPECT_EQ(CountdownExpressionScore(" ", {1, 2}, 3), 0.01);
  EXPECT_EQ(CountdownExpressionScore("1+", {1, 2}, 3), 0.01);
  EXPECT_EQ(CountdownExpressionScore("1+2", {2, 1}, 3), 1);
  EXPECT_EQ(CountdownExpressionScore("3", {1, 2}, 3), 0.05);
}

TEST(SortingTest, NeedsLengthOrderAndCloseness) {
  const std::vector<double> expected = {1, 2.5, 3};
  EXPECT_EQ(SortingScore("['1', '2.5', '3']", expected, SortDirection::kAscending, 0), 1);
  EXPECT_EQ(SortingScore("[1, 2.4, 3]", expected, SortDirection::kAscending, 0.2), 1);
  EXPECT_EQ(SortingScore("[1, 2.4, 3]", expected, SortDirection::kAscending, 0), 0);
  EXPECT_EQ(SortingScore("[1, 3]", expected, SortDirection::kAscending, 9), 0);
  EXPECT_EQ(SortingScore("[1, 3, 2]", expected, SortDirection::kAscending, 9), 0);
  EXPECT_EQ(SortingScore("3 2 1", expected, SortDirection::kDescending, 9), 0);
}

}  // namespace
}  // namespace tidepool::tasks
