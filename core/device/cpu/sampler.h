#pragma once
// Draws a token from a row of logits.
//
// One uniform number u and the inverse of the cumulative distribution in vocabulary order: the token is
// the first whose cumulated mass exceeds u * total. Masses are exp((z - max z) / T), summed in tiles of
// 256 by 16 lanes, then groups of 32 tiles and then the groups in float64, always in this order (a GPU adds
// up all groups at once), without fused multiply-add: the draw is a function of (logits, parameters, u)
// alone, with the same bits on AVX2, AVX-512 and plain x86-64. Cuts (SampleRow) are found as thresholds by a
// radix walk from the top, without sorting. Pure functions; thread-safe with a scratch per thread.

#include <cstdint>
#include <vector>

#include "core/device/arguments.h"

namespace tidepool::device {

struct SamplerScratch {
  std::vector<float> logits;    // [vocab] the row, widened
  std::vector<float> mass;      // [vocab]
  std::vector<float> tiles;     // [vocab / 256]
  std::vector<int64_t> counts;  // of the radix walk
  std::vector<double> masses;
};

struct Draw {
  int32_t id = -1;        // -1: the row holds a value that is not finite
  float log_kept = 0.0F;  // log of the share of mass that the cuts kept; exactly 0 without cuts
};

// requires `how` in range, its uniform in [0, 1).
Draw DrawToken(const float* logits, int64_t vocab, const SampleRow& how, SamplerScratch& scratch);
Draw DrawToken(const BF16* logits, int64_t vocab, const SampleRow& how, SamplerScratch& scratch);

}  // namespace tidepool::device
