// RMSNorm with the residual's sum, its backward, and the gradient of its weight.
//
// A row is a block: threads take eight elements at a time, so that a load is 16 bytes, and read the row a
// second time from the cache rather than hold it, which any width then fits. Bound by memory.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/columns.h"
#include "core/cuda/kernels/launch_functions.h"

namespace tidepool::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int64_t kRowStep = kRowThreads * 8;

template <typename T>
__global__ void __launch_bounds__(kRowThreads) RmsNormKernel(device::RmsNormArgs<T> a, bool wide) {
  TP_SHARED(float, scratch, kRowThreads / 32);
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
    RmsNormBackwardKernel(int64_t d, const T* x_all, const T* weight_all, const float* rstd_all,
                          const T* dout_all, float* dx_all, T* dx_copy, bool wide) {
  TP_SHARED(float, scratch, kRowThreads / 32);
  const int64_t r = blockIdx.x, first = static_cast<int64_t>(threadIdx.x) * 8;
  const Global<const T> x = View(x_all) + r * d, weight = View(weight_all), dout = View(dout_all) + r * d;
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
  const float rstd = View(rstd_all)[r];
  const float k = dot * rstd * rstd / static_cast<float>(d);
  const Global<float> dx = View(dx_all) + r * d;
  for (int64_t c = first; c < d; c += kRowStep) {
    float v[8], w[8], g[8], sum[8];
    GetChunk(x, c, d, wide, v);
    GetChunk(weight, c, d, wide, w);
    GetChunk(dout, c, d, wide, g);
    GetChunk(dx, c, d, wide, sum);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += (w[j] * g[j] - v[j] * k) * rstd;
    PutChunk(dx, c, d, wide, sum);
    if (dx_copy != nullptr) PutChunk(View(dx_copy) + r * d, c, d, wide, sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    RmsNormBackwardWeightKernel(int64_t rows, int64_t d, const T* x_all, const float* rstd_all,
                                const T* dout_all, float* dweight) {
  TP_SHARED(float, scratch, kColumnThreads);
  const Global<const T> x = View(x_all), dout = View(dout_all);
  const Global<const float> rstd = View(rstd_all);
  AddColumnSums(rows, d, View(dweight), scratch,
                [&](int64_t r, int64_t c) { return Get(x, r * d + c) * Get(dout, r * d + c) * rstd[r]; });
}

}  // namespace

template <typename T>
int RmsNorm(const device::RmsNormArgs<T>& a, int64_t rows, Stream stream) {
  return Launch({.name = "rms_norm", .x = rows, .threads = kRowThreads}, stream, RmsNormKernel<T>, a,
                Wide(a.d, a.x, a.add, a.x_out, a.weight, a.out));
}

template <typename T>
int RmsNormBackward(int64_t rows, int64_t d, const T* x, const T* weight, const float* rstd, const T* dout,
                    float* dx, T* dx_copy, Stream stream) {
  return Launch({.name = "rms_norm_backward", .x = rows, .threads = kRowThreads}, stream,
                RmsNormBackwardKernel<T>, d, x, weight, rstd, dout, dx, dx_copy,
                Wide(d, x, weight, dout, dx, dx_copy));
}

template <typename T>
int RmsNormBackwardWeight(int64_t rows, int64_t d, const T* x, const float* rstd, const T* dout,
                          float* dweight, Stream stream) {
  if (rows == 0) return 0;
  return Launch(ColumnGrid("rms_norm_backward_weight", d), stream, RmsNormBackwardWeightKernel<T>, rows, d, x,
                rstd, dout, dweight);
}

#define TP_INSTANTIATE(T)                                                                                   \
  template int RmsNorm<T>(const device::RmsNormArgs<T>&, int64_t, Stream);                                  \
  template int RmsNormBackward<T>(int64_t, int64_t, const T*, const T*, const float*, const T*, float*, T*, \
                                  Stream);                                                                  \
  template int RmsNormBackwardWeight<T>(int64_t, int64_t, const T*, const float*, const T*, float*, Stream);
TP_INSTANTIATE(float)
TP_INSTANTIATE(BF16)
#undef TP_INSTANTIATE

}  // namespace tidepool::cuda
