#pragma once
// Seeds of a fuzzed case: few, or many with TIDEPOOL_FUZZ_SEEDS=n (the nightly test).

#include <cstdint>
#include <cstdlib>

namespace tidepool {

inline int64_t FuzzSeeds(int64_t usual) {
  const char* n = std::getenv("TIDEPOOL_FUZZ_SEEDS");
  return n == nullptr ? usual : std::atoll(n);
}

}  // namespace tidepool
