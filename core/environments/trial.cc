#include "core/environments/trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/base/child_call.h"

namespace tidepool::environments {
namespace {

std::string Quoted(const std::string& action) {
  constexpr size_t kMost = 60;
  return "'" + (action.size() > kMost ? action.substr(0, kMost) + " ..." : action) + "'";
}

}  // namespace

StatusOr<std::string> PlayTrial(const TextEnvironment& environment, const std::string& label,
                                const TrialOptions& options,
                                const std::function<void(const std::string& text, Said said)>& look,
                                const std::function<std::string()>& result) {
  // What comes back begins with one of these.
  constexpr char kBroke = '!', kPlayed = '=';
  auto played = InChild([&](const ChildNote& note) {
    using Seconds = std::chrono::duration<double>;
    const Seconds reset(options.reset_s), step(options.step_s);
    note(label + ", max_turns()", step);
    const int64_t turns = std::min(environment.max_turns(), options.turns);
    for (int64_t i = 0; i < options.games; ++i) {
      const bool held_out = options.varied && i % 2 == 1;
      const std::string name =
          label + ", " + (held_out ? "held-out game " : "training game ") + std::to_string(i) + ", ";
      const auto broke = [&](const std::string& what) { return kBroke + name + what; };
      note(name + "Make()", reset);
      const auto game = environment.Make(held_out, i);
      if (game == nullptr) return broke("Make() gave no game");
      note(name + "Reset()", reset);
      const std::string first = game->Reset();
      if (first.empty()) return broke("Reset() gave no text for the policy to read");
      look(first, Said::kFirst);
      for (int64_t turn = 0; turn < turns; ++turn) {
        const std::string in_turn = "turn " + std::to_string(turn + 1) + ", ";
        note(name + in_turn + "State()", step);
        (void)game->State();
        note(name + in_turn + "Solve()", step);
        const std::string solved = game->Solve();
        look(solved, Said::kAction);
        const std::string action = options.varied && turn == 1 ? std::string() : solved;
        const std::string call = in_turn + "Step(" + Quoted(action) + ")";
        note(name + call, step);
        const TextStep now = game->Step(action);
        if (!std::isfinite(now.reward))
          return broke(call + " gave the reward " + std::to_string(now.reward) +
                       ", but a reward has to be a finite number");
        if (!now.done && turn + 1 < turns && now.observation.empty())
          return broke(call + " gave no text for the policy to read, and the game is not over");
        look(now.observation, now.done ? Said::kLast : Said::kObservation);
        if (now.done) break;
      }
    }
    return kPlayed + result();
  });
  if (!played.ok()) return played;
  if (played->front() == kBroke) return DataLoss(played->substr(1));
  return played->substr(1);
}

}  // namespace tidepool::environments
