// Element by element: biases, changes of type, and the gate of a shared expert.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {
namespace {

constexpr int kElementThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kElementThreads) AddBiasKernel(device::AddBiasArgs<T> a, bool wide) {
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x, n = a.n;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kElementThreads + threadIdx.x) * 8;
  if (c >= n) return;
  const Global<T> row = View(a.x) + r * n;
  float v[8], b[8];
  GetChunk(row, c, n, wide, v);
  GetChunk(View(a.bias), c, n, wide, b);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] += b[j];
  PutChunk(row, c, n, wide, v);
}

// out = x.
template <typename In, typename Out>
__global__ void __launch_bounds__(kElementThreads) MoveKernel(int64_t n, const In* x, Out* out, bool wide) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x) * 8;
  if (i >= n) return;
  const bool whole = wide && i + 8 <= n;
  float v[8];
  GetChunk(View(x), i, n, whole, v);
  PutChunk(View(out), i, n, whole, v);
}

template <typename In, typename Out>
int Move(const char* name, int64_t n, const In* x, Out* out, Stream stream) {
  const bool wide = On16Bytes(x) && On16Bytes(out);
  return Launch({.name = name, .x = CeilDiv<int64_t>(n, kElementThreads * 8), .threads = kElementThreads},
                stream, MoveKernel<In, Out>, n, x, out, wide);
}

__global__ void __launch_bounds__(kElementThreads) SigmoidKernel(device::SigmoidArgs a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (i >= a.n) return;
  const Global<float> x = View(a.x);
  x[i] = 1.0F / (1.0F + __expf(-x[i]));
}

}  // namespace

template <typename T>
int AddBias(const device::AddBiasArgs<T>& a, Launcher& launcher) {
  return Launch({.name = "add_bias",
                 .x = a.rows,
                 .y = CeilDiv<int64_t>(a.n, kElementThreads * 8),
                 .threads = kElementThreads,
                 .early = true},
                launcher.stream(), AddBiasKernel<T>, a, Wide(a.n, a.bias, a.x));
}
template <typename T>
int Widen(const device::WidenArgs<T>& a, Launcher& launcher) {
  return Move<T, float>("widen", a.n, a.x, a.out, launcher.stream());
}
template <typename T>
int Narrow(const device::NarrowArgs<T>& a, Launcher& launcher) {
  return Move<float, T>("narrow", a.n, a.x, a.out, launcher.stream());
}
int Sigmoid(const device::SigmoidArgs& a, Launcher& launcher) {
  return Launch({.name = "sigmoid", .x = CeilDiv<int64_t>(a.n, kElementThreads), .threads = kElementThreads},
                launcher.stream(), SigmoidKernel, a);
}

TP_INSTANTIATE(AddBias)
TP_INSTANTIATE(Widen)
TP_INSTANTIATE(Narrow)

}  // namespace tidepool::cuda
