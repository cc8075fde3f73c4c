// AdamW with the master copy's lower half beside a bfloat16 weight, and the sum of squares for the clip.
//
// The clip is computed on the device from the sum of squares, so that an update waits for no copy to the
// host. Bound by memory: 20 bytes are read and 12 written for each element with bfloat16 weights.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {
namespace {

constexpr int kAdamThreads = 256;
constexpr int kAdamPer = 4;
constexpr int64_t kSquareSumBlock = 65536;  // elements

template <typename T>
__global__ void __launch_bounds__(kAdamThreads) AdamWKernel(device::AdamWArgs<T> a) {
  const double norm = sqrt(View(a.square_sum)[0]);
  if (!isfinite(norm)) return;
  const auto clip = static_cast<float>(
      a.max_grad_norm > 0.0 && norm > a.max_grad_norm ? a.max_grad_norm / (norm + 1e-6) : 1.0);
  const Global<const float> gradients = View(a.gradients);
  const Global<T> weights = View(a.weights);
  const Global<float> ms = View(a.m), vs = View(a.v);
  for (int j = 0; j < kAdamPer; ++j) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * kAdamPer + j) * kAdamThreads + threadIdx.x;
    if (i >= a.n) return;
    // Signed rest: master bits = (weight << 16) + rest.
    float p = Get(weights, i);
    if (sizeof(T) == 2) {
      p = __uint_as_float(__float_as_uint(p) + static_cast<uint32_t>(static_cast<int32_t>(View(a.rest)[i])));
    }
    const float g = gradients[i] * clip;
    const float m = a.beta1 * ms[i] + a.rest1 * g;
    const float v = a.beta2 * vs[i] + a.rest2 * g * g;
    const float next = p * a.decay - a.step * m / (sqrtf(v) * a.root + a.eps);
    ms[i] = m;
    vs[i] = v;
    if constexpr (sizeof(T) == 2) {
      const uint32_t out = __float_as_uint(next);
      weights[i] = BF16{static_cast<uint16_t>((out + 0x8000U) >> 16)};
      View(a.rest)[i] = static_cast<int16_t>(out & 0xFFFFU);  // below half positive, from half on negative
    } else {
      weights[i] = next;
    }
  }
}

// One block of elements, or the sums of all blocks: each thread adds up every 256th, then the tree.
template <bool kSquare, typename V>
__global__ void __launch_bounds__(kAdamThreads) SumKernel(int64_t n, const V* x, double* out) {
  TP_SHARED(double, scratch, kAdamThreads / 32);
  const int64_t block = kSquare ? kSquareSumBlock : n, begin = static_cast<int64_t>(blockIdx.x) * block;
  const int64_t end = n < begin + block ? n : begin + block;
  const Global<const V> in = View(x);
  double sum = 0.0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kAdamThreads) {
    const auto v = static_cast<double>(in[i]);
    sum += kSquare ? v * v : v;
  }
  sum = BlockSum<kAdamThreads>(sum, scratch);
  if (threadIdx.x == 0) View(out)[blockIdx.x] = sum;
}

}  // namespace

int SquareSum(const device::SquareSumArgs& a, Launcher& launcher) {
  const int64_t blocks = CeilDiv<int64_t>(a.n, kSquareSumBlock);
  auto* sums = static_cast<double*>(launcher.Scratch(blocks * static_cast<int64_t>(sizeof(double))));
  if (const int code = Launch({.name = "square_sum", .x = blocks, .threads = kAdamThreads}, launcher.stream(),
                              SumKernel<true, float>, a.n, a.x, sums);
      code != 0) {
    return code;
  }
  return Launch({.name = "sum", .threads = kAdamThreads}, launcher.stream(), SumKernel<false, double>, blocks,
                sums, a.sum);
}

template <typename T>
int AdamW(const device::AdamWArgs<T>& a, Launcher& launcher) {
  return Launch(
      {.name = "adamw", .x = CeilDiv<int64_t>(a.n, kAdamThreads * kAdamPer), .threads = kAdamThreads},
      launcher.stream(), AdamWKernel<T>, a);
}
TP_INSTANTIATE(AdamW)

}  // namespace tidepool::cuda
