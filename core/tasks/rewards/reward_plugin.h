#pragma once
// One reward, as the files of this folder define them (docs/adding_a_reward.md): pure functions, called from
// several threads. What a score may be, and when a row is at fault, is in core/tasks/reward.h.

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/plugin.h"
#include "core/tasks/reward.h"

namespace tidepool::tasks {

struct RewardPlugin {
  std::string argument = {};           // what may stand after the colon, for people; empty: nothing
  std::string doc;                     // one line
  std::vector<std::string> keys = {};  // RewardInfo::keys; some: there is no `make`
  // The reward for an argument, "" where none is given. kInvalidArgument: "NAME: what; what to do".
  StatusOr<Reward> (*make)(const std::string& argument) = nullptr;
};

inline Verdict Ok(double score, std::string detail = {}) {
  return {Verdict::Outcome::kOk, score, std::move(detail)};
}
inline Verdict BadData(std::string detail) { return {Verdict::Outcome::kData, 0, std::move(detail)}; }
inline Verdict NoAnswer() { return BadData("the row has no answer, and this reward compares with one"); }

// `make` of a reward that takes no argument.
template <Verdict (*score)(const RewardInput&)>
StatusOr<Reward> WithoutArgument(const std::string& /*argument*/) {
  return Reward(score);
}

std::span<const Plugin<RewardPlugin>> RewardPlugins();  // the table that the build writes

}  // namespace tidepool::tasks
