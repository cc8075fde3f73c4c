#pragma once
// `tidepool eval` of a model of text in games of several turns (core/environments/episode.h): the held-out
// games that a run with the same seed evaluates on. One thread.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "workers/cli/inference.h"
#include "workers/cli/plugin_calls.h"
#include "workers/data/row_source.h"

namespace tidepool::workers {

struct GameEvalOptions {
  int32_t samples = 1;  // episodes of each game
  bool greedy = true;
  int64_t max_new_tokens = 0;     // of all turns of an episode, what the game says between them included
  int32_t adapter = kOwnWeights;  // of the session
};

struct PlayedGame {
  int64_t game = 0;
  int32_t sample = 0;
  double reward = 0;
  bool solved = false, ended = false;  // ended: by the game, not at a limit of turns or tokens
  int64_t turns = 0, tokens = 0;       // tokens: that the model said
  std::vector<std::string> said;       // by turns: what the game showed, what the model answered, ...
  std::string error;                   // not empty: it could not be played to its end
};

// Plays all held-out games of a job with an environment, a turn of all at a time. `on_done` (may be empty)
// gets each as it ends. Errors of the game's options and of the session, and where a call of a game was given
// up (PluginCalls::lost).
StatusOr<std::vector<PlayedGame>> PlayGames(InferenceSession& session, const RowSource& text,
                                            PluginCalls& calls, const JobConfig& job,
                                            const GameEvalOptions& options,
                                            const std::function<void(const PlayedGame&)>& on_done = {});

}  // namespace tidepool::workers
