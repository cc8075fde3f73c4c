// Element by element: biases, sums of gradients, and changes of type.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch_functions.h"

namespace tidepool::cuda {
namespace {

constexpr int kElementThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kElementThreads) AddBiasKernel(int64_t n, const T* bias, T* x, bool wide) {
  const int64_t r = blockIdx.x, c = (static_cast<int64_t>(blockIdx.y) * kElementThreads + threadIdx.x) * 8;
  if (c >= n) return;
  const Global<T> row = View(x) + r * n;
  float v[8], b[8];
  GetChunk(row, c, n, wide, v);
  GetChunk(View(bias), c, n, wide, b);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] += b[j];
  PutChunk(row, c, n, wide, v);
}

// out = x, or out += x.
template <typename In, typename Out, bool kAdd>
__global__ void __launch_bounds__(kElementThreads) MoveKernel(int64_t n, const In* x, Out* out, bool wide) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x) * 8;
  if (i >= n) return;
  const bool whole = wide && i + 8 <= n;
  float v[8];
  GetChunk(View(x), i, n, whole, v);
  if constexpr (kAdd) {
    float sum[8];
    GetChunk(View(out), i, n, whole, sum);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] += sum[j];
  }
  PutChunk(View(out), i, n, whole, v);
}

template <typename In, typename Out, bool kAdd>
int Move(const char* name, int64_t n, const In* x, Out* out, Stream stream) {
  const bool wide = On16Bytes(x) && On16Bytes(out);
  return Launch({.name = name, .x = CeilDiv<int64_t>(n, kElementThreads * 8), .threads = kElementThreads},
                stream, MoveKernel<In, Out, kAdd>, n, x, out, wide);
}

}  // namespace

template <typename T>
int AddBias(int64_t rows, int64_t n, const T* bias, T* x, Stream stream) {
  return Launch({.name = "add_bias",
                 .x = rows,
                 .y = CeilDiv<int64_t>(n, kElementThreads * 8),
                 .threads = kElementThreads},
                stream, AddBiasKernel<T>, n, bias, x, Wide(n, bias, x));
}
template <typename T>
int Accumulate(int64_t n, const T* x, float* sum, Stream stream) {
  return Move<T, float, true>("accumulate", n, x, sum, stream);
}
template <typename T>
int WidenArray(int64_t n, const T* x, float* out, Stream stream) {
  return Move<T, float, false>("widen", n, x, out, stream);
}
template <typename T>
int NarrowArray(int64_t n, const float* x, T* out, Stream stream) {
  return Move<float, T, false>("narrow", n, x, out, stream);
}

#define TP_INSTANTIATE(T)                                          \
  template int AddBias<T>(int64_t, int64_t, const T*, T*, Stream); \
  template int Accumulate<T>(int64_t, const T*, float*, Stream);   \
  template int WidenArray<T>(int64_t, const T*, float*, Stream);   \
  template int NarrowArray<T>(int64_t, const float*, T*, Stream);
TP_INSTANTIATE(float)
TP_INSTANTIATE(BF16)
#undef TP_INSTANTIATE

}  // namespace tidepool::cuda
