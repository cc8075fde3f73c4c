// The fused product taken apart: bias, head norms, rotation, and the write of keys and values to their slots.
// And the backward of the head norms. One warp a head of a row; a lane holds the pairs that are rotated
// together.
#include "core/cuda/kernels/launch.h"
#include "core/cuda/kernels/rotary_head.h"

namespace tidepool::cuda {
namespace {

constexpr int kHeadThreads = 256;
constexpr int kHeadWarps = kHeadThreads / 32;
constexpr int64_t kHeadNormRows = 32;  // whose gradients of the head norms are added up by one block

// kP: a lane's pairs.
template <typename T, int kP>
__global__ void __launch_bounds__(kHeadThreads) RotaryKernel(device::RotaryArgs<T> a, int64_t items) {
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t heads_all = a.heads + 2 * a.kv_heads;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / 32;
  if (item >= items) return;  // a whole warp
  const int64_t r = item / heads_all, h = item % heads_all;
  const int64_t size = a.head_size, half = size / 2;
  Head<kP> x;
  Angles<kP> angles;
  if (h < a.heads + a.kv_heads) LoadAngles(a, r, angles);
  LoadWithBias(a, r, h, x);
  NormAndRotate(a, h, angles, x);
  const int64_t slot = h < a.heads ? 0 : View(a.slots)[r];
  if (h >= a.heads + a.kv_heads) {
    StoreHead(View(a.v) + (slot * a.kv_heads + (h - a.heads - a.kv_heads)) * size, half, x);
    return;
  }
  StoreHead(h < a.heads ? View(a.q) + (r * a.heads + h) * size
                        : View(a.k) + (slot * a.kv_heads + (h - a.heads)) * size,
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
    Head<kPairs> dw = {}, w;
    LoadHead(View(which == 0 ? a.q_norm : a.k_norm), half, w);
    for (int64_t item = warp; item < (end - begin) * heads; item += kHeadWarps) {
      const int64_t r = begin + item / heads, h = first_head + item % heads;
      Head<kPairs> x, g;
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
  const Grid grid{
      .name = "rotary", .x = CeilDiv<int64_t>(items, kHeadWarps), .threads = kHeadThreads, .early = true};
  if (a.head_size <= 64) return Launch(grid, launcher.stream(), RotaryKernel<T, 1>, a, items);
  if (a.head_size <= 128) return Launch(grid, launcher.stream(), RotaryKernel<T, 2>, a, items);
  return Launch(grid, launcher.stream(), RotaryKernel<T, kPairs>, a, items);
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
