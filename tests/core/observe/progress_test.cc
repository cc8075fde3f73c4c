#include "core/observe/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/observe/learning_watch.h"
#include "tests/core/observe/temp_folder.h"

namespace tidepool::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StatusFile Training(int64_t step) {
  StatusFile s;
  s.name = "quickstart";
  s.phase = "training";
  s.step = step;
  s.steps = 100;
  s.reward = 0.6134;
  s.held_out = {
      .measure = "accuracy", .before = {{.value = 0.211}}, .last = {{.step = 30, .value = 0.58}}, .best = {}};
  s.response_tokens = 5.1;
  s.tokens_per_s = 12345;
  s.speed_of = "tok/s generated";
  s.lag_mean = 0.25;
  s.lag_max = 1;
  s.running = 16;
  s.queued = 3;
  s.elapsed_s = 72;
  s.left_s = 140;
  return s;
}

std::string Captured(const std::function<void(std::FILE*)>& body) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* file = ::open_memstream(&text, &size);
  body(file);
  std::fclose(file);
  std::string out(text, size);
  std::free(text);  // NOLINT: open_memstream's buffer
  return out;
}

TEST(ProgressTest, BlockShowsWhatMatters) {
  StatusFile s = Training(34);
  s.last_warning = "worker w1 restarted\x1b[2J";
  EXPECT_THAT(ProgressBlock(s, {100, 24}),
              ElementsAre("quickstart  training  step 34/100 [======>             ]  1m12s, about 2m20s left",
                          "  reward 0.613  held-out 21.1 % -> 58.0 %  length 5.1",
                          "  12,345 tok/s generated  lag 0.2 max 1  groups 16 running, 3 queued",
                          "  warning: worker w1 restarted [2J"));
}

TEST(ProgressTest, TheShareOfGroupsThatTeachNothingIsShown) {
  StatusFile s = Training(34);
  s.best_reward = 0.64;
  s.equal_groups = 0.25;
  EXPECT_EQ(ProgressBlock(s, {80, 24})[1],
            "  reward 0.613 (best 0.640)  equal groups 25 %  held-out 21.1 % -> 58.0 %");
  EXPECT_THAT(ProgressLine(s), HasSubstr("equal groups 25 %"));
}

TEST(ProgressTest, TheTimeLeftIsSeenAtEveryWidth) {
  StatusFile s = Training(34);
  s.name = "smollm2-products-with-a-long-name";
  s.phase = "warm start, training";
  s.last_warning = "worker w1 restarted (killed by signal 9) while it held a lease, and this goes on and on";
  EXPECT_THAT(ProgressBlock(s, {80, 24})[0], "warm start, training  step 34/100  1m12s, about 2m20s left");
  EXPECT_THAT(ProgressBlock(s, {60, 20}),
              ElementsAre("warm start, training  step 34/100  1m12s, about 2m20s left",
                          "  reward 0.613  held-out 21.1 % -> 58.0 %  length 5.1",
                          "  12,345 tok/s generated  lag 0.2 max 1", "  groups 16 running, 3 queued",
                          "  warning: worker w1 restarted (killed by signal 9) while",
                          "  it held a lease, and this goes on and on"));
  for (int64_t columns = 17; columns <= 200; ++columns) {
    const auto lines = ProgressBlock(s, {columns, 24});
    EXPECT_THAT(lines[0], HasSubstr("about 2m20s left")) << columns;
    for (const std::string& line : lines) EXPECT_LT(line.size(), static_cast<size_t>(columns));
  }
  EXPECT_LT(ProgressBlock(s, {30, 4}).size(), 4U) << "what has left the screen cannot be drawn over";
}

TEST(ProgressTest, ATerminalThatBecameNarrowerKeepsNoStaleLines) {
  TerminalSize size{100, 24};
  const std::string out = Captured([&](std::FILE* file) {
    Progress progress(file, /*terminal=*/true, FromSeconds(0), [&] { return size; });
    progress.Update(Training(1), {FromSeconds(0)});
    size.columns = 40;  // the terminal wraps the 76, 53 and 69 columns that stand there
    progress.Update(Training(2), {FromSeconds(1)});
    size.columns = 30;
    progress.Say("a line");
  });
  EXPECT_THAT(out, HasSubstr("\x1b[6A\r\x1b[J"));
  EXPECT_THAT(out, testing::Not(HasSubstr("\x1b[3A")));
}

TEST(ProgressTest, PlainOutputHasOneLineAStepAndNoControlCharacters) {
  const std::string out = Captured([](std::FILE* file) {
    Progress progress(file, /*terminal=*/false);
    for (int i = 0; i < 50; ++i) progress.Update(Training(1), {FromSeconds(i)});
    StatusFile s = Training(2);
    s.last_warning = "slow";
    progress.Update(s, {FromSeconds(60)});
    progress.Update(s, {FromSeconds(61)});
    for (int i = 3; i < 9; ++i) {
      s.last_warning = "sample " + std::to_string(i) + ".0.0 is dropped";
      progress.Update(s, {FromSeconds(62)});
    }
  });
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 4);
  EXPECT_THAT(out, HasSubstr("training  step 1/100  reward 0.613"));
  EXPECT_THAT(out, HasSubstr("warning: slow\ntraining  step 2/100"));
  EXPECT_THAT(out, testing::Not(HasSubstr("\x1b")));
}

TEST(ProgressTest, TerminalBlockIsDrawnOverItselfAndNotTooOften) {
  const std::string out = Captured([](std::FILE* file) {
    Progress progress(file, /*terminal=*/true);
    progress.Update(Training(1), {FromSeconds(0)});
    progress.Update(Training(2), {FromSeconds(0.01)});  // too soon
    progress.Update(Training(3), {FromSeconds(1)});
    progress.Update(Training(4), {FromSeconds(1.01)});  // drawn at the end
  });
  EXPECT_THAT(out, HasSubstr("step 1/100"));
  EXPECT_THAT(out, testing::Not(HasSubstr("step 2/100")));
  EXPECT_THAT(out, HasSubstr("\x1b[3A\r\x1b[Jquickstart  training  step 3/100"));
  EXPECT_THAT(out, HasSubstr("step 4/100"));
}

TEST(ProgressTest, TextsOfNumbersAndTimes) {
  EXPECT_EQ(DurationText(FromSeconds(7.31)), "7.3s");
  EXPECT_EQ(DurationText(FromSeconds(140)), "2m20s");
  EXPECT_EQ(DurationText(FromSeconds(3725)), "1h02m");
  EXPECT_EQ(NumberText(1234567.4), "1,234,567");
  EXPECT_EQ(NumberText(0.012345), "0.0123");
  EXPECT_EQ(NumberText(-1500), "-1,500");
  EXPECT_EQ(NumberText(3), "3");
}

TEST(TimeLeftTest, IsTheMeanOfRecentSteps) {
  TimeLeft left;
  left.OnStep(1, {FromSeconds(10)});
  EXPECT_FALSE(left.Estimate(10).has_value());
  left.OnStep(3, {FromSeconds(14)});
  EXPECT_DOUBLE_EQ(Seconds(*left.Estimate(10)), 14.0);
}

TEST(TimeLeftTest, StepsThatAreLateHaveNoTimeLeft) {
  TimeLeft left;
  left.OnStep(1, {FromSeconds(10)});
  EXPECT_FALSE(left.Still({FromSeconds(500)}).has_value()) << "nobody knows how long a step takes";
  left.OnStep(2, {FromSeconds(12)});
  EXPECT_FALSE(left.Still({FromSeconds(21)}).has_value());
  EXPECT_DOUBLE_EQ(Seconds(*left.Still({FromSeconds(23)})), 11.0);
  left.OnStep(3, {FromSeconds(42)});
  EXPECT_FALSE(left.Still({FromSeconds(130)}).has_value()) << "one took 30 s before";
  StatusFile s = Training(34);
  s.left_s.reset();
  s.still_s = 62;
  EXPECT_THAT(ProgressBlock(s, {120, 24})[0], HasSubstr("no step for 1m02s"));
}

TEST(LearningWatchTest, ARunThatLearnsNothingIsToldOnce) {
  LearningWatch watch;
  std::map<std::string, double> step = {{"reward/frac_reward_zero_std", 1}, {"actor/grad_norm", 0}};
  const auto told = [&](int64_t steps) {
    std::vector<std::string> lines;
    for (int64_t i = 0; i < steps; ++i) {
      if (const std::string line = watch.OnStep(step); !line.empty()) lines.push_back(line);
    }
    return lines;
  };
  EXPECT_TRUE(told(19).empty());
  EXPECT_THAT(told(40), testing::ElementsAre(HasSubstr(
                            "all rewards of each group were equal for 20 steps: nothing is learned")));
  step["actor/grad_norm"] = 0.1;
  EXPECT_TRUE(told(1).empty());
  EXPECT_TRUE(told(40).empty()) << "something else is learned from";
  step["actor/grad_norm"] = 0;
  EXPECT_EQ(told(20).size(), 1U);
  step["critic/grad_norm"] = 0.1;
  EXPECT_TRUE(told(40).empty());
}

}  // namespace
}  // namespace tidepool::observe
