#include "core/environments/trial.h"

#include <gtest/gtest.h>

#include <csignal>

namespace tidepool::environments {
namespace {

// Counts to three; from the second action on it does what it is told to do.
class CountingGame : public TextGame {
 public:
  explicit CountingGame(void (*then)()) : then_(then) {}
  std::string Reset() override { return "count"; }
  TextStep Step(const std::string& action) override {
    if (++steps_ == 2 && then_ != nullptr) then_();
    return {.observation = "after '" + action + "'", .done = steps_ == 3};
  }
  std::string State() const override { return std::to_string(steps_); }
  std::string Solve() const override { return std::to_string(steps_ + 1); }

 private:
  void (*then_)();
  int steps_ = 0;
};

class CountingEnvironment : public TextEnvironment {
 public:
  explicit CountingEnvironment(void (*then)()) : then_(then) {}
  std::unique_ptr<TextGame> Make(bool, int64_t) const override {
    return std::make_unique<CountingGame>(then_);
  }
  int64_t max_turns() const override { return 5; }

 private:
  void (*then_)();
};

StatusOr<std::string> Play(void (*then)(), const TrialOptions& options) {
  std::string all;
  return PlayTrial(
      CountingEnvironment(then), "environment counting (games/counting.cc)", options,
      [&](const std::string& text, Said said) {
        all += std::string(said == Said::kAction ? ">" : said == Said::kLast ? "." : "<") + text + " ";
      },
      [&] { return all; });
}

TEST(TrialTest, AllThatIsSaidIsLookedAt) {
  EXPECT_EQ(*Play(nullptr, {.games = 1, .varied = false}),
            "<count >1 <after '1' >2 <after '2' >3 .after '3' ");
  EXPECT_EQ(*Play(nullptr, {.games = 1}), "<count >1 <after '1' >2 <after '' >3 .after '3' ");
  EXPECT_EQ(*Play(nullptr, {.games = 2, .turns = 1, .varied = false}),
            "<count >1 <after '1' <count >1 <after '1' ");
}

TEST(TrialTest, AGameThatCrashesOrHangsIsNamedWithItsStepAndAction) {
  const std::string where = "environment counting (games/counting.cc), training game 0, turn 2, Step('2'): ";
  EXPECT_EQ(Play([] { std::raise(SIGABRT); }, {.varied = false}).status().message(),
            where + "was killed by signal 6 (SIGABRT)");
  EXPECT_EQ(Play([] { throw 42; }, {.varied = false}).status().message(),
            where + "threw something that is no std::exception");
  const auto hang = [] {
    for (volatile bool on = true; on;) {
    }
  };
  EXPECT_EQ(Play(hang, {.varied = false, .step_s = 0.05}).status().message(),
            where + "did not end within 0.05 s");
}

}  // namespace
}  // namespace tidepool::environments
