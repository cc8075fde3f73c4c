#include "core/tasks/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>

#include "core/tasks/grading.h"
#include "core/tasks/options.h"
#include "core/tasks/question_space.h"
#include "core/tasks/reward.h"
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Task> Make(const TaskRequest& request) {
  auto task = MakeTask(request);
  EXPECT_TRUE(task.ok()) << request.name << ": " << task.status().message();
  return std::move(task).value();
}

// Ready requests for every registered task: defaults, and the other style.
std::vector<TaskRequest> AllRequests(uint64_t seed) {
  std::vector<TaskRequest> out;
  for (const TaskInfo& info : ListTasks()) {
    const int64_t units = CountUnits(info.name, {}).value();
    for (const char* style : {"\"chat\"", "\"terse\""}) {
      out.push_back({.name = info.name,
                     .options = {{"style", style}},
                     .size = 500,
                     .held_out = std::min<int64_t>(100, units / 4),
                     .seed = seed});
    }
  }
  return out;
}

TEST(TaskTest, HeldOutQuestionsAreNeverTrainedOnAndNoneRepeats) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (const TaskRequest& request : AllRequests(seed)) {
      SCOPED_TRACE(request.name + request.options.at("style"));
      const auto task = Make(request);
      ASSERT_GT(task->train_size(), 0);
      ASSERT_GE(task->held_out_size(), request.held_out);
      std::set<std::string> prompts;
      for (int64_t i = 0; i < task->train_size(); ++i)
        EXPECT_TRUE(prompts.insert(task->Train(i).prompt).second) << i;
      for (int64_t i = 0; i < task->held_out_size(); ++i)
        EXPECT_TRUE(prompts.insert(task->HeldOut(i).prompt).second) << i;
    }
  }
}

TEST(TaskTest, QuestionsArePureFunctionsOfTheSeed) {
  for (const TaskRequest& request : AllRequests(7)) {
    const auto one = Make(request);
    const auto two = Make(request);
    TaskRequest other = request;
    other.seed = 8;
    const auto different = Make(other);
    int same = 0;
    for (int64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(one->Train(i), two->Train(i));
      same += one->Train(i) == different->Train(i) ? 1 : 0;
    }
    EXPECT_LT(same, 10) << request.name;
  }
}

TEST(TaskTest, EveryAnswerIsGradedRightAndAnotherWrong) {
  for (const TaskRequest& request : AllRequests(1)) {
    const auto task = Make(request);
    for (int64_t i = 0; i < std::min<int64_t>(200, task->train_size()); ++i) {
      const Question q = task->Train(i);
      RewardInput input{.prompt = q.prompt,
                        .answer = q.answer,
                        .fields = q.fields,
                        .text = q.answer,
                        .response_tokens = 3,
                        .ended = true,
                        .max_new_tokens = 64};
      Verdict verdict = ExactAnswer(input);
      EXPECT_EQ(verdict.outcome, Verdict::Outcome::kOk) << request.name << ": " << verdict.detail;
      EXPECT_EQ(verdict.score, 1) << request.name << ": " << q.prompt << " -> " << q.answer;
      input.text += "7";
      EXPECT_EQ(ExactAnswer(input).score, 0) << q.prompt << input.text;
      input.text = q.answer;
      input.ended = false;
      EXPECT_EQ(ExactAnswer(input).score, 0) << "cut at the limit";
    }
  }
}

TEST(TaskTest, OptionDefaultsObeyTheirTables) {
  for (const TaskInfo& info : ListTasks()) {
    EXPECT_FALSE(info.doc.empty());
    EXPECT_TRUE(OptionValues::Parse(info.options, {}).ok());
    for (const Option& option : info.options) {
      EXPECT_FALSE(option.doc.empty()) << info.name << "." << option.name;
      EXPECT_TRUE(OptionValues::Parse(info.options, {{option.name, option.default_json}}).ok())
          << info.name << "." << option.name;
    }
  }
}

TEST(TaskTest, ATextOnACommandLineNeedsNoQuotes) {
  const auto json = [](const char* task, const char* name, const char* typed) {
    return OptionJson(FindTask(task)->options, name, typed);
  };
  EXPECT_EQ(json("reverse", "letters", "abc"), "\"abc\"");
  EXPECT_EQ(json("reverse", "letters", "123"), "\"123\"");
  EXPECT_EQ(json("reverse", "letters", "\"abc\""), "\"abc\"");
  EXPECT_EQ(json("reverse", "length", "[2, 3]"), "[2, 3]");
  EXPECT_EQ(json("reverse", "nope", "abc"), "abc");
}

TEST(TaskTest, ErrorsNameTheOption) {
  EXPECT_THAT(MakeTask({.name = "product"}).status().message(), HasSubstr("did you mean 'products'?"));
  EXPECT_THAT(MakeTask({.name = "products", .options = {{"factor", "3"}}}).status().message(),
              HasSubstr("factor: no such option of this task; did you mean 'factors'?"));
  EXPECT_THAT(MakeTask({.name = "products", .options = {{"factors", "[0, 99999]"}}}).status().message(),
              HasSubstr("factors: expected a range [lo, hi] of integers from 0 to 9999; found [0,99999]"));
  EXPECT_THAT(MakeTask({.name = "products", .options = {{"factors", "2..9"}}}).status().message(),
              HasSubstr("factors: expected a range [lo, hi] of integers from 0 to 9999; found 2..9"));
  EXPECT_THAT(MakeTask({.name = "reverse", .options = {{"letters", "\"abca\""}}}).status().message(),
              HasSubstr("letters: expected each character once; found 'a' twice"));
  EXPECT_THAT(
      MakeTask({.name = "reverse", .options = {{"letters", "\"ab\""}, {"length", "2"}}, .held_out = 3})
          .status()
          .message(),
      HasSubstr("held_out: expected 0 to 2"));
  EXPECT_THAT(MakeTask({.name = "modular", .options = {{"ops", "\"+/\""}}}).status().message(),
              HasSubstr("ops: expected"));
}

TEST(ProductsTest, PromptIsExact) {
  const auto task = Make({.name = "products", .held_out = 9});
  for (int64_t i = 0; i < task->train_size(); ++i) {
    const Question q = task->Train(i);
    EXPECT_EQ(q.prompt,
              "What is " + q.fields.at("a") + " * " + q.fields.at("b") + "? Reply with only the number.");
    EXPECT_EQ(std::stoi(q.answer), std::stoi(q.fields.at("a")) * std::stoi(q.fields.at("b")));
  }
}

TEST(ProductsTest, PairsAreHeldOutInBothOrders) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto task =
        Make({.name = "products", .options = {{"factors", "[2, 9]"}}, .held_out = 9, .seed = seed});
    std::set<std::pair<int, int>> held_out;
    std::set<std::pair<int, int>> unordered;
    std::set<std::pair<int, int>> train;
    for (int64_t i = 0; i < task->held_out_size(); ++i) {
      const Question q = task->HeldOut(i);
      const int a = std::stoi(q.fields.at("a"));
      const int b = std::stoi(q.fields.at("b"));
      held_out.insert({a, b});
      unordered.insert({std::min(a, b), std::max(a, b)});
    }
    EXPECT_EQ(unordered.size(), 9U);
    for (int64_t i = 0; i < task->train_size(); ++i) {
      const Question q = task->Train(i);
      train.insert({std::stoi(q.fields.at("a")), std::stoi(q.fields.at("b"))});
    }
    for (const auto& [a, b] : held_out) {
      EXPECT_TRUE(held_out.contains({b, a}));
      EXPECT_FALSE(train.contains({a, b}) || train.contains({b, a}));
    }
    EXPECT_EQ(train.size() + held_out.size(), 64U);  // all ordered pairs of 2..9
  }
}

TEST(ReverseTest, SpellsBackwards) {
  const auto task = Make(
      {.name = "reverse", .options = {{"length", "[3, 5]"}, {"letters", "\"abcdefgh\""}}, .held_out = 128});
  std::map<size_t, int> lengths;
  for (int64_t i = 0; i < task->train_size(); ++i) {
    const Question q = task->Train(i);
    const std::string text = q.fields.at("text");
    EXPECT_EQ(q.prompt, "rev " + text + "=");
    EXPECT_EQ(q.answer, std::string(text.rbegin(), text.rend()));
    ++lengths[text.size()];
  }
  EXPECT_EQ(lengths.size(), 3U);
  EXPECT_GT(lengths[3], 400);  // 512 strings of length 3 are not drowned by 32768 of length 5
}

TEST(ReverseTest, LongStringsStayDistinctAndUseAllLetters) {
  const auto task = Make({.name = "reverse", .options = {{"length", "40"}}, .size = 1000});
  std::set<std::string> seen;
  std::map<char, int> at_5;
  std::map<char, int> at_35;
  for (int64_t i = 0; i < task->train_size(); ++i) {
    const std::string text = task->Train(i).fields.at("text");
    seen.insert(text);
    ++at_5[text[5]];
    ++at_35[text[35]];
  }
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_EQ(at_5.size(), 26U);
  EXPECT_EQ(at_35.size(), 26U);
}

TEST(CountdownTest, TargetsLieInTheRangeWhereTheNumbersReachIt) {
  const auto task = Make({.name = "countdown", .size = 300});
  int inside = 0;
  for (int64_t i = 0; i < task->train_size(); ++i) {
    const int target = std::stoi(task->Train(i).fields.at("target"));
    inside += target >= 100 && target <= 999 ? 1 : 0;
  }
  EXPECT_GE(inside, 295);
}

TEST(QuestionSpaceTest, SharesAreEqualAsFarAsTheyCan) {
  EXPECT_THAT(EqualShares(10, {100, 100}), testing::ElementsAre(5, 5));
  EXPECT_THAT(EqualShares(10, {2, 100, 100}), testing::ElementsAre(2, 4, 4));
  EXPECT_THAT(EqualShares(1000, {2, 3}), testing::ElementsAre(2, 3));
  const auto shares = EqualShares(11, {100, 100, 100});
  EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), int64_t{0}), 11);
}

TEST(QuestionSpaceTest, CoversASmallSpaceExactlyOnce) {
  auto space = QuestionSpace::Create({4, 16, 64}, 1000, 20, 3);
  ASSERT_TRUE(space.ok());
  EXPECT_EQ(space->train_size() + space->held_out_size(), 84);
  std::set<std::pair<int64_t, int64_t>> seen;
  for (int64_t i = 0; i < space->train_size(); ++i)
    seen.insert({space->Train(i).stratum, space->Train(i).code});
  for (int64_t i = 0; i < space->held_out_size(); ++i)
    seen.insert({space->HeldOut(i).stratum, space->HeldOut(i).code});
  EXPECT_EQ(seen.size(), 84U);
}

// In the largest space codes near each other differ, whatever the radices are.
TEST(CodeReaderTest, DifferentCodesGiveDifferentDigits) {
  for (const int64_t radix : {2, 7, 10, 26, 1000, 900000}) {
    std::set<std::vector<int64_t>> seen;
    int64_t codes = 0;
    for (const int64_t base : {int64_t{0}, kSpaceLimit / 2, kSpaceLimit - 200}) {
      for (int64_t i = 0; i < 200; ++i, ++codes) {
        CodeReader reader({.stratum = 0, .code = base + i}, 5);
        std::vector<int64_t> digits;
        for (int k = 0; k < 70; ++k) digits.push_back(reader.Take(radix));
        seen.insert(digits);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), codes) << radix;
  }
}

TEST(NumberTaskTest, AnswersAreThoseOfASecondWayOfComputing) {
  const auto sorting = Make({.name = "number_sorting", .size = 200, .held_out = 0, .seed = 3});
  for (int64_t i = 0; i < sorting->train_size(); ++i) {
    const Question q = sorting->Train(i);
    std::vector<double> numbers;
    const std::string list = q.prompt.substr(q.prompt.find("order: ") + 7);
    for (size_t at = 0; at < list.size();) {
      size_t used = 0;
      numbers.push_back(std::stod(list.substr(at), &used));
      at = list.compare(at + used, 2, ", ") == 0 ? at + used + 2 : list.size();
    }
    const bool down = q.fields.at("direction") == "descending";
    EXPECT_EQ(q.prompt.find("descending") != std::string::npos, down);
    std::ranges::sort(numbers);
    if (down) std::ranges::reverse(numbers);
    EXPECT_EQ(
        SortingScore(q.answer, numbers, down ? SortDirection::kDescending : SortDirection::kAscending, 0), 1)
        << q.prompt << q.answer;
  }
  const auto bases = Make({.name = "base_conversion", .size = 200, .held_out = 0, .seed = 3});
  for (int64_t i = 0; i < bases->train_size(); ++i) {
    const Question q = bases->Train(i);
    int number = 0, base = 0;
    ASSERT_EQ(std::sscanf(q.prompt.c_str(), "Write %d in base %d", &number, &base), 2);
    EXPECT_EQ(std::stoi(q.answer, nullptr, base), number);
  }
  const auto gcd = Make({.name = "gcd", .size = 50, .held_out = 0, .seed = 3}),
             lcm = Make({.name = "lcm", .size = 50, .held_out = 0, .seed = 3});
  for (int64_t i = 0; i < 50; ++i) {
    int a = 0, b = 0;
    ASSERT_EQ(
        std::sscanf(gcd->Train(i).prompt.c_str(), "What is the greatest common divisor of %d and %d", &a, &b),
        2);
    const int g = std::stoi(gcd->Train(i).answer);
    EXPECT_TRUE(a % g == 0 && b % g == 0);
    for (int larger = g + 1; larger <= std::min(a, b); ++larger)
      EXPECT_FALSE(a % larger == 0 && b % larger == 0);
    ASSERT_EQ(
        std::sscanf(lcm->Train(i).prompt.c_str(), "What is the least common multiple of %d and %d", &a, &b),
        2);
    const int64_t l = std::stoll(lcm->Train(i).answer);
    EXPECT_TRUE(l % a == 0 && l % b == 0 && l * std::gcd(a, b) == int64_t{a} * b);
  }
}

// What a plug-in counts wrong is told in words, not by the check of a number further down.
TEST(SpaceTaskTest, AStratumWithoutQuestionsIsNamed) {
  const auto make = [](StrataOf strata) {
    const TaskPlugin plugin =
        SpaceTask({.doc = "odd"}, strata,
                  [](const QuestionSpace::Pick&, const OptionValues&, uint64_t) { return Question{}; });
    const OptionValues options = *OptionValues::Parse({}, {});
    EXPECT_EQ(plugin.units(options).status().code(), StatusCode::kFailedPrecondition);
    return plugin.make(options, {.name = "odd", .size = 4, .held_out = 0}).status().message();
  };
  EXPECT_THAT(make([](const OptionValues&) -> StatusOr<std::vector<int64_t>> {
                return std::vector<int64_t>{9, 0};
              }),
              HasSubstr("stratum 1 of 2 has 0 questions with these options, expected 1 to "));
  EXPECT_THAT(
      make([](const OptionValues&) -> StatusOr<std::vector<int64_t>> { return std::vector<int64_t>{}; }),
      HasSubstr("there is no stratum with these options"));
}

}  // namespace
}  // namespace tidepool::tasks
