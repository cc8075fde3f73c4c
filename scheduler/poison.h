#pragma once
// One sample can bring down every worker that takes it. So the sample is blamed when a second worker dies
// while it works on it, and is dropped. Until then its next worker gets no other sample that was there when a
// worker died, so that a second death has one culprit.

#include <cstdint>

namespace tidepool::scheduler {

constexpr int64_t kPoisonDeaths = 2;

}  // namespace tidepool::scheduler
