#pragma once
// The first games of an environment, played by their own solver to see what they say. They may be a plug-in's
// that nobody has played before, so they are played in a child (core/base/child_call.h).

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/status.h"
#include "core/environments/text_game.h"

namespace tidepool::environments {

struct TrialOptions {
  int64_t games = 32;
  int64_t turns = INT64_MAX;  // of a game, at most
  bool varied = true;         // every second game is a held-out one, and the second turn of each says nothing
  double reset_s = 60, step_s = 60;  // limits of a reset, of a step
};

// What the game says first, what its solver answers, what the game says to it, and when that was the end.
enum class Said : uint8_t { kFirst, kAction, kObservation, kLast };

// In the child `look` is called with every text in order, and in the end `result`, whose text is returned.
// Errors of InChild, and kDataLoss where a game breaks the rules of TextStep, in words that begin with
// `label` and say which call of which game it was, and with what action.
StatusOr<std::string> PlayTrial(const TextEnvironment& environment, const std::string& label,
                                const TrialOptions& options,
                                const std::function<void(const std::string& text, Said said)>& look,
                                const std::function<std::string()>& result);

}  // namespace tidepool::environments
