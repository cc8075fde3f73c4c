#pragma once
// `tidepool eval` of a policy of control tasks: episodes are played by a worker process; what they were worth
// is said and drawn here.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "workers/cli/command.h"
#include "workers/cli/model_lookup.h"

namespace tidepool::workers {

struct PolicyEvalOptions {
  std::vector<std::string> tasks;         // at most one: the environment
  std::vector<std::string> task_options;  // name=JSON, of the environment; max_episode_steps too
  std::optional<uint64_t> seed;           // none: the run's, of a policy without a run 1
  int64_t episodes = 100;
  bool sampled = false;
  std::string output;  // JSONL, a line an episode
  std::string render;  // SVG of episode `episode`
  int64_t episode = 0;
  bool as_json = false;
};
Status EvaluatePolicy(const CommandContext& context, const FoundModel& model,
                      const PolicyEvalOptions& options);

struct PlayedEpisode {
  int64_t episode = 0, steps = 0;
  double score = 0;         // its return
  bool terminated = false;  // by the task's rules; else by the limit of steps
  std::vector<float> actions;
};
// What `tidepool-worker play` wrote, by episode. kDataLoss: not `episodes` whole lines.
StatusOr<std::vector<PlayedEpisode>> ReadEpisodes(const std::string& path, int64_t episodes);

}  // namespace tidepool::workers
