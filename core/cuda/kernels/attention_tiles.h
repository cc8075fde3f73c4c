#pragma once
// The two products of attention by tensor cores, on tiles in shared memory, one warp at a time.
//
// A tile has rows of kD bfloat16, kTileRow<kD> apart: 16 bytes more than they need, so that the eight rows
// that ldmatrix reads together lie in different banks. Of a product of 16 rows a lane holds rows g = lane / 4
// and g + 8, columns 2t and 2t + 1 of each eight, t = lane % 4: c[n][0], c[n][1] of row g, c[n][2], c[n][3]
// of row g + 8 (MultiplyTile).
//
// Row m of a tile of queries is head m % group of a key-value head, of the row m / group of its item: the
// heads that read one key share its load.

#include "core/cuda/kernels/block.h"

namespace tidepool::cuda {

// Dynamic shared memory of a block, less what kernels here declare: of sm_80, and of GPUs with 99 KiB.
constexpr int kDeclaredShared = 3 * 1024;
constexpr int kSharedMax = 163 * 1024 - kDeclaredShared, kSmallSharedMax = 99 * 1024 - kDeclaredShared;
inline bool Fits(int dynamic_bytes) { return dynamic_bytes + kDeclaredShared <= SharedMax(); }

template <int kD>
constexpr int kTileRow = kD + 8;
constexpr float kLog2E = 1.44269504F;  // e to the x is 2 to the x log2(e), which the GPU computes

// kStrips times 16 rows as the left operand of a product; the strips share what is loaded of the right one.
template <int kD, int kStrips>
using Strips = uint32_t[kStrips][kD / 16][4];
template <int kD, int kStrips>
__device__ inline void LoadStrips(Shared<const BF16> a, Strips<kD, kStrips>& out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int k = 0; k < kD; k += 16)
      LoadMatrix4(a + (s * 16 + lane % 16) * kTileRow<kD> + k + lane / 16 * 8, out[s][k / 16]);
  }
}
// c = a b^T: kN rows of `b`.
template <int kD, int kN, int kStrips>
__device__ inline void MultiplyStrips(const Strips<kD, kStrips>& a, Shared<const BF16> b,
                                      float (&c)[kStrips][kN / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) c[s][n][0] = c[s][n][1] = c[s][n][2] = c[s][n][3] = 0.0F;
  }
#pragma unroll
  for (int k = 0; k < kD; k += 16) {
#pragma unroll
    for (int n = 0; n < kN; n += 16) {
      uint32_t right[4];
      LoadMatrix4(b + (n + lane % 8 + lane / 16 * 8) * kTileRow<kD> + k + lane / 8 % 2 * 8, right);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        MultiplyTile(c[s][n / 8], a[s][k / 16], right[0], right[1]);
        MultiplyTile(c[s][n / 8 + 1], a[s][k / 16], right[2], right[3]);
      }
    }
  }
}
// out += p b: p is a product's result of kN columns, rounded to bfloat16; `b` has kN rows.
template <int kD, int kN, int kStrips>
__device__ inline void MultiplyWeightStrips(const float (&p)[kStrips][kN / 8][4], Shared<const BF16> b,
                                            float (&out)[kStrips][kD / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kN; n += 16) {
    uint32_t left[kStrips][4];
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const float(&low)[4] = p[s][n / 8];
      const float(&high)[4] = p[s][n / 8 + 1];
      left[s][0] = NarrowTwo(low[0], low[1]), left[s][1] = NarrowTwo(low[2], low[3]);
      left[s][2] = NarrowTwo(high[0], high[1]), left[s][3] = NarrowTwo(high[2], high[3]);
    }
#pragma unroll
    for (int d = 0; d < kD; d += 16) {
      uint32_t right[4];
      LoadMatrix4Transposed(b + (n + lane % 16) * kTileRow<kD> + d + lane / 16 * 8, right);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        MultiplyTile(out[s][d / 8], left[s], right[0], right[1]);
        MultiplyTile(out[s][d / 8 + 1], left[s], right[2], right[3]);
      }
    }
  }
}

// Over the four lanes that hold a row.
__device__ inline float QuadMax(float v) {
  v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, 1));
  return fmaxf(v, __shfl_xor_sync(kAllLanes, v, 2));
}
__device__ inline float QuadSum(float v) {
  v += __shfl_xor_sync(kAllLanes, v, 1);
  return v + __shfl_xor_sync(kAllLanes, v, 2);
}

// exp(s - max), 0 where nothing was seen yet.
__device__ inline float ExpBelow(float s, float max) { return max == -INFINITY ? 0.0F : __expf(s - max); }

// Walks the slots of a sequence in order of position.
struct SlotWalk {
  int32_t run;
  int32_t position;                                                          // of the run's first key
  __device__ int64_t SlotOf(Global<const device::KvRun> runs, int64_t at) {  // `at` never goes back
    device::KvRun r = runs[run];
    while (position + r.count <= at) {
      position += r.count;
      r = runs[++run];
    }
    return r.start + (at - position);
  }
};

}  // namespace tidepool::cuda
