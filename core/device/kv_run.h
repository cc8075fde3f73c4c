#pragma once
// Plain data that kernels and the decoder share.

#include <cstdint>

namespace tidepool::device {

// Consecutive slots of a KV memory.
struct KvRun {
  int32_t start = 0;  // first slot
  int32_t count = 0;  // slots
};

}  // namespace tidepool::device
