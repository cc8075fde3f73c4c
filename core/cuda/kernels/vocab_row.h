#pragma once
// A row of logits as masses exp((z - max z) * scale), by one block: what the sampler draws from and what a
// log-probability is relative to, so that both see the same total.
//
// The order of additions and every rounding is that of core/device/cpu/sampler.cc: tiles of 256 by 16 lanes,
// lanes from first to last, tiles from first to last in float64, no product fused with a sum. So a draw has
// the same bits here and there.

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

// Adds up, for each tile, mass(z_i) (and entropy's sum of mass times exponent, where `weighted` is not null)
// of the tokens with z_i >= threshold. A barrier has to follow before the tiles are read.
template <bool kEntropy, typename T>
__device__ inline void SumTiles(Global<const T> row, int64_t vocab, float max, float scale, float threshold,
                                Shared<float> tiles, Shared<float> weighted) {
  const int lane = static_cast<int>(threadIdx.x) % 16, half = static_cast<int>(threadIdx.x) / 16;
  const int64_t count = CeilDiv<int64_t>(vocab, kVocabTile);
  for (int64_t t0 = 0; t0 < count; t0 += kVocabThreads / 16) {  // all lanes of a warp together: they shuffle
    const int64_t t = t0 + half;
    float sum = 0.0F, weight = 0.0F;
    for (int j = 0; j < kVocabTile / 16; ++j) {
      const int64_t i = t * kVocabTile + j * 16 + lane;
      if (i >= vocab) break;
      const float z = Get(row, i);
      const float y = __fmul_rn(__fsub_rn(z, max), scale);
      const float e = z < threshold ? 0.0F : ExpNonPositive(y);  // NaN is no less than anything
      sum = __fadd_rn(sum, e);
      if (kEntropy) weight += e > 0.0F ? e * y : 0.0F;  // 0 * -inf is 0 here
    }
    float all = 0.0F, all_weighted = 0.0F;
    for (int l = 0; l < 16; ++l) {
      all = __fadd_rn(all, __shfl_sync(kAllLanes, sum, l, 16));
      if (kEntropy) all_weighted += __shfl_sync(kAllLanes, weight, l, 16);
    }
    if (lane == 0 && t < count) {
      tiles[t] = all;
      if (kEntropy) weighted[t] = all_weighted;
    }
  }
}

// The largest logit, and whether one is NaN or infinite (`finite` false), by all threads of the block.
template <typename T>
__device__ inline float RowMax(Global<const T> row, int64_t vocab, Shared<float> scratch, bool* finite) {
  float max = -INFINITY;
  bool bad = false;
  for (int64_t i = threadIdx.x; i < vocab; i += kVocabThreads) {
    const float z = Get(row, i);
    max = fmaxf(max, z);
    bad = bad || (__float_as_uint(z) & 0x7F800000U) == 0x7F800000U;
  }
  *finite = __syncthreads_or(bad ? 1 : 0) == 0;
  return BlockMax<kVocabThreads>(max, scratch);
}

// log p of a token: what a trainer and a sampler report in the same bits.
__device__ inline float LogOfTotal(double total) { return logf(static_cast<float>(total)); }
__device__ inline float TokenLogProbOf(float z, float max, float scale, float log_total) {
  return __fsub_rn(__fmul_rn(__fsub_rn(z, max), scale), log_total);
}

}  // namespace tidepool::cuda
