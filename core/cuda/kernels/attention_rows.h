#pragma once
// Attention of one query head to one partition of 256 keys, for any type and head size, by a block of 128
// threads: what head sizes without a kernel on tensor cores use, and float32.

#include "core/cuda/kernels/attention_tiles.h"
#include "core/cuda/kernels/launch.h"
#include "core/cuda/limits.h"

namespace tidepool::cuda {

// Of the rows in the plan. requires sizes that Attention has checked.
template <typename T>
int DecodeAttention(const device::AttentionArgs<T>&, const DecodeWork&, Launcher&);
template <typename T>
int PrefillAttention(const device::AttentionArgs<T>&, const PrefillWork&, Launcher&);

constexpr int kAttendThreads = 128;
constexpr int kAttendHeadMax = kHeadSizeMax;
constexpr int kAttendDims = kAttendHeadMax / kAttendThreads;

// max and sum of exp(s - max) of the keys, and the sum of exp(s - max) v: element threadIdx.x + 128 i in
// out[i].
struct PartResult {
  float max = -INFINITY, sum = 0.0F;
  float out[kAttendDims] = {};
};

// left := left and right together, in this order.
__device__ inline void MergeParts(PartResult& left, const PartResult& right) {
  const float max = fmaxf(left.max, right.max), a = ExpBelow(left.max, max), b = ExpBelow(right.max, max);
#pragma unroll
  for (int i = 0; i < kAttendDims; ++i) left.out[i] = left.out[i] * a + right.out[i] * b;
  left.sum = left.sum * a + right.sum * b;
  left.max = max;
}

struct AttendShared {
  Shared<float> q, scores, scratch;
  Shared<int32_t> slots;
};
#define TP_ATTEND_SHARED(name)                      \
  TP_SHARED(float, name##_q, kAttendHeadMax);       \
  TP_SHARED(float, name##_scores, kPartitionKeys);  \
  TP_SHARED(float, name##_scratch, 4);              \
  TP_SHARED(int32_t, name##_slots, kPartitionKeys); \
  const AttendShared name { name##_q, name##_scores, name##_scratch, name##_slots }

// Keys [256 p, ...) of `row`, at least one; s.slots has their slots. head: of all query heads.
template <typename T>
__device__ inline void AttendPart(const device::AttentionArgs<T>& a, int64_t row, int64_t head, int partition,
                                  const AttendShared& s, PartResult& part) {
  const int64_t size = a.head_size, kv = head / (a.heads / a.kv_heads);
  const int64_t left = View(a.keys.lengths)[row] - int64_t{partition} * kPartitionKeys;
  const int count = static_cast<int>(left < kPartitionKeys ? left : kPartitionKeys);
  const Global<const T> q = View(a.q) + (row * a.heads + head) * size;
  const Global<const T> keys = View(a.k) + kv * size, values = View(a.v) + kv * size;
  const int64_t stride = a.kv_heads * size;
  const float scale = 1.0F / sqrtf(static_cast<float>(size));
  for (int64_t d = threadIdx.x; d < size; d += kAttendThreads) s.q[d] = Get(q, d);
  __syncthreads();
  float max = -INFINITY;
  for (int j = static_cast<int>(threadIdx.x); j < count; j += kAttendThreads) {
    const Global<const T> k = keys + s.slots[j] * stride;
    float dot = 0.0F;
    for (int64_t d = 0; d < size; ++d) dot += s.q[d] * Get(k, d);
    s.scores[j] = dot * scale;
    max = fmaxf(max, dot * scale);
  }
  part.max = BlockMax<kAttendThreads>(max, s.scratch);
  float sum = 0.0F;
  for (int j = static_cast<int>(threadIdx.x); j < count; j += kAttendThreads) {
    const float p = __expf(s.scores[j] - part.max);
    s.scores[j] = p;
    sum += p;
  }
  part.sum = BlockSum<kAttendThreads>(sum, s.scratch);  // ends with a barrier: scores can be read
#pragma unroll
  for (int i = 0; i < kAttendDims; ++i) {
    const int64_t d = threadIdx.x + kAttendThreads * i;
    part.out[i] = 0.0F;
    if (d >= size) continue;
    for (int j = 0; j < count; ++j) part.out[i] += s.scores[j] * Get(values, s.slots[j] * stride + d);
  }
  __syncthreads();  // q and scores are free again
}

}  // namespace tidepool::cuda
