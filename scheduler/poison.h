#pragma once
// One sample can bring down every worker that takes it. So the sample is blamed when a second worker dies
// while it works on it, and is dropped. Until then its next worker gets no other sample that was there when a
// worker died, so that a second death has one culprit.
//
// Deaths are counted in memory: a controller that is started again counts from 0, so such a sample takes two
// workers with it in each life of a controller. What is STARTed on a worker that dies is in the journal, but
// who had come further in between is not, and blaming without it would drop samples that did nothing.

#include <cstdint>

namespace tidepool::scheduler {

constexpr int64_t kPoisonDeaths = 2;

}  // namespace tidepool::scheduler
