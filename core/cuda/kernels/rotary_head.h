#pragma once
// A head of a row of the fused product, by one warp: bias, norm and rotation. A lane holds the pairs that are
// rotated together.

#include "core/cuda/kernels/block.h"
#include "core/cuda/limits.h"

namespace tidepool::cuda {

constexpr int64_t kHeadMax = kHeadSizeMax;
constexpr int kPairs = static_cast<int>(kHeadMax) / 64;  // a lane's pairs (c, c + half) in the largest head

// A head in float32: a[i], b[i] are elements c and c + half, c = lane + 32 i; zero past the end.
template <int kP>
struct Head {
  float a[kP], b[kP];
};
template <typename T, int kP>
__device__ inline void LoadHead(Global<const T> x, int64_t half, Head<kP>& h) {
  const int64_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kP; ++i) {
    const int64_t c = lane + 32 * i;
    h.a[i] = c < half ? Get(x, c) : 0.0F;
    h.b[i] = c < half ? Get(x, half + c) : 0.0F;
  }
}
template <int kP>
__device__ inline float Dot(const Head<kP>& x, const Head<kP>& y) {
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kP; ++i) {
    sum = __fadd_rn(sum, __fadd_rn(__fmul_rn(x.a[i], y.a[i]), __fmul_rn(x.b[i], y.b[i])));
  }
  return WarpSum(sum);
}
template <typename T, int kP>
__device__ inline void StoreHead(Global<T> out, int64_t half, const Head<kP>& h) {
  const int64_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kP; ++i) {
    const int64_t c = lane + 32 * i;
    if (c >= half) break;
    Put(out, c, h.a[i]);
    Put(out, half + c, h.b[i]);
  }
}
template <typename T, int kP>
__device__ inline void LoadWithBias(const T* x, const T* bias, int64_t offset, int64_t at, int64_t half,
                                    Head<kP>& h) {
  LoadHead(View(x) + at, half, h);
  if (bias == nullptr) return;
  Head<kP> b;
  LoadHead(View(bias) + offset, half, b);
#pragma unroll
  for (int i = 0; i < kP; ++i) {
    h.a[i] += b.a[i];
    h.b[i] += b.b[i];
  }
}
template <int kP>
__device__ inline float RstdOf(const Head<kP>& h, int64_t size, float eps) {
  return 1.0F / sqrtf(Dot(h, h) / static_cast<float>(size) + eps);
}

// What the pairs of a row are rotated by.
template <int kP>
struct Angles {
  float cos[kP], sin[kP];
};
template <typename T, int kP>
__device__ inline void LoadAngles(const device::RotaryArgs<T>& a, int64_t r, Angles<kP>& angles) {
  const int64_t half = a.head_size / 2, lane = threadIdx.x % 32, at = View(a.positions)[r] * half;
#pragma unroll
  for (int i = 0; i < kP; ++i) {
    const int64_t c = lane + 32 * i;
    angles.cos[i] = c < half ? float{View(a.cos)[at + c]} : 0.0F;
    angles.sin[i] = c < half ? float{View(a.sin)[at + c]} : 0.0F;
  }
}

// Head h of row r, of all heads of the fused product, with its bias.
template <typename T, int kP>
__device__ inline void LoadWithBias(const device::RotaryArgs<T>& a, int64_t r, int64_t h, Head<kP>& x) {
  const int64_t heads_all = a.heads + 2 * a.kv_heads, size = a.head_size;
  LoadWithBias(a.qkv, a.bias, h * size, (r * heads_all + h) * size, size / 2, x);
}
// Then normalised and rotated; a head of values stays as it is. Every rounding is spelled out: kernels of
// their own and attention owe each other these bits, and nvcc left out other roundings in one than in the
// other.
template <typename T, int kP>
__device__ inline void NormAndRotate(const device::RotaryArgs<T>& a, int64_t h, const Angles<kP>& angles,
                                     Head<kP>& x) {
  if (h >= a.heads + a.kv_heads) return;
  if (const T* norm = h < a.heads ? a.q_norm : a.k_norm; norm != nullptr) {
    const float rstd = RstdOf(x, a.head_size, a.eps);
    Head<kP> w;
    LoadHead(View(norm), a.head_size / 2, w);
#pragma unroll
    for (int i = 0; i < kP; ++i) {
      x.a[i] = x.a[i] * rstd * w.a[i];
      x.b[i] = x.b[i] * rstd * w.b[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kP; ++i) {
    const float first = x.a[i], second = x.b[i];
    x.a[i] = __fsub_rn(__fmul_rn(first, angles.cos[i]), __fmul_rn(second, angles.sin[i]));
    x.b[i] = __fadd_rn(__fmul_rn(second, angles.cos[i]), __fmul_rn(first, angles.sin[i]));
  }
}

}  // namespace tidepool::cuda
