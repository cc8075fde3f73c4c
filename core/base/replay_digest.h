#pragma once
// What a replay store has taken in, as one number: the names of the fragments, in the order in which they
// came. With what each of them is (record::Enq::digest), a store of a given capacity follows from it, and
// what is drawn from it in a step from (seed, step, this). So whoever reads a run's journal knows what a
// trainer's store had, without seeing it. Bytes are not part of it: a fragment that is played again after a
// loss is the same, but of a version of another lineage. Pure.

#include <cstdint>

#include "core/base/hash.h"
#include "core/base/ids.h"
#include "core/base/rng.h"

namespace tidepool {

inline constexpr uint64_t kEmptyReplay = 1;  // of a store that has taken in nothing; never 0

inline uint64_t ReplayDigest(uint64_t before, const SampleId& tid) {
  const uint64_t now = Mix64(Mix64(before) ^ SampleUid(tid));
  return now == 0 ? kEmptyReplay : now;
}

}  // namespace tidepool
