#pragma once
// An episode of a control task as an animated picture: one self-contained SVG (SMIL, no script), light and
// dark as the reader's system is, in the time that the task itself has. Browsers show it, also inside a page
// or a README. Pure; thread-safe.

#include <optional>
#include <string>
#include <vector>

#include "core/base/call_watch.h"
#include "core/base/status.h"
#include "core/environments/vector.h"

namespace tidepool::environments {

struct EpisodeFrames {
  VectorSpec spec;
  std::vector<float> observations;  // [steps + 1, observation_size]: before each step, and at the end
  std::vector<float> actions;       // [steps, action_size]
  std::vector<float> rewards;       // [steps]
};

// Plays instance `index`'s first episode again with the actions that were taken in it; an episode is a pure
// function of them. `limit`: each call of the task is a LimitedCall like that; none: it takes as long as it
// takes. kInvalidArgument: it does not end with the last of them, or an action does not exist.
StatusOr<EpisodeFrames> ReplayEpisode(const VectorOptions& options, uint64_t index,
                                      const std::vector<float>& actions,
                                      const std::optional<PluginCall>& limit = std::nullopt);

// `title`: one line over the picture. An environment without a scene of its own in drawing.cc is shown as
// curves of what is observed.
std::string DrawEpisode(const EpisodeFrames& episode, const std::string& title);

}  // namespace tidepool::environments
