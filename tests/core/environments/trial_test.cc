#include "core/environments/trial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <stdexcept>

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

// Does one thing wrong.
class WrongEnvironment : public TextEnvironment {
 public:
  enum class In { kMake, kNoGame, kMaxTurns, kReset, kState, kReward, kObservation };
  explicit WrongEnvironment(In in) : in_(in) {}
  std::unique_ptr<TextGame> Make(bool, int64_t) const override {
    if (in_ == In::kMake) std::raise(SIGABRT);
    if (in_ == In::kNoGame) return nullptr;
    return std::make_unique<Game>(in_);
  }
  int64_t max_turns() const override {
    if (in_ == In::kMaxTurns) throw std::runtime_error("no limit");
    return 5;
  }

 private:
  class Game : public TextGame {
   public:
    explicit Game(In in) : in_(in) {}
    std::string Reset() override { return in_ == In::kReset ? "" : "begin"; }
    TextStep Step(const std::string&) override {
      return {.observation = in_ == In::kObservation ? "" : "go on",
              .reward = in_ == In::kReward ? std::nan("") : 0};
    }
    std::string State() const override {
      if (in_ == In::kState) std::raise(SIGABRT);
      return "";
    }
    std::string Solve() const override { return "x"; }

   private:
    In in_;
  };
  In in_;
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

TEST(TrialTest, TheFunctionThatDidWrongIsNamed) {
  using In = WrongEnvironment::In;
  const std::string game = "training game 0, ";
  for (const auto& [in, said] : std::vector<std::pair<In, std::string>>{
           {In::kMake, game + "Make(): was killed by signal 6 (SIGABRT)"},
           {In::kNoGame, game + "Make() gave no game"},
           {In::kMaxTurns, "max_turns(): threw an exception: no limit"},
           {In::kReset, game + "Reset() gave no text for the policy to read"},
           {In::kState, game + "turn 1, State(): was killed by signal 6 (SIGABRT)"},
           {In::kReward,
            game + "turn 1, Step('x') gave the reward nan, but a reward has to be a finite number"},
           {In::kObservation,
            game + "turn 1, Step('x') gave no text for the policy to read, and the game is not over"}}) {
    const auto played = PlayTrial(
        WrongEnvironment(in), "environment wrong (games/wrong.cc)", {}, [](const std::string&, Said) {},
        [] { return std::string(); });
    EXPECT_EQ(played.status().message(), "environment wrong (games/wrong.cc), " + said);
  }
}

}  // namespace
}  // namespace tidepool::environments
