// Tally: a running total over several turns. Each turn adds or takes a number, and the player says the total.
// The number of turns has a long tail, so episodes and with them the lengths of samples do.

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/environments/text_game.h"

namespace tidepool::environments {
namespace {

struct TallyOptions {
  int64_t modulo = 10;  // 0: none
  std::pair<int64_t, int64_t> numbers;
  int64_t median = 3, max_turns = 12;
  bool terse = false;
};

// "3+4-2+9": the start, then what happens in each turn after the first.
class TallyGame : public TextGame {
 public:
  TallyGame(const TallyOptions& options, const std::string& layout) : options_(options) {
    int64_t sign = 1, number = 0;
    for (const char c : layout + "+") {
      if (c >= '0' && c <= '9') {
        number = number * 10 + (c - '0');
        continue;
      }
      terms_.push_back(sign * number);
      sign = c == '-' ? -1 : 1;
      number = 0;
    }
  }

  std::string Reset() override {
    turn_ = 0;
    total_ = terms_[0];
    right_ = 0;
    if (options_.terse) return std::to_string(terms_[0]) + "=";
    return "Keep a running total" +
           std::string(options_.modulo > 0 ? ", of which you say the remainder after division by " +
                                                 std::to_string(options_.modulo)
                                           : "") +
           ". Reply to each line with <answer>total</answer>. Start: " + std::to_string(terms_[0]);
  }

  TextStep Step(const std::string& action) override {
    TextStep step;
    const bool right = AnswerText(action, options_.terse) == Wanted();
    right_ += right ? 1 : 0;
    step.reward = right ? 1.0 / static_cast<double>(terms_.size()) : 0;
    ++turn_;
    if (turn_ == static_cast<int64_t>(terms_.size())) {
      step.done = true;
      step.solved = right_ == turn_;
      return step;
    }
    const int64_t term = terms_[static_cast<size_t>(turn_)];
    total_ += term;
    step.observation = (term < 0 ? "-" : "+") + std::to_string(std::abs(term)) + (options_.terse ? "=" : "");
    return step;
  }

  // What is added does not depend on what is said, so a state is a turn.
  std::string State() const override { return std::to_string(turn_) + ": " + std::to_string(total_); }

  std::string Solve() const override {
    return options_.terse ? Wanted() : "<answer>" + Wanted() + "</answer>";
  }

 private:
  [[nodiscard]] std::string Wanted() const {
    if (options_.modulo == 0) return std::to_string(total_);
    return std::to_string(((total_ % options_.modulo) + options_.modulo) % options_.modulo);
  }

  TallyOptions options_;
  std::vector<int64_t> terms_;
  int64_t turn_ = 0, total_ = 0, right_ = 0;
};

class TallyEnvironment : public TextEnvironment {
 public:
  TallyEnvironment(const TallyOptions& options, uint64_t seed) : options_(options), seed_(seed) {}
  std::unique_ptr<TextGame> Make(bool held_out, int64_t index) const override {
    const std::string layout = DrawLayout(seed_, held_out, index, [this](Rng& rng) {
      // Median turns, a heavy tail, cut at the limit.
      const double drawn = std::exp(0.8 * rng.Normal()) * static_cast<double>(options_.median);
      const int64_t turns = std::clamp<int64_t>(std::llround(drawn), 1, options_.max_turns);
      std::string text = std::to_string(rng.InRange(options_.numbers.first, options_.numbers.second));
      for (int64_t i = 1; i < turns; ++i) {
        text += (rng.Chance(0.5) ? "+" : "-") +
                std::to_string(rng.InRange(options_.numbers.first, options_.numbers.second));
      }
      return text;
    });
    return std::make_unique<TallyGame>(options_, layout);
  }
  int64_t max_turns() const override { return options_.max_turns; }

 private:
  TallyOptions options_;
  uint64_t seed_;
};

}  // namespace

TP_PLUGIN(TextEnvironment, tally) {
  using tasks::OptionKind;
  return {
      .doc = "Keep a running total over a number of turns that has a long tail.",
      .action = "the total, <answer>12</answer>; terse: 12",
      .reward = "the share of turns with the right total",
      .options =
          {{"numbers", OptionKind::kRange, "[0, 9]", 0, 99999, {}, "that are added or taken"},
           {"modulo", OptionKind::kInt, "0", 0, 1000000, {}, "the total is said as a remainder; 0: as it is"},
           {"turns", OptionKind::kInt, "12", 1, 1000, {}, "at most, of an episode"},
           {"median_turns", OptionKind::kInt, "3", 1, 1000, {}, "half of the episodes have no more"},
           tasks::ChoiceOption("style", {"chat", "terse"}, "sentences, or digits for a tiny model")},
      .make = [](const tasks::OptionValues& o, uint64_t seed) -> StatusOr<std::unique_ptr<TextEnvironment>> {
        if (o.Int("median_turns") > o.Int("turns")) {
          return InvalidArgument("median_turns: " + std::to_string(o.Int("median_turns")) +
                                 " is more than turns, " + std::to_string(o.Int("turns")) + "; lower it");
        }
        const TallyOptions options{.modulo = o.Int("modulo"),
                                   .numbers = o.Range("numbers"),
                                   .median = o.Int("median_turns"),
                                   .max_turns = o.Int("turns"),
                                   .terse = o.Text("style") == "terse"};
        std::unique_ptr<TextEnvironment> made = std::make_unique<TallyEnvironment>(options, seed);
        return made;
      }};
}

}  // namespace tidepool::environments
