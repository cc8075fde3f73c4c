// silu(gate) * up and its backward.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch_functions.h"

namespace tidepool::cuda {
namespace {

constexpr int kGluThreads = 256;

__device__ inline float SigmoidOf(float v) { return 1.0F / (1.0F + __expf(-v)); }

template <typename T>
__global__ void __launch_bounds__(kGluThreads) SwiGluKernel(int64_t ff, const T* gate_up, T* act, bool wide) {
  const int64_t r = blockIdx.x, c = (static_cast<int64_t>(blockIdx.y) * kGluThreads + threadIdx.x) * 8;
  if (c >= ff) return;
  const Global<const T> gate = View(gate_up) + r * 2 * ff;
  float g[8], u[8];
  GetChunk(gate, c, ff, wide, g);
  GetChunk(gate + ff, c, ff, wide, u);
#pragma unroll
  for (int j = 0; j < 8; ++j) g[j] = g[j] * SigmoidOf(g[j]) * u[j];
  PutChunk(View(act) + r * ff, c, ff, wide, g);
}

// dgate_up may be gate_up: a thread has read its elements before it writes them.
template <typename T>
__global__ void __launch_bounds__(kGluThreads)
    SwiGluBackwardKernel(int64_t ff, const T* gate_up, const T* dact, T* dgate_up, bool wide) {
  const int64_t r = blockIdx.x, c = (static_cast<int64_t>(blockIdx.y) * kGluThreads + threadIdx.x) * 8;
  if (c >= ff) return;
  const Global<const T> gate = View(gate_up) + r * 2 * ff;
  float g[8], u[8], da[8];
  GetChunk(gate, c, ff, wide, g);
  GetChunk(gate + ff, c, ff, wide, u);
  GetChunk(View(dact) + r * ff, c, ff, wide, da);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float s = SigmoidOf(g[j]), up = u[j];
    u[j] = da[j] * g[j] * s;
    g[j] = da[j] * up * s * (1.0F + g[j] * (1.0F - s));
  }
  const Global<T> out = View(dgate_up) + r * 2 * ff;
  PutChunk(out, c, ff, wide, g);
  PutChunk(out + ff, c, ff, wide, u);
}

Grid GluGrid(const char* name, int64_t rows, int64_t ff) {
  return {.name = name, .x = rows, .y = CeilDiv<int64_t>(ff, kGluThreads * 8), .threads = kGluThreads};
}

}  // namespace

template <typename T>
int SwiGlu(int64_t rows, int64_t ff, const T* gate_up, T* act, Stream stream) {
  return Launch(GluGrid("swiglu", rows, ff), stream, SwiGluKernel<T>, ff, gate_up, act,
                Wide(ff, gate_up, act));
}
template <typename T>
int SwiGluBackward(int64_t rows, int64_t ff, const T* gate_up, const T* dact, T* dgate_up, Stream stream) {
  return Launch(GluGrid("swiglu_backward", rows, ff), stream, SwiGluBackwardKernel<T>, ff, gate_up, dact,
                dgate_up, Wide(ff, gate_up, dact, dgate_up));
}

#define TP_INSTANTIATE(T)                                         \
  template int SwiGlu<T>(int64_t, int64_t, const T*, T*, Stream); \
  template int SwiGluBackward<T>(int64_t, int64_t, const T*, const T*, T*, Stream);
TP_INSTANTIATE(float)
TP_INSTANTIATE(BF16)
#undef TP_INSTANTIATE

}  // namespace tidepool::cuda
