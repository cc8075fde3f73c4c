// A game that does something wrong in one of its functions.
#include <cmath>
#include <cstdio>

#include "core/environments/text_game.h"
#include "tests/plugins/faulty/faults.h"

namespace tidepool::environments {
namespace {

// "Step crash": the function, and what it does wrong; "Turn crash": in Step, but not for its own solver;
// "Begin crash": in Reset, but not of the games that are tried before a run.
struct Fault {
  std::string in, how;
  explicit Fault(const std::string& text)
      : in(text.substr(0, text.find(' '))), how(text.substr(text.find(' ') + 1)) {}
  void Here(const std::string& function) const {
    if (in == function) DoWrong(how);
  }
};

class FaultyGame : public TextGame {
 public:
  FaultyGame(const Fault& fault, int64_t index)
      : fault_(fault), index_(index), digit_(std::to_string(index % 10)) {}
  std::string Reset() override {
    fault_.Here("Reset");
    if (index_ >= 64 && fault_.in == "Begin") {
      std::fprintf(stderr, "it was asked for training game %lld\n", static_cast<long long>(index_));
      fault_.Here("Begin");
    }
    turn_ = 0;
    return digit_ + "?";
  }
  TextStep Step(const std::string& action) override {
    const bool now = fault_.in == "Step" || (fault_.in == "Turn" && !action.empty() && action != digit_);
    if (now) DoWrong(fault_.how);
    ++turn_;
    if (now && fault_.how == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(900));
    if (now && fault_.how == "nan") return {.observation = "?", .reward = NAN};
    return {.observation = digit_ + "?", .reward = 0.5, .done = turn_ == 2, .solved = turn_ == 2};
  }
  std::string State() const override {
    fault_.Here("State");
    return digit_ + " " + std::to_string(turn_);
  }
  std::string Solve() const override {
    fault_.Here("Solve");
    return digit_;
  }

 private:
  Fault fault_;
  int64_t index_;
  std::string digit_;
  int64_t turn_ = 0;
};

class FaultyEnvironment : public TextEnvironment {
 public:
  explicit FaultyEnvironment(Fault fault) : fault_(std::move(fault)) {}
  std::unique_ptr<TextGame> Make(bool /*held_out*/, int64_t index) const override {
    fault_.Here("Make");
    return std::make_unique<FaultyGame>(fault_, index);
  }
  int64_t max_turns() const override {
    fault_.Here("max_turns");
    return 4;
  }

 private:
  Fault fault_;
};

}  // namespace

TP_PLUGIN(TextEnvironment, faulty_game) {
  return {
      .doc = "A game that does something wrong.",
      .action = "anything",
      .reward = "0.5 a turn",
      .options = {{"fault", tasks::OptionKind::kText, "\"no\"", 0, 100, {}, "the function and what it does"}},
      .make = [](const tasks::OptionValues& options,
                 uint64_t /*seed*/) -> StatusOr<std::unique_ptr<TextEnvironment>> {
        const Fault fault(options.Text("fault"));
        fault.Here("make");
        return std::unique_ptr<TextEnvironment>(std::make_unique<FaultyEnvironment>(fault));
      }};
}

}  // namespace tidepool::environments
