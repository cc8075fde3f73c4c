#pragma once
// How often one operation is tried on one worker before it is the worker's fault.

#include <cstdint>

namespace tidepool::scheduler {

inline constexpr int64_t kTries = 3;

}  // namespace tidepool::scheduler
