// Rows of a table by number, and sums of rows into a table in the order of the rows.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {
namespace {

constexpr int kEmbeddingThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    GatherRowsKernel(device::GatherRowsArgs<T> a, bool wide) {
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x, d = a.d;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kEmbeddingThreads + threadIdx.x) * 8;
  if (c >= d) return;
  float v[8] = {};  // through float32 and back: exact
  const int32_t id = View(a.ids)[r];
  if (id >= 0) GetChunk(View(a.table) + int64_t{id} * d, c, d, wide, v);
  PutChunk(View(a.out) + r * d, c, d, wide, v);
}

// The block of the first row of an id adds the rows of that id, in order; the blocks of later ones end. So no
// two blocks write one row of the table, and the order of additions is that of the CPU.
template <typename T>
__global__ void __launch_bounds__(kEmbeddingThreads) ScatterAddRowsKernel(device::ScatterAddRowsArgs<T> a) {
  TP_SHARED(int32_t, found, kEmbeddingThreads);
  TP_SHARED(int32_t, counts, kEmbeddingThreads / 32);
  const Global<const int32_t> ids = View(a.ids);
  const Global<const T> x = View(a.x);
  const int64_t r = blockIdx.x, rows = a.rows, d = a.d;
  const int32_t id = ids[r];
  if (id < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  bool earlier = false;
  for (int64_t i = threadIdx.x; i < r && !earlier; i += kEmbeddingThreads) earlier = ids[i] == id;
  if (__syncthreads_or(earlier ? 1 : 0) != 0) return;
  const Global<float> to = View(a.table) + int64_t{id} * d;
  for (int64_t base = r; base < rows; base += kEmbeddingThreads) {
    const int64_t i = base + threadIdx.x;
    const bool mine = i < rows && ids[i] == id;
    const unsigned here = __ballot_sync(kAllLanes, mine ? 1 : 0);
    if (lane == 0) counts[warp] = __popc(here);
    __syncthreads();
    int place = __popc(here & ((1U << lane) - 1U)), count = 0;
    for (int w = 0; w < kEmbeddingThreads / 32; ++w) {
      if (w == warp) place += count;
      count += counts[w];
    }
    if (mine) found[place] = static_cast<int32_t>(i);
    __syncthreads();
    for (int64_t c = threadIdx.x; c < d && count > 0; c += kEmbeddingThreads) {
      float sum = to[c];
      for (int k = 0; k < count; ++k) sum += Get(x, int64_t{found[k]} * d + c);
      to[c] = sum;
    }
  }
}

}  // namespace

template <typename T>
int GatherRows(const device::GatherRowsArgs<T>& a, Launcher& launcher) {
  return Launch({.name = "gather_rows",
                 .x = a.rows,
                 .y = CeilDiv<int64_t>(a.d, kEmbeddingThreads * 8),
                 .threads = kEmbeddingThreads,
                 .early = true},
                launcher.stream(), GatherRowsKernel<T>, a, Wide(a.d, a.table, a.out));
}
template <typename T>
int ScatterAddRows(const device::ScatterAddRowsArgs<T>& a, Launcher& launcher) {
  return Launch({.name = "scatter_add_rows", .x = a.rows, .threads = kEmbeddingThreads}, launcher.stream(),
                ScatterAddRowsKernel<T>, a);
}

TP_INSTANTIATE(GatherRows)
TP_INSTANTIATE(ScatterAddRows)

}  // namespace tidepool::cuda
