// silu(gate) * up and its backward.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/glu.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {
namespace {

constexpr int kGluThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kGluThreads) SwiGluKernel(device::SwiGluArgs<T> a, bool wide) {
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x, ff = a.ff;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kGluThreads + threadIdx.x) * 8;
  if (c >= ff) return;
  const Global<const T> gate = View(a.gate_up) + r * 2 * ff;
  float g[8], u[8];
  GetChunk(gate, c, ff, wide, g);
  GetChunk(gate + ff, c, ff, wide, u);
#pragma unroll
  for (int j = 0; j < 8; ++j) g[j] = Gated(g[j], u[j]);
  PutChunk(View(a.act) + r * ff, c, ff, wide, g);
}

// dgate_up may be gate_up: a thread has read its elements before it writes them.
template <typename T>
__global__ void __launch_bounds__(kGluThreads)
    SwiGluBackwardKernel(device::SwiGluBackwardArgs<T> a, bool wide) {
  const int64_t r = blockIdx.x, ff = a.ff;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kGluThreads + threadIdx.x) * 8;
  if (c >= ff) return;
  const Global<const T> gate = View(a.gate_up) + r * 2 * ff;
  float g[8], u[8], da[8];
  GetChunk(gate, c, ff, wide, g);
  GetChunk(gate + ff, c, ff, wide, u);
  GetChunk(View(a.dact) + r * ff, c, ff, wide, da);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float s = SigmoidOf(g[j]), up = u[j];
    u[j] = da[j] * g[j] * s;
    g[j] = da[j] * up * s * (1.0F + g[j] * (1.0F - s));
  }
  const Global<T> out = View(a.dgate_up) + r * 2 * ff;
  PutChunk(out, c, ff, wide, g);
  PutChunk(out + ff, c, ff, wide, u);
}

Grid GluGrid(const char* name, int64_t rows, int64_t ff, bool early) {
  return {.name = name,
          .x = rows,
          .y = CeilDiv<int64_t>(ff, kGluThreads * 8),
          .threads = kGluThreads,
          .early = early};
}

}  // namespace

template <typename T>
int SwiGlu(const device::SwiGluArgs<T>& a, Launcher& launcher) {
  return Launch(GluGrid("swiglu", a.rows, a.ff, /*early=*/true), launcher.stream(), SwiGluKernel<T>, a,
                Wide(a.ff, a.gate_up, a.act));
}
template <typename T>
int SwiGluBackward(const device::SwiGluBackwardArgs<T>& a, Launcher& launcher) {
  return Launch(GluGrid("swiglu_backward", a.rows, a.ff, /*early=*/false), launcher.stream(),
                SwiGluBackwardKernel<T>, a, Wide(a.ff, a.gate_up, a.dact, a.dgate_up));
}

TP_INSTANTIATE(SwiGlu)
TP_INSTANTIATE(SwiGluBackward)

}  // namespace tidepool::cuda
