#pragma once
// What people are told when a reward server begins to fail: until when it is waited for, when the run ends if
// it does not come back, and by which keys that is changed. docs/adding_a_reward.md has the rules.

#include <span>
#include <string>

#include "core/base/config.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

// Those that are of a function of the config: others are said by a worker with another config.
std::vector<up::Unreachable> ServersOf(const RewardConfig& config, std::span<const up::Unreachable> servers);
// "judge at unix:/x: Connection refused; ...".
std::string ServersText(const RewardConfig& config, std::span<const up::Unreachable> servers);
// Nobody answers there. `any_graded`: a sample of this life was graded before.
std::string UnreachableText(const JobConfig& config, std::span<const up::Unreachable> servers,
                            bool any_graded);
// It answers, too late or with errors; or, where there is no server, a function fails.
std::string FailingText(const JobConfig& config, const std::string& why, bool any_graded);

}  // namespace tidepool::workers
