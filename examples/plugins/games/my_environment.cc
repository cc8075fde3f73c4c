// my_environment: what is played, in a sentence.
//
// To do: write the game. docs/adding_an_environment.md explains what it has to promise: an episode follows
// from (options, seed, index, actions) alone, and nothing that a policy says is an error.
#include "core/environments/text_game.h"

namespace tidepool::environments {
namespace {

// As an example: the policy is told a number and has to say it back, a given number of times.
class MyEnvironmentGame : public TextGame {
 public:
  MyEnvironmentGame(std::string layout, int64_t rounds) : layout_(std::move(layout)), rounds_(rounds) {}

  std::string Reset() override {
    round_ = right_ = 0;
    return Wanted() + "?";
  }

  TextStep Step(const std::string& action) override {
    const bool right =
        AnswerText(action, /*bare=*/true) == Wanted();  // text of <answer>...</answer>, else all of it
    right_ += right ? 1 : 0;
    ++round_;
    const double reward =
        right ? 1.0 / static_cast<double>(rounds_) : 0;  // of this step; the episode's is the sum
    if (round_ == rounds_)
      return {.observation = "", .reward = reward, .done = true, .solved = right_ == rounds_};
    return {.observation = Wanted() + "?", .reward = reward};
  }

  // Equal wherever what can still happen is the same.
  std::string State() const override { return layout_ + " " + std::to_string(round_); }
  // What a good player says now: for tests, and for `tidepool environments`.
  std::string Solve() const override { return Wanted(); }

 private:
  [[nodiscard]] std::string Wanted() const { return std::string(1, layout_[static_cast<size_t>(round_)]); }

  std::string layout_;  // a digit a round
  int64_t rounds_, round_ = 0, right_ = 0;
};

class MyEnvironment : public TextEnvironment {
 public:
  MyEnvironment(const tasks::OptionValues& options, uint64_t seed)
      : rounds_(options.Int("rounds")), seed_(seed) {}

  std::unique_ptr<TextGame> Make(bool held_out, int64_t index) const override {
    // The text says all about a game: DrawLayout uses it to keep held-out games out of training.
    const std::string layout = DrawLayout(seed_, held_out, index, [this](Rng& rng) {
      std::string digits;
      for (int64_t i = 0; i < rounds_; ++i) digits += std::to_string(rng.InRange(0, 9));
      return digits;
    });
    return std::make_unique<MyEnvironmentGame>(layout, rounds_);
  }
  int64_t max_turns() const override { return rounds_; }

 private:
  int64_t rounds_;
  uint64_t seed_;
};

}  // namespace

TP_PLUGIN(TextEnvironment, my_environment) {
  return {
      .doc = "Say back the number that is told.",
      .action = "a number, <answer>5</answer> or 5",
      .reward = "the share of rounds with the right number",
      .options =
          {{"rounds", tasks::OptionKind::kInt, "3", 1, 100, {}, "of an episode"}},  // keys of `environment`
      .make = [](const tasks::OptionValues& options,
                 uint64_t seed) -> StatusOr<std::unique_ptr<TextEnvironment>> {
        return std::unique_ptr<TextEnvironment>(std::make_unique<MyEnvironment>(options, seed));
      }};
}

}  // namespace tidepool::environments
