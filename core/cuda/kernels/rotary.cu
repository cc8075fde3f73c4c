// The fused product taken apart: bias, head norms, rotation, and the write of keys and values to their slots.
// And the backward of the head norms. One warp a head of a row; a lane holds the pairs that are rotated
// together.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch.h"
#include "core/cuda/limits.h"

namespace tidepool::cuda {
namespace {

constexpr int kHeadThreads = 256;
constexpr int kHeadWarps = kHeadThreads / 32;
constexpr int64_t kHeadMax = kHeadSizeMax;
constexpr int64_t kHeadNormRows = 32;  // whose gradients of the head norms are added up by one block
constexpr int kPairs = static_cast<int>(kHeadMax) / 64;  // a lane's pairs (c, c + half) in the largest head

// A head in float32: a[i], b[i] are elements c and c + half, c = lane + 32 i; zero past the end.
struct Head {
  float a[kPairs], b[kPairs];
};
template <typename T>
__device__ inline void LoadHead(Global<const T> x, int64_t half, Head& h) {
  const int64_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int64_t c = lane + 32 * i;
    h.a[i] = c < half ? Get(x, c) : 0.0F;
    h.b[i] = c < half ? Get(x, half + c) : 0.0F;
  }
}
__device__ inline float Dot(const Head& x, const Head& y) {
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) sum += x.a[i] * y.a[i] + x.b[i] * y.b[i];
  return WarpSum(sum);
}
template <typename T>
__device__ inline void StoreHead(Global<T> out, int64_t half, const Head& h) {
  const int64_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int64_t c = lane + 32 * i;
    if (c >= half) break;
    Put(out, c, h.a[i]);
    Put(out, half + c, h.b[i]);
  }
}
template <typename T>
__device__ inline void LoadWithBias(const T* x, const T* bias, int64_t offset, int64_t at, int64_t half,
                                    Head& h) {
  LoadHead(View(x) + at, half, h);
  if (bias == nullptr) return;
  Head b;
  LoadHead(View(bias) + offset, half, b);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    h.a[i] += b.a[i];
    h.b[i] += b.b[i];
  }
}
__device__ inline float RstdOf(const Head& h, int64_t size, float eps) {
  return 1.0F / sqrtf(Dot(h, h) / static_cast<float>(size) + eps);
}

template <typename T>
__global__ void __launch_bounds__(kHeadThreads) RotaryKernel(device::RotaryArgs<T> a, int64_t items) {
  const int64_t heads_all = a.heads + 2 * a.kv_heads;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / 32;
  if (item >= items) return;  // a whole warp
  const int64_t r = item / heads_all, h = item % heads_all, lane = threadIdx.x % 32;
  const int64_t size = a.head_size, half = size / 2;
  Head x;
  LoadWithBias(a.qkv, a.bias, h * size, (r * heads_all + h) * size, half, x);
  const int64_t slot = h < a.heads ? 0 : View(a.slots)[r];
  if (h >= a.heads + a.kv_heads) {
    StoreHead(View(a.v) + (slot * a.kv_heads + (h - a.heads - a.kv_heads)) * size, half, x);
    return;
  }
  const bool is_q = h < a.heads;
  if (const T* norm = is_q ? a.q_norm : a.k_norm; norm != nullptr) {
    const float rstd = RstdOf(x, size, a.eps);
    Head w;
    LoadHead(View(norm), half, w);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      x.a[i] = x.a[i] * rstd * w.a[i];
      x.b[i] = x.b[i] * rstd * w.b[i];
    }
  }
  const int64_t position = View(a.positions)[r];
  const Global<const float> cos = View(a.cos) + position * half, sin = View(a.sin) + position * half;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int64_t c = lane + 32 * i;
    if (c >= half) break;
    const float co = cos[c], si = sin[c], first = x.a[i], second = x.b[i];
    x.a[i] = first * co - second * si;
    x.b[i] = second * co + first * si;
  }
  StoreHead(
      is_q ? View(a.q) + (r * a.heads + h) * size : View(a.k) + (slot * a.kv_heads + (h - a.heads)) * size,
      half, x);
}

// Rows [32 b, 32 b + 32): a warp takes every eighth head of them, adds up its share of the weights'
// gradients, and the block writes the sum of its warps to partial[b]. The rows of a partial are added by the
// kernel after this one.
template <typename T>
__global__ void __launch_bounds__(kHeadThreads)
    HeadNormBackwardKernel(device::HeadNormBackwardArgs<T> a, float* partial) {
  TP_SHARED(float, sums, kHeadWarps* kHeadMax);
  const int64_t size = a.head_size, half = size / 2;
  const int64_t width = (a.heads + 2 * a.kv_heads) * size;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kHeadNormRows;
  const int64_t end = a.rows < begin + kHeadNormRows ? a.rows : begin + kHeadNormRows;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int which = 0; which < 2; ++which) {  // q, then k
    const int64_t heads = which == 0 ? a.heads : a.kv_heads, first_head = which == 0 ? 0 : a.heads;
    Head dw = {}, w;
    LoadHead(View(which == 0 ? a.q_norm : a.k_norm), half, w);
    for (int64_t item = warp; item < (end - begin) * heads; item += kHeadWarps) {
      const int64_t r = begin + item / heads, h = first_head + item % heads;
      Head x, g;
      LoadWithBias(a.qkv, a.bias, h * size, r * width + h * size, half, x);
      const Global<T> dy = View(a.dqkv) + r * width + h * size;
      LoadHead(Global<const T>(dy), half, g);
      const float rstd = RstdOf(x, size, a.eps);
      float dot = 0.0F;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) dot += x.a[i] * (w.a[i] * g.a[i]) + x.b[i] * (w.b[i] * g.b[i]);
      const float k = WarpSum(dot) * rstd * rstd / static_cast<float>(size);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        dw.a[i] += g.a[i] * x.a[i] * rstd;
        dw.b[i] += g.b[i] * x.b[i] * rstd;
        g.a[i] = (w.a[i] * g.a[i] - x.a[i] * k) * rstd;
        g.b[i] = (w.b[i] * g.b[i] - x.b[i] * k) * rstd;
      }
      StoreHead(dy, half, g);
    }
    StoreHead(sums + warp * size, half, dw);
    __syncthreads();
    const Global<float> out = View(partial) + (static_cast<int64_t>(blockIdx.x) * 2 + which) * size;
    for (int64_t c = threadIdx.x; c < size; c += kHeadThreads) {
      float sum = 0.0F;
      for (int v = 0; v < kHeadWarps; ++v) sum += sums[v * size + c];
      out[c] = sum;
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kHeadThreads)
    AddPartialsKernel(const float* partial, int64_t count, int64_t size, float* dq_norm, float* dk_norm) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kHeadThreads + threadIdx.x;
  if (c >= 2 * size) return;
  const Global<const float> in = View(partial);
  float sum = 0.0F;
  for (int64_t i = 0; i < count; ++i) sum += in[i * 2 * size + c];
  if (c < size) {
    View(dq_norm)[c] += sum;
  } else {
    View(dk_norm)[c - size] += sum;
  }
}

}  // namespace

template <typename T>
int Rotary(const device::RotaryArgs<T>& a, Launcher& launcher) {
  if (a.head_size > kHeadMax || a.head_size % 2 != 0) return static_cast<int>(cudaErrorInvalidValue);
  const int64_t items = a.rows * (a.heads + 2 * a.kv_heads);
  return Launch({.name = "rotary", .x = CeilDiv<int64_t>(items, kHeadWarps), .threads = kHeadThreads},
                launcher.stream(), RotaryKernel<T>, a, items);
}

template <typename T>
int HeadNormBackward(const device::HeadNormBackwardArgs<T>& a, Launcher& launcher) {
  if (a.head_size > kHeadMax || a.head_size % 2 != 0) return static_cast<int>(cudaErrorInvalidValue);
  if (a.rows == 0) return 0;
  const int64_t blocks = CeilDiv<int64_t>(a.rows, kHeadNormRows), n = 2 * a.head_size;
  auto* partial = static_cast<float*>(launcher.Scratch(blocks * n * static_cast<int64_t>(sizeof(float))));
  if (const int code = Launch({.name = "head_norm_backward", .x = blocks, .threads = kHeadThreads},
                              launcher.stream(), HeadNormBackwardKernel<T>, a, partial);
      code != 0) {
    return code;
  }
  return Launch({.name = "add_partials", .x = CeilDiv<int64_t>(n, kHeadThreads), .threads = kHeadThreads},
                launcher.stream(), AddPartialsKernel, partial, blocks, a.head_size, a.dq_norm, a.dk_norm);
}

TP_INSTANTIATE(Rotary)
TP_INSTANTIATE(HeadNormBackward)

}  // namespace tidepool::cuda
