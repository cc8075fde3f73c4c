// AdamW with the master copy's lower half beside a bfloat16 weight, and the sum of squares for the clip.
//
// The clip is computed on the device from the sum of squares, so that an update waits for no copy to the
// host. Bound by memory: 20 bytes are read and 12 written for each element with bfloat16 weights.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {
namespace {

constexpr int kAdamThreads = 256;
constexpr int kAdamPer = 8;                 // elements of a thread
constexpr int64_t kSquareSumBlock = 65536;  // elements

template <typename T>
__device__ inline float Next(const device::AdamWArgs<T>& a, float clip, float gradient, float p, float& m,
                             float& v) {
  const float g = gradient * clip;
  m = a.beta1 * m + a.rest1 * g;
  v = a.beta2 * v + a.rest2 * g * g;
  return p * a.decay - a.step * m / (sqrtf(v) * a.root + a.eps);
}
// Signed rest: master bits = (weight << 16) + rest.
__device__ inline float Master(uint32_t weight, uint32_t rest) {
  return __uint_as_float((weight << 16) +
                         static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(rest))));
}
// The weight, and the rest: below half positive, from half on negative.
__device__ inline uint32_t WeightOf(float master) { return (__float_as_uint(master) + 0x8000U) >> 16; }
__device__ inline uint32_t RestOf(float master) { return __float_as_uint(master) & 0xFFFFU; }

// wide: arrays lie on 16 bytes, and n is a multiple of eight.
template <typename T, bool kWide>
__global__ void __launch_bounds__(kAdamThreads) AdamWKernel(device::AdamWArgs<T> a) {
  const double norm = sqrt(View(a.square_sum)[0]);
  if (!isfinite(norm)) return;
  const auto clip = static_cast<float>(
      a.max_grad_norm > 0.0 && norm > a.max_grad_norm ? a.max_grad_norm / (norm + 1e-6) : 1.0);
  const Global<const float> gradients = View(a.gradients);
  const Global<T> weights = View(a.weights);
  const Global<float> ms = View(a.m), vs = View(a.v);
  const Global<int16_t> rests = View(a.rest);
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kAdamPer * kAdamThreads;
  if constexpr (kWide) {
    const int64_t i = block + static_cast<int64_t>(threadIdx.x) * kAdamPer;
    if (i >= a.n) return;
    float g[8], m[8], v[8];
    Get8(gradients, i, g);
    Get8(ms, i, m);
    Get8(vs, i, v);
    if constexpr (sizeof(T) == 2) {
      uint32_t weight[4], rest[4];
      GetWords4(weights, i, weight);
      GetWords4(rests, i, rest);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float low =
            Next(a, clip, g[2 * j], Master(weight[j] & 0xFFFFU, rest[j] & 0xFFFFU), m[2 * j], v[2 * j]);
        const float high =
            Next(a, clip, g[2 * j + 1], Master(weight[j] >> 16, rest[j] >> 16), m[2 * j + 1], v[2 * j + 1]);
        weight[j] = (WeightOf(low) & 0xFFFFU) | WeightOf(high) << 16;
        rest[j] = RestOf(low) | RestOf(high) << 16;
      }
      PutWords4(weights, i, weight);
      PutWords4(rests, i, rest);
    } else {
      float p[8];
      Get8(weights, i, p);
#pragma unroll
      for (int j = 0; j < 8; ++j) p[j] = Next(a, clip, g[j], p[j], m[j], v[j]);
      Put8(weights, i, p);
    }
    Put8(ms, i, m);
    Put8(vs, i, v);
  } else {
    for (int64_t j = threadIdx.x; j < kAdamPer * kAdamThreads; j += kAdamThreads) {
      const int64_t i = block + j;
      if (i >= a.n) return;
      float m = ms[i], v = vs[i];
      if constexpr (sizeof(T) == 2) {
        const float master =
            Next(a, clip, gradients[i],
                 Master(static_cast<T>(weights[i]).bits, static_cast<uint16_t>(rests[i])), m, v);
        weights[i] = BF16{static_cast<uint16_t>(WeightOf(master))};
        rests[i] = static_cast<int16_t>(RestOf(master));
      } else {
        weights[i] = Next(a, clip, gradients[i], weights[i], m, v);
      }
      ms[i] = m;
      vs[i] = v;
    }
  }
}

// Of one block of elements: each thread adds up eight of every 2048, then the tree.
__global__ void __launch_bounds__(kAdamThreads)
    SquareKernel(int64_t n, const float* x, bool wide, double* out) {
  TP_SHARED(double, scratch, kAdamThreads / 32);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSquareSumBlock;
  const int64_t end = n < begin + kSquareSumBlock ? n : begin + kSquareSumBlock;
  const Global<const float> in = View(x);
  double sum = 0.0;
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * 8; i < end; i += kAdamThreads * 8) {
    float v[8];
    GetChunk(in, i, end, wide, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += static_cast<double>(v[j]) * static_cast<double>(v[j]);
  }
  sum = BlockSum<kAdamThreads>(sum, scratch);
  if (threadIdx.x == 0) View(out)[blockIdx.x] = sum;
}
__global__ void __launch_bounds__(kAdamThreads) SumKernel(int64_t n, const double* x, double* out) {
  TP_SHARED(double, scratch, kAdamThreads / 32);
  const Global<const double> in = View(x);
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < n; i += kAdamThreads) sum += in[i];
  sum = BlockSum<kAdamThreads>(sum, scratch);
  if (threadIdx.x == 0) View(out)[0] = sum;
}

}  // namespace

int SquareSum(const device::SquareSumArgs& a, Launcher& launcher) {
  const int64_t blocks = CeilDiv<int64_t>(a.n, kSquareSumBlock);
  auto* sums = static_cast<double*>(launcher.Scratch(blocks * static_cast<int64_t>(sizeof(double))));
  if (const int code = Launch({.name = "square_sum", .x = blocks, .threads = kAdamThreads}, launcher.stream(),
                              SquareKernel, a.n, a.x, Wide(a.n, a.x), sums);
      code != 0) {
    return code;
  }
  return Launch({.name = "sum", .threads = kAdamThreads}, launcher.stream(), SumKernel, blocks,
                static_cast<const double*>(sums), a.sum);
}

template <typename T>
int AdamW(const device::AdamWArgs<T>& a, Launcher& launcher) {
  const Grid grid{
      .name = "adamw", .x = CeilDiv<int64_t>(a.n, kAdamThreads * kAdamPer), .threads = kAdamThreads};
  const bool wide = Wide(a.n, a.gradients, a.weights, a.rest, a.m, a.v);
  return wide ? Launch(grid, launcher.stream(), AdamWKernel<T, true>, a)
              : Launch(grid, launcher.stream(), AdamWKernel<T, false>, a);
}
TP_INSTANTIATE(AdamW)

}  // namespace tidepool::cuda
