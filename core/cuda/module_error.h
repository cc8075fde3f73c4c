#pragma once
// How a function of the module says why it failed: nothing is thrown through a C function.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace tidepool::cuda {

// Returns 1.
inline int Fail(const std::string& message, char* error, int64_t error_bytes) {
  if (error != nullptr && error_bytes > 0) {
    const auto n = std::min<int64_t>(static_cast<int64_t>(message.size()), error_bytes - 1);
    std::memcpy(error, message.data(), static_cast<size_t>(n));
    error[n] = '\0';
  }
  return 1;
}

}  // namespace tidepool::cuda
