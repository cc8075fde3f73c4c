#pragma once
// Sums and maxima of the threads of a block, in one fixed order: within a warp as a tree over the bits of the
// lane, then over the warps from first to last. Every thread gets the result.

#include "core/cuda/device_code.h"

namespace tidepool::cuda {

constexpr unsigned kAllLanes = 0xFFFFFFFFU;

template <typename I>
__host__ __device__ constexpr I CeilDiv(I a, I b) {
  return (a + b - 1) / b;
}

template <typename V>
__device__ inline V WarpSum(V v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}
__device__ inline float WarpMax(float v) {  // a NaN is passed over
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}

// scratch: kThreads / 32 values; free again on return.
template <int kThreads, typename V>
__device__ inline V BlockSum(V v, Shared<V> scratch) {
  v = WarpSum(v);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  v = scratch[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) v += scratch[w];
  __syncthreads();
  return v;
}
template <int kThreads>
__device__ inline float BlockMax(float v, Shared<float> scratch) {
  v = WarpMax(v);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  v = scratch[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) v = fmaxf(v, scratch[w]);
  __syncthreads();
  return v;
}

// The eight elements of x from i on, of which those from n on are zero, and back. Where `wide`, x lies on 16
// bytes and n is a multiple of eight; which elements a thread takes is the same either way, so the bits are,
// too.
template <typename T>
__device__ inline void GetChunk(Global<T> x, int64_t i, int64_t n, bool wide, float (&v)[8]) {
  if (wide) {
    Get8(x, i, v);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = i + j < n ? Get(x, i + j) : 0.0F;
}
template <typename T>
__device__ inline void PutChunk(Global<T> x, int64_t i, int64_t n, bool wide, const float (&v)[8]) {
  if (wide) {
    Put8(x, i, v);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (i + j < n) Put(x, i + j, v[j]);
  }
}

// Both types of a kernel.
#define TP_INSTANTIATE(Kernel)                                               \
  template int Kernel<float>(const device::Kernel##Args<float>&, Launcher&); \
  template int Kernel<BF16>(const device::Kernel##Args<BF16>&, Launcher&);

inline bool On16Bytes(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
// Whether rows of n elements may be read 16 bytes at a time; null pointers count as aligned.
template <typename... P>
bool Wide(int64_t n, const P*... pointers) {
  return n % 8 == 0 && (On16Bytes(pointers) && ...);
}

}  // namespace tidepool::cuda
