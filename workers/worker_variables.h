#pragma once
// What workers, and what they start, are given of the environment variables of whoever started the run. All
// else stays behind: they run code of others on text of a model, and keys of clouds and registries are often
// in the environment. Any thread.

#include <string_view>

namespace tidepool::workers {

// `entry`: NAME=VALUE.
[[nodiscard]] bool IsForWorkers(std::string_view entry);

}  // namespace tidepool::workers
