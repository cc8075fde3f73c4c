#pragma once
// What was built: version, commit, compiler.

#include <string>

namespace tidepool::workers {
std::string BuildInfo();     // "tidepool 0.1.0 (abc1234)"
std::string BuildVersion();  // "0.1.0"
std::string
BuildCommit();  // "abc1234", "-dirty" behind it if the tree had changes; "unknown" outside a checkout
}  // namespace tidepool::workers
