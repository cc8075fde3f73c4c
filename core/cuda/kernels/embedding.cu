// Rows of a table by number, and the backward of the embedding in the order of the rows.
#include "core/cuda/kernels/block.h"
#include "core/cuda/kernels/launch_functions.h"

namespace tidepool::cuda {
namespace {

constexpr int kEmbeddingThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    GatherRowsKernel(int64_t d, const int32_t* ids, const T* table, T* out, bool wide) {
  const int64_t r = blockIdx.x, c = (static_cast<int64_t>(blockIdx.y) * kEmbeddingThreads + threadIdx.x) * 8;
  if (c >= d) return;
  float v[8];  // through float32 and back: exact
  GetChunk(View(table) + int64_t{View(ids)[r]} * d, c, d, wide, v);
  PutChunk(View(out) + r * d, c, d, wide, v);
}

// The block of the first row of an id adds the rows of that id, in order; the blocks of later ones end. So no
// two blocks write one row of the table, and the order of additions is that of the CPU.
__global__ void __launch_bounds__(kEmbeddingThreads)
    EmbeddingBackwardKernel(int64_t rows, int64_t d, const int32_t* ids_all, const float* dx_all,
                            float* table) {
  TP_SHARED(int32_t, found, kEmbeddingThreads);
  TP_SHARED(int32_t, counts, kEmbeddingThreads / 32);
  const Global<const int32_t> ids = View(ids_all);
  const Global<const float> dx = View(dx_all);
  const int64_t r = blockIdx.x;
  const int32_t id = ids[r];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  bool earlier = false;
  for (int64_t i = threadIdx.x; i < r && !earlier; i += kEmbeddingThreads) earlier = ids[i] == id;
  if (__syncthreads_or(earlier ? 1 : 0) != 0) return;
  const Global<float> to = View(table) + int64_t{id} * d;
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
      for (int k = 0; k < count; ++k) sum += dx[int64_t{found[k]} * d + c];
      to[c] = sum;
    }
  }
}

}  // namespace

template <typename T>
int GatherRows(int64_t rows, int64_t d, const int32_t* ids, const T* table, T* out, Stream stream) {
  return Launch({.name = "gather_rows",
                 .x = rows,
                 .y = CeilDiv<int64_t>(d, kEmbeddingThreads * 8),
                 .threads = kEmbeddingThreads},
                stream, GatherRowsKernel<T>, d, ids, table, out, Wide(d, table, out));
}
template int GatherRows<float>(int64_t, int64_t, const int32_t*, const float*, float*, Stream);
template int GatherRows<BF16>(int64_t, int64_t, const int32_t*, const BF16*, BF16*, Stream);

int EmbeddingBackward(int64_t rows, int64_t d, const int32_t* ids, const float* dx, float* table,
                      Stream stream) {
  return Launch({.name = "embedding_backward", .x = rows, .threads = kEmbeddingThreads}, stream,
                EmbeddingBackwardKernel, rows, d, ids, dx, table);
}

}  // namespace tidepool::cuda
