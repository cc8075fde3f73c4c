// RMSNorm with the residual's sum, its backward, and the gradient of its weight.
//
// A row is a block: threads take eight elements at a time, so that a load is 16 bytes, and read the row a
// second time from the cache rather than hold it, which any width then fits. Bound by memory.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/columns.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int64_t kRowStep = kRowThreads * 8;

template <typename T>
__global__ void __launch_bounds__(kRowThreads) RmsNormKernel(device::RmsNormArgs<T> a, bool wide) {
  TP_SHARED(float, scratch, kRowThreads / 32);
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x, d = a.d, first = static_cast<int64_t>(threadIdx.x) * 8;
  Global<const T> x = View(a.x) + r * d;
  if (a.add != nullptr) {
    const Global<const T> add = View(a.add) + r * d;
    const Global<T> sum = View(a.x_out) + r * d;
    for (int64_t c = first; c < d; c += kRowStep) {
      float v[8], w[8];
      GetChunk(x, c, d, wide, v);
      GetChunk(add, c, d, wide, w);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] += w[j];
      PutChunk(sum, c, d, wide, v);
    }
    x = sum;  // the rounded sum is what the norm sees; a thread reads what it wrote itself
  }
  float squares = 0.0F;
  for (int64_t c = first; c < d; c += kRowStep) {
    float v[8];
    GetChunk(x, c, d, wide, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += v[j] * v[j];
  }
  squares = BlockSum<kRowThreads>(squares, scratch);
  const float rstd = 1.0F / sqrtf(squares / static_cast<float>(d) + a.eps);
  const Global<const T> weight = View(a.weight);
  const Global<T> out = View(a.out) + r * d;
  for (int64_t c = first; c < d; c += kRowStep) {
    float v[8], w[8];
    GetChunk(x, c, d, wide, v);
    GetChunk(weight, c, d, wide, w);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = v[j] * rstd * w[j];
    PutChunk(out, c, d, wide, v);
  }
  if (a.rstd != nullptr && threadIdx.x == 0) View(a.rstd)[r] = rstd;
}

// With h = x * rstd:  dx = rstd * (w dy - h * mean(w dy h)).
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    RmsNormBackwardKernel(device::RmsNormBackwardArgs<T> a, bool wide) {
  TP_SHARED(float, scratch, kRowThreads / 32);
  const int64_t r = blockIdx.x, d = a.d, first = static_cast<int64_t>(threadIdx.x) * 8;
  const Global<const T> x = View(a.x) + r * d, weight = View(a.weight), dout = View(a.dout) + r * d;
  float dot = 0.0F;
  for (int64_t c = first; c < d; c += kRowStep) {
    float v[8], w[8], g[8];
    GetChunk(x, c, d, wide, v);
    GetChunk(weight, c, d, wide, w);
    GetChunk(dout, c, d, wide, g);
#pragma unroll
    for (int j = 0; j < 8; ++j) dot += v[j] * (w[j] * g[j]);
  }
  dot = BlockSum<kRowThreads>(dot, scratch);
  const float rstd = View(a.rstd)[r];
  const float k = dot * rstd * rstd / static_cast<float>(d);
  const Global<float> dx = View(a.dx) + r * d;
  for (int64_t c = first; c < d; c += kRowStep) {
    float v[8], w[8], g[8], sum[8];
    GetChunk(x, c, d, wide, v);
    GetChunk(weight, c, d, wide, w);
    GetChunk(dout, c, d, wide, g);
    GetChunk(dx, c, d, wide, sum);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += (w[j] * g[j] - v[j] * k) * rstd;
    PutChunk(dx, c, d, wide, sum);
    if (a.dx_copy != nullptr) PutChunk(View(a.dx_copy) + r * d, c, d, wide, sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    RmsNormBackwardWeightKernel(device::RmsNormBackwardArgs<T> a) {
  TP_SHARED(float, scratch, kColumnThreads);
  const Global<const T> x = View(a.x), dout = View(a.dout);
  const Global<const float> rstd = View(a.rstd);
  AddColumnSums(a.rows, a.d, View(a.dweight), scratch,
                [&](int64_t r, int64_t c) { return Get(x, r * a.d + c) * Get(dout, r * a.d + c) * rstd[r]; });
}

}  // namespace

template <typename T>
int RmsNorm(const device::RmsNormArgs<T>& a, Launcher& launcher) {
  return Launch({.name = "rms_norm", .x = a.rows, .threads = kRowThreads, .early = true}, launcher.stream(),
                RmsNormKernel<T>, a, Wide(a.d, a.x, a.add, a.x_out, a.weight, a.out));
}

template <typename T>
int RmsNormBackward(const device::RmsNormBackwardArgs<T>& a, Launcher& launcher) {
  if (a.rows == 0) return 0;
  if (const int code = a.dweight == nullptr ? 0
                                            : Launch(ColumnGrid("rms_norm_backward_weight", a.d),
                                                     launcher.stream(), RmsNormBackwardWeightKernel<T>, a);
      code != 0) {
    return code;
  }
  return Launch({.name = "rms_norm_backward", .x = a.rows, .threads = kRowThreads}, launcher.stream(),
                RmsNormBackwardKernel<T>, a, Wide(a.d, a.x, a.weight, a.dout, a.dx, a.dx_copy));
}

TP_INSTANTIATE(RmsNorm)
TP_INSTANTIATE(RmsNormBackward)

}  // namespace tidepool::cuda
