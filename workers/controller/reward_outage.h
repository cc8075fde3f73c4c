#pragma once
// What people are told when a reward server begins to fail: until when it is waited for, when the run ends if
// it does not come back, and by which keys that is changed. docs/adding_a_reward.md has the rules.

#include <string>

#include "core/base/config.h"

namespace tidepool::workers {

// Nobody answers there. `server`: as a worker names it, "judge at unix:/x: Connection refused". `any_graded`:
// a sample of this life was graded before.
std::string UnreachableText(const JobConfig& config, const std::string& server, bool any_graded);
// It answers, too late or with errors; or, where there is no server, a function fails.
std::string FailingText(const JobConfig& config, const std::string& why, bool any_graded);

}  // namespace tidepool::workers
