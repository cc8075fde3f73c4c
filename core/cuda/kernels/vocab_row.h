#pragma once
// A row of logits as masses exp((z - max z) * scale): what the sampler draws from and what a log-probability
// is relative to, so that both see the same total.
//
// The order of additions and every rounding is that of core/device/cpu/sampler.cc: tiles of 256 by 16 lanes,
// lanes from first to last, groups of 32 tiles and then the groups in float64, no product fused with a sum.
// So a draw has the same bits here and there.

#include "core/cuda/kernels/block.h"
#include "core/cuda/limits.h"

namespace tidepool::cuda {

constexpr int kVocabThreads = 512;
constexpr int kVocabTile = 256;
constexpr int kVocabTilesMax = kVocabSizeMax / kVocabTile;

// exp(x) for x <= 0, within 2 ulp; 0 below -87; NaN stays NaN.
__device__ inline float ExpNonPositive(float x) {
  const float clamped = x < -87.0F ? -87.0F : x;
  // 1.5 * 2^23: adding it rounds to an integer.
  const float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504088896341F), 12582912.0F);
  const float n = __fsub_rn(shifted, 12582912.0F);
  const float r = __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0.693359375F)), __fmul_rn(n, -2.12194440e-4F));
  float p = 1.9875691500e-4F;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3F);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3F);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2F);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1F);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1F);
  p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0F);
  const uint32_t exponent = __float_as_uint(shifted) - 0x4B400000U + 127U;
  return x < -87.0F ? 0.0F : __fmul_rn(p, __uint_as_float(exponent << 23));
}

__device__ inline float MassOf(float z, float max, float scale) {
  return ExpNonPositive(__fmul_rn(__fsub_rn(z, max), scale));
}

// The sum of tile t: of mass(z_i) (and entropy's of mass times exponent) of the tokens with z_i >= threshold,
// by 16 neighbouring threads, which all get it. All threads of a warp together, whether there is such a tile
// or not.
template <bool kEntropy, typename T>
__device__ inline void SumTile(Global<const T> row, int64_t vocab, int64_t t, float max, float scale,
                               float threshold, float* sum, float* weighted) {
  constexpr int kSteps = kVocabTile / 16;
  const int64_t first = t * kVocabTile + threadIdx.x % 16;
  float z[kSteps];  // all on their way before one is used
#pragma unroll
  for (int j = 0; j < kSteps; ++j) z[j] = first + j * 16 < vocab ? Get(row, first + j * 16) : -INFINITY;
  float lane = 0.0F, weight = 0.0F;
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    if (first + j * 16 >= vocab) continue;
    const float y = __fmul_rn(__fsub_rn(z[j], max), scale);
    const float e = z[j] < threshold ? 0.0F : ExpNonPositive(y);  // NaN is no less than anything
    lane = __fadd_rn(lane, e);
    if (kEntropy) weight += e > 0.0F ? e * y : 0.0F;  // 0 * -inf is 0 here
  }
  float all = 0.0F, all_weighted = 0.0F;
  for (int l = 0; l < 16; ++l) {
    all = __fadd_rn(all, __shfl_sync(kAllLanes, lane, l, 16));
    if (kEntropy) all_weighted += __shfl_sync(kAllLanes, weight, l, 16);
  }
  *sum = all;
  if (kEntropy) *weighted = all_weighted;
}

// A row is cut into parts for blocks of their own: one row alone is more than a multiprocessor does in time.
constexpr int kPartTiles = 32;
constexpr int kPartTokens = kPartTiles * kVocabTile;

// Of rows of logits, in scratch: what their parts and tiles give.
struct VocabParts {
  int64_t parts = 0, tiles = 0;    // of a row
  float* max = nullptr;            // [rows, parts]: NaN passed over
  uint32_t* not_finite = nullptr;  // [rows, parts]: whether one is NaN or infinite
  float* sum = nullptr;            // [rows, tiles]
  float* weighted = nullptr;       // [rows, tiles], for the entropy; or null
};

// The largest logit of a row of parts, and whether one is NaN or infinite. By all threads of a warp.
__device__ inline float MaxOfParts(const VocabParts& v, int64_t row, bool* finite) {
  float max = -INFINITY;
  uint32_t bad = 0;
  for (int64_t p = threadIdx.x % 32; p < v.parts; p += 32) {
    max = fmaxf(max, View(v.max)[row * v.parts + p]);
    bad |= View(v.not_finite)[row * v.parts + p];
  }
  *finite = __ballot_sync(kAllLanes, bad != 0) == 0;
  return WarpMax(max);
}

// The sum of `tiles`: groups of kPartTiles by a thread each, then the groups by one, in their order. By all
// threads of a block of at least kGroupsMax; groups: kGroupsMax values, which get the sum up to the end of
// each. Ends with a barrier.
constexpr int kGroupsMax = (kVocabTilesMax + kPartTiles - 1) / kPartTiles;
__device__ inline double AddGroups(int64_t count, Shared<const float> tiles, Shared<double> groups) {
  const int n = static_cast<int>(CeilDiv<int64_t>(count, kPartTiles)), g = static_cast<int>(threadIdx.x);
  if (g < n) {
    double sum = 0.0;
#pragma unroll 8
    for (int i = 0; i < kPartTiles; ++i) {
      if (g * kPartTiles + i < count) sum = __dadd_rn(sum, tiles[g * kPartTiles + i]);
    }
    groups[g] = sum;
  }
  __syncthreads();
  if (g == 0) {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) {
      sum = __dadd_rn(sum, groups[i]);
      groups[i] = sum;
    }
  }
  __syncthreads();
  return groups[n - 1];
}

// log p of a token: what a trainer and a sampler report in the same bits.
__device__ inline float LogOfTotal(double total) { return logf(static_cast<float>(total)); }
__device__ inline float TokenLogProbOf(float z, float max, float scale, float log_total) {
  return __fsub_rn(__fmul_rn(__fsub_rn(z, max), scale), log_total);
}

}  // namespace tidepool::cuda
