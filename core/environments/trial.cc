#include "core/environments/trial.h"

#include <algorithm>
#include <chrono>

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
  return InChild([&](const ChildNote& note) {
    using Seconds = std::chrono::duration<double>;
    for (int64_t i = 0; i < options.games; ++i) {
      const bool held_out = options.varied && i % 2 == 1;
      const std::string game_name =
          label + ", " + (held_out ? "held-out game " : "training game ") + std::to_string(i) + ", ";
      note(game_name + "Reset()", Seconds(options.reset_s));
      const auto game = environment.Make(held_out, i);
      look(game->Reset(), Said::kFirst);
      for (int64_t turn = 0; turn < std::min(environment.max_turns(), options.turns); ++turn) {
        const std::string in_turn = game_name + "turn " + std::to_string(turn + 1) + ", ";
        note(in_turn + "Solve()", Seconds(options.step_s));
        const std::string solved = game->Solve();
        look(solved, Said::kAction);
        const std::string action = options.varied && turn == 1 ? std::string() : solved;
        note(in_turn + "Step(" + Quoted(action) + ")", Seconds(options.step_s));
        const TextStep step = game->Step(action);
        look(step.observation, step.done ? Said::kLast : Said::kObservation);
        if (step.done) break;
      }
    }
    return result();
  });
}

}  // namespace tidepool::environments
