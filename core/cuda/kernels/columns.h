#pragma once
// Sums down the columns of a matrix: a block takes 32 columns; its 32 warps take every 32nd row each, and
// their sums are added from the first to the last. So the order follows from the number of rows alone.

#include "core/cuda/kernels/block.h"

namespace tidepool::cuda {

constexpr int kColumnsOfBlock = 32;
constexpr int kColumnThreads = 1024;

// out[c] += sum over r of f(r, c). scratch: kColumnThreads values. V: float or double.
template <typename V, typename F>
__device__ inline void AddColumnSums(int64_t rows, int64_t columns, Global<V> out, Shared<V> scratch, F f) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumnsOfBlock + lane;
  V sum = 0;
  if (c < columns) {
    for (int64_t r = warp; r < rows; r += kColumnThreads / 32) sum += f(r, c);
  }
  scratch[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || c >= columns) return;
  sum = scratch[lane];
  for (int w = 1; w < kColumnThreads / 32; ++w) sum += scratch[w * 32 + lane];
  out[c] += sum;
}

inline Grid ColumnGrid(const char* name, int64_t columns) {
  return {.name = name, .x = CeilDiv<int64_t>(columns, kColumnsOfBlock), .threads = kColumnThreads};
}

}  // namespace tidepool::cuda
