// Backward of attention and of the rotation, for rows whose keys lie among themselves.
//
//   p_j = exp(s_j - lse),  dp_j = dout.v_j,  ds_j = p_j (dp_j - out.dout) / sqrt(D)
//   dq = sum_j ds_j k_j,  dk_j = sum ds_j q,  dv_j = sum p_j dout
//
// Probabilities are computed again from lse. Nothing is added by atomics: one kernel walks the keys for a
// tile of queries (dq), another the queries for a tile of keys (dk, dv), each in the order of the slots,
// which costs two of seven products twice and makes the sums the same in every run. Which rows attend to
// which slots is a mask of bits, computed from the runs for a tile at a time; tiles without a bit are passed
// over.
#include "core/cuda/kernels/attention_rows.h"

namespace tidepool::cuda {
namespace {

constexpr int kBackQueries = 64;  // of the dq kernel's tile, 16 a warp
constexpr int kBackKeys = 64;     // of the dk, dv kernel's tile
constexpr int kBackStep = 32;     // keys, or queries, that one step of either kernel takes in

// Bit i: whether a row of `length` keys from `run` on attends to slot + i.
__device__ inline uint64_t SlotMask(Global<const device::KvRun> runs, int64_t run, int64_t length,
                                    int64_t slot) {
  uint64_t mask = 0;
  for (int64_t left = length; left > 0; ++run) {
    const device::KvRun r = runs[run];
    const int64_t count = r.count < left ? r.count : left;
    left -= count;
    int64_t low = r.start - slot, high = low + count;
    low = low < 0 ? 0 : low;
    high = high > 64 ? 64 : high;
    if (low < high) mask |= ~uint64_t{0} >> (64 - (high - low)) << low;
  }
  return mask;
}

// delta[row, head] = out.dout, in float32. A warp each.
template <typename T>
__global__ void __launch_bounds__(kAttendThreads)
    DeltaKernel(device::AttentionBackwardArgs<T> a, int64_t row_begin, int64_t items, float* delta) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (item >= items) return;  // a whole warp
  const int64_t size = a.head_size, at = (row_begin * a.heads + item) * size;
  const Global<const T> out = View(static_cast<const T*>(a.out)) + at, dout = View(a.dout) + at;
  float sum = 0.0F;
  for (int64_t d = threadIdx.x % 32; d < size; d += 32) sum += Get(out, d) * Get(dout, d);
  sum = WarpSum(sum);
  if (threadIdx.x % 32 == 0) View(delta)[item] = sum;
}

// A lane's part of a row of head_size gradients, its rotation undone, where it belongs in the fused product.
template <int kD>
__device__ inline void PutRotatedBack(const device::AttentionBackwardArgs<BF16>& a, int64_t row,
                                      const float (&acc)[kD / 8][4], int h, int64_t offset) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const device::AttentionBackwardArgs<BF16>& f = a;
  const int64_t half = kD / 2, at = View(a.positions)[row] * half;
  const Global<const float> cos = View(a.cos) + at, sin = View(a.sin) + at;
  const Global<BF16> out = View(a.dqkv) + row * (f.heads + 2 * f.kv_heads) * kD + offset;
#pragma unroll
  for (int n = 0; n < kD / 16; ++n) {
    float low[2], high[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int c = n * 8 + 2 * t + i;
      const float co = cos[c], si = sin[c], x = acc[n][2 * h + i], y = acc[n + kD / 16][2 * h + i];
      low[i] = x * co + y * si;
      high[i] = y * co - x * si;
    }
    Put2(out, n * 8 + 2 * t, low[0], low[1]);
    Put2(out, half + n * 8 + 2 * t, high[0], high[1]);
  }
}

template <int kD>
struct BackwardLayout {  // dynamic shared memory, bytes: two tiles of 64 rows, two of 32
  static constexpr int kWide = 64 * kTileRow<kD> * 2, kNarrow = kBackStep * kTileRow<kD> * 2;
  static constexpr int kSecond = kWide, kThird = 2 * kWide, kFourth = 2 * kWide + kNarrow;
  static constexpr int kBytes = 2 * kWide + 2 * kNarrow;
  static_assert(kBytes <= kSharedMax);
};

template <int kD>
__global__ void __launch_bounds__(kAttendThreads)
    QueryGradientKernel(device::AttentionBackwardArgs<BF16> a, int64_t row_begin, int64_t row_end,
                        const float* delta) {
  TP_DYNAMIC_SHARED(bytes);
  TP_SHARED(uint32_t, masks, kBackQueries);
  using Layout = BackwardLayout<kD>;
  constexpr int kRow = kTileRow<kD>, kChunks = kD / 8;
  const Shared<BF16> queries = Carve<BF16>(bytes, 0, kBackQueries * kRow);
  const Shared<BF16> douts = Carve<BF16>(bytes, Layout::kSecond, kBackQueries * kRow);
  const Shared<BF16> keys = Carve<BF16>(bytes, Layout::kThird, kBackStep * kRow);
  const Shared<BF16> values = Carve<BF16>(bytes, Layout::kFourth, kBackStep * kRow);
  const device::AttentionBackwardArgs<BF16>& f = a;
  const int64_t group = f.heads / f.kv_heads, kv = blockIdx.y, tile_rows = kBackQueries / group;
  const int64_t first = row_begin + static_cast<int64_t>(blockIdx.x) * tile_rows;
  const int64_t rows = row_end - first < tile_rows ? row_end - first : tile_rows, m_count = rows * group;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const float scale = 1.0F / sqrtf(static_cast<float>(kD));
  for (int i = tid; i < kBackQueries * kChunks; i += kAttendThreads) {
    const int64_t m = i / kChunks, row = first + m / group, head = kv * group + m % group;
    const int64_t at = m < m_count ? (row * f.heads + head) * kD + i % kChunks * 8 : 0;
    CopyAsync16(queries + m * kRow + i % kChunks * 8, View(f.q) + at, m < m_count);
    CopyAsync16(douts + m * kRow + i % kChunks * 8, View(a.dout) + at, m < m_count);
  }
  CopyAsyncCommit();
  float lse[2] = {}, out_dout[2] = {};
  int64_t place[2];  // of the lane's two rows among the tile's rows
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t m = warp * 16 + g + 8 * h, row = first + m / group, head = kv * group + m % group;
    place[h] = m < m_count ? m / group : -1;
    if (m >= m_count) continue;
    lse[h] = View(static_cast<const float*>(f.lse))[row * f.heads + head];
    out_dout[h] = View(delta)[(row - row_begin) * f.heads + head];
  }
  float dq[kD / 8][4] = {};
  for (int64_t slot = row_begin; slot < row_end; slot += kBackStep) {
    uint32_t mine = 0;
    if (tid < rows) {
      mine = static_cast<uint32_t>(SlotMask(View(f.keys.runs), View(f.keys.first_run)[first + tid],
                                            View(f.keys.lengths)[first + tid], slot));
      masks[tid] = mine;
    }
    if (__syncthreads_or(mine != 0 ? 1 : 0) == 0)
      continue;  // the barrier also says that the last tile was used
    for (int i = tid; i < kBackStep * kChunks; i += kAttendThreads) {
      const int64_t r = i / kChunks, chunk = i % kChunks * 8;
      const bool there = slot + r < row_end;
      const int64_t at = there ? ((slot + r) * f.kv_heads + kv) * kD + chunk : 0;
      CopyAsync16(keys + r * kRow + chunk, View(f.k) + at, there);
      CopyAsync16(values + r * kRow + chunk, View(f.v) + at, there);
    }
    CopyAsyncCommit();
    CopyAsyncWait<0>();
    __syncthreads();
    float p[kBackStep / 8][4], ds[kBackStep / 8][4];
    MultiplyRows<kD, kBackStep>(queries + warp * 16 * kRow, keys, p);
    MultiplyRows<kD, kBackStep>(douts + warp * 16 * kRow, values, ds);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t mask = place[h] < 0 ? 0U : uint32_t{masks[place[h]]};
#pragma unroll
      for (int n = 0; n < kBackStep / 8; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          const bool attends = (mask >> (n * 8 + 2 * t + i % 2) & 1U) != 0;
          const float weight = attends ? __expf(p[n][i] * scale - lse[h]) : 0.0F;
          ds[n][i] = weight * (ds[n][i] - out_dout[h]) * scale;
        }
      }
    }
    MultiplyWeights<kD, kBackStep>(ds, keys, dq);
    __syncthreads();  // masks and tiles are free again
  }
  CopyAsyncWait<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (place[h] < 0) continue;
    const int64_t m = warp * 16 + g + 8 * h;
    PutRotatedBack<kD>(a, first + place[h], dq, h, (kv * group + m % group) * kD);
  }
}

template <int kD>
__global__ void __launch_bounds__(kAttendThreads)
    KeyGradientKernel(device::AttentionBackwardArgs<BF16> a, int64_t row_begin, int64_t row_end,
                      const float* delta) {
  TP_DYNAMIC_SHARED(bytes);
  TP_SHARED(uint64_t, masks, kAttendThreads);
  TP_SHARED(float, lse, kBackStep);
  TP_SHARED(float, out_dout, kBackStep);
  using Layout = BackwardLayout<kD>;
  constexpr int kRow = kTileRow<kD>, kChunks = kD / 8;
  const Shared<BF16> keys = Carve<BF16>(bytes, 0, kBackKeys * kRow);
  const Shared<BF16> values = Carve<BF16>(bytes, Layout::kSecond, kBackKeys * kRow);
  const Shared<BF16> queries = Carve<BF16>(bytes, Layout::kThird, kBackStep * kRow);
  const Shared<BF16> douts = Carve<BF16>(bytes, Layout::kFourth, kBackStep * kRow);
  const device::AttentionBackwardArgs<BF16>& f = a;
  const int64_t group = f.heads / f.kv_heads, kv = blockIdx.y;
  const int64_t slot = row_begin + static_cast<int64_t>(blockIdx.x) * kBackKeys;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const float scale = 1.0F / sqrtf(static_cast<float>(kD));
  for (int i = tid; i < kBackKeys * kChunks; i += kAttendThreads) {
    const int64_t r = i / kChunks, chunk = i % kChunks * 8;
    const bool there = slot + r < row_end;
    const int64_t at = there ? ((slot + r) * f.kv_heads + kv) * kD + chunk : 0;
    CopyAsync16(keys + r * kRow + chunk, View(f.k) + at, there);
    CopyAsync16(values + r * kRow + chunk, View(f.v) + at, there);
  }
  CopyAsyncCommit();
  float dk[kD / 8][4] = {}, dv[kD / 8][4] = {};
  for (int64_t base = row_begin; base < row_end; base += kAttendThreads) {
    const int64_t row_here = base + tid;
    const uint64_t mine = row_here < row_end ? SlotMask(View(f.keys.runs), View(f.keys.first_run)[row_here],
                                                        View(f.keys.lengths)[row_here], slot)
                                             : 0;
    masks[tid] = mine;
    if (__syncthreads_or(mine != 0 ? 1 : 0) != 0) {
      for (int64_t m0 = 0; m0 < kAttendThreads * group; m0 += kBackStep) {
        bool any = false;
        for (int64_t r = m0 / group; r <= (m0 + kBackStep - 1) / group; ++r)
          any = any || uint64_t{masks[r]} != 0;
        if (!any) continue;  // the same for all threads
        for (int i = tid; i < kBackStep * kChunks; i += kAttendThreads) {
          const int64_t m = m0 + i / kChunks, row = base + m / group, head = kv * group + m % group;
          const int64_t chunk = i % kChunks * 8, at = row < row_end ? (row * f.heads + head) * kD + chunk : 0;
          CopyAsync16(queries + i / kChunks * kRow + chunk, View(f.q) + at, row < row_end);
          CopyAsync16(douts + i / kChunks * kRow + chunk, View(a.dout) + at, row < row_end);
        }
        CopyAsyncCommit();
        if (tid < kBackStep) {
          const int64_t m = m0 + tid, row = base + m / group, head = kv * group + m % group;
          lse[tid] = row < row_end ? View(static_cast<const float*>(f.lse))[row * f.heads + head] : 0.0F;
          out_dout[tid] = row < row_end ? View(delta)[(row - row_begin) * f.heads + head] : 0.0F;
        }
        CopyAsyncWait<0>();
        __syncthreads();
        // Transposed: rows are the warp's keys, columns the queries.
        float p[kBackStep / 8][4], ds[kBackStep / 8][4];
        MultiplyRows<kD, kBackStep>(keys + warp * 16 * kRow, queries, p);
        MultiplyRows<kD, kBackStep>(values + warp * 16 * kRow, douts, ds);
#pragma unroll
        for (int n = 0; n < kBackStep / 8; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int m = n * 8 + 2 * t + j;
            const uint64_t mask = masks[(m0 + m) / group];
            const float log_sum = lse[m], d = out_dout[m];
#pragma unroll
            for (int i = j; i < 4; i += 2) {
              const bool attends = (mask >> (warp * 16 + g + i / 2 * 8) & 1U) != 0;
              p[n][i] = attends ? __expf(p[n][i] * scale - log_sum) : 0.0F;
              ds[n][i] = p[n][i] * (ds[n][i] - d) * scale;
            }
          }
        }
        MultiplyWeights<kD, kBackStep>(p, douts, dv);
        MultiplyWeights<kD, kBackStep>(ds, queries, dk);
        __syncthreads();  // queries are free again
      }
    }
    __syncthreads();  // masks are free again
  }
  CopyAsyncWait<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t row = slot + warp * 16 + g + 8 * h;
    if (row >= row_end) continue;
    PutRotatedBack<kD>(a, row, dk, h, (f.heads + kv) * kD);
    const Global<BF16> out =
        View(a.dqkv) + row * (f.heads + 2 * f.kv_heads) * kD + (f.heads + f.kv_heads + kv) * kD;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) Put2(out, n * 8 + 2 * t, dv[n][2 * h], dv[n][2 * h + 1]);
  }
}

// Any type and head size, as attention_rows.h: a block takes one query head of a row, or one key of a
// key-value head.

constexpr int kRowsStep = kAttendThreads;  // queries or keys at a time, one a thread

template <typename T>
__device__ inline float DotOf(Global<const T> x, Global<const T> y, int64_t n) {
  float sum = 0.0F;
  for (int64_t d = 0; d < n; ++d) sum += Get(x, d) * Get(y, d);
  return sum;
}

// The block's head_size gradients in `head`, rotation undone, to `out`.
template <typename T>
__device__ inline void PutRowRotatedBack(const device::AttentionBackwardArgs<T>& a, int64_t row,
                                         Shared<float> head, Global<T> out) {
  const int64_t half = a.head_size / 2, at = View(a.positions)[row] * half;
  const Global<const float> cos = View(a.cos) + at, sin = View(a.sin) + at;
  __syncthreads();
  for (int64_t c = threadIdx.x; c < half; c += kAttendThreads) {
    const float x = head[c], y = head[half + c];
    Put(out, c, x * cos[c] + y * sin[c]);
    Put(out, half + c, y * cos[c] - x * sin[c]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kAttendThreads)
    QueryGradientRowsKernel(device::AttentionBackwardArgs<T> a, int64_t row_begin, const float* delta) {
  TP_SHARED(float, head_gradient, kAttendHeadMax);
  TP_SHARED(float, ds, kRowsStep);
  TP_SHARED(int32_t, slots, kRowsStep);
  const device::AttentionBackwardArgs<T>& f = a;
  const int64_t row = row_begin + blockIdx.x, head = blockIdx.y, size = f.head_size;
  const int64_t kv = head / (f.heads / f.kv_heads), length = View(f.keys.lengths)[row];
  const Global<const T> q = View(f.q) + (row * f.heads + head) * size,
                        g = View(a.dout) + (row * f.heads + head) * size;
  const Global<const T> keys = View(f.k) + kv * size, values = View(f.v) + kv * size;
  const float lse = View(static_cast<const float*>(f.lse))[row * f.heads + head];
  const float out_dout = View(delta)[(row - row_begin) * f.heads + head];
  const float scale = 1.0F / sqrtf(static_cast<float>(size));
  SlotWalk walk{View(f.keys.first_run)[row], 0};
  float dq[kAttendDims] = {};
  for (int64_t begin = 0; begin < length; begin += kRowsStep) {
    const int64_t j = begin + threadIdx.x;
    if (j < length) {
      const int64_t slot = walk.SlotOf(View(f.keys.runs), j), at = slot * f.kv_heads * size;
      const float p = __expf(DotOf(q, keys + at, size) * scale - lse);
      ds[threadIdx.x] = p * (DotOf(g, values + at, size) - out_dout) * scale;
      slots[threadIdx.x] = static_cast<int32_t>(slot);
    }
    __syncthreads();
    const int64_t count = length - begin < kRowsStep ? length - begin : kRowsStep;
#pragma unroll
    for (int i = 0; i < kAttendDims; ++i) {
      const int64_t d = threadIdx.x + kAttendThreads * i;
      if (d >= size) continue;
      for (int64_t k = 0; k < count; ++k) dq[i] += ds[k] * Get(keys, slots[k] * f.kv_heads * size + d);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kAttendDims; ++i) {
    const int64_t d = threadIdx.x + kAttendThreads * i;
    if (d < size) head_gradient[d] = dq[i];
  }
  PutRowRotatedBack(a, row, head_gradient, View(a.dqkv) + (row * (f.heads + 2 * f.kv_heads) + head) * size);
}

template <typename T>
__global__ void __launch_bounds__(kAttendThreads)
    KeyGradientRowsKernel(device::AttentionBackwardArgs<T> a, int64_t row_begin, int64_t row_end,
                          const float* delta) {
  TP_SHARED(float, head_gradient, kAttendHeadMax);
  TP_SHARED(float, ds, kRowsStep);
  TP_SHARED(float, weights, kRowsStep);
  const device::AttentionBackwardArgs<T>& f = a;
  const int64_t slot = row_begin + blockIdx.x, kv = blockIdx.y, size = f.head_size,
                group = f.heads / f.kv_heads;
  const Global<const T> key = View(f.k) + (slot * f.kv_heads + kv) * size;
  const Global<const T> value = View(f.v) + (slot * f.kv_heads + kv) * size;
  const float scale = 1.0F / sqrtf(static_cast<float>(size));
  float dk[kAttendDims] = {}, dv[kAttendDims] = {};
  const int64_t m_count = (row_end - row_begin) * group;
  for (int64_t m0 = 0; m0 < m_count; m0 += kRowsStep) {
    const int64_t m = m0 + threadIdx.x, row = row_begin + m / group, head = kv * group + m % group;
    float p = 0.0F, d = 0.0F;
    if (m < m_count &&
        (SlotMask(View(f.keys.runs), View(f.keys.first_run)[row], View(f.keys.lengths)[row], slot) & 1U) !=
            0) {
      const int64_t at = (row * f.heads + head) * size;
      p = __expf(DotOf(View(f.q) + at, key, size) * scale -
                 View(static_cast<const float*>(f.lse))[row * f.heads + head]);
      d = p * (DotOf(View(a.dout) + at, value, size) - View(delta)[(row - row_begin) * f.heads + head]) *
          scale;
    }
    weights[threadIdx.x] = p;
    ds[threadIdx.x] = d;
    if (__syncthreads_or(p != 0.0F ? 1 : 0) != 0) {
      const int64_t count = m_count - m0 < kRowsStep ? m_count - m0 : kRowsStep;
#pragma unroll
      for (int i = 0; i < kAttendDims; ++i) {
        const int64_t c = threadIdx.x + kAttendThreads * i;
        if (c >= size) continue;
        for (int64_t k = 0; k < count; ++k) {
          const int64_t n = m0 + k,
                        at = ((row_begin + n / group) * f.heads + kv * group + n % group) * size + c;
          dk[i] += ds[k] * Get(View(f.q), at);
          dv[i] += weights[k] * Get(View(a.dout), at);
        }
      }
    }
    __syncthreads();
  }
  const Global<T> out = View(a.dqkv) + slot * (f.heads + 2 * f.kv_heads) * size;
#pragma unroll
  for (int i = 0; i < kAttendDims; ++i) {
    const int64_t d = threadIdx.x + kAttendThreads * i;
    if (d >= size) continue;
    head_gradient[d] = dk[i];
    Put(out + (f.heads + f.kv_heads + kv) * size, d, dv[i]);
  }
  PutRowRotatedBack(a, slot, head_gradient, out + (f.heads + kv) * size);
}

template <int kD>
int BackwardTiles(const device::AttentionBackwardArgs<BF16>& a, int64_t row_begin, int64_t row_end,
                  const float* delta, Stream stream) {
  const device::AttentionBackwardArgs<BF16>& f = a;
  const int64_t rows = row_end - row_begin, tile_rows = kBackQueries / (f.heads / f.kv_heads);
  if (const int code = Launch({.name = "attention_backward_queries",
                               .x = CeilDiv(rows, tile_rows),
                               .y = f.kv_heads,
                               .threads = kAttendThreads,
                               .shared_bytes = BackwardLayout<kD>::kBytes},
                              stream, QueryGradientKernel<kD>, a, row_begin, row_end, delta);
      code != 0) {
    return code;
  }
  return Launch({.name = "attention_backward_keys",
                 .x = CeilDiv<int64_t>(rows, kBackKeys),
                 .y = f.kv_heads,
                 .threads = kAttendThreads,
                 .shared_bytes = BackwardLayout<kD>::kBytes},
                stream, KeyGradientKernel<kD>, a, row_begin, row_end, delta);
}

// Of rows [row_begin, row_end). delta: (row_end - row_begin) * heads floats.
template <typename T>
int BackwardOfRange(const device::AttentionBackwardArgs<T>& a, int64_t row_begin, int64_t row_end,
                    float* delta, Stream stream) {
  const int64_t rows = row_end - row_begin, items = rows * a.heads;
  if (const int code =
          Launch({.name = "attention_delta", .x = CeilDiv<int64_t>(items, 4), .threads = kAttendThreads},
                 stream, DeltaKernel<T>, a, row_begin, items, delta);
      code != 0) {
    return code;
  }
  if constexpr (sizeof(T) == 2) {
    if (a.heads / a.kv_heads <= kBackQueries && On16Bytes(a.q) && On16Bytes(a.k) && On16Bytes(a.v) &&
        On16Bytes(a.dout)) {
      if (a.head_size == 64) return BackwardTiles<64>(a, row_begin, row_end, delta, stream);
      if (a.head_size == 128) return BackwardTiles<128>(a, row_begin, row_end, delta, stream);
    }
  }
  if (const int code = Launch(
          {.name = "attention_backward_query_rows", .x = rows, .y = a.heads, .threads = kAttendThreads},
          stream, QueryGradientRowsKernel<T>, a, row_begin, delta);
      code != 0) {
    return code;
  }
  return Launch(
      {.name = "attention_backward_key_rows", .x = rows, .y = a.kv_heads, .threads = kAttendThreads}, stream,
      KeyGradientRowsKernel<T>, a, row_begin, row_end, delta);
}

}  // namespace

template <typename T>
int AttentionBackward(const device::AttentionBackwardArgs<T>& a, Launcher& launcher) {
  if (a.head_size > kAttendHeadMax || a.head_size % 2 != 0 || a.kv_heads < 1 || a.heads % a.kv_heads != 0) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  auto* delta =
      static_cast<float*>(launcher.Scratch(a.keys.rows * a.heads * static_cast<int64_t>(sizeof(float))));
  for (const auto& [begin, end] : static_cast<const AttentionOnDevice&>(*a.work).ranges) {
    if (begin == end) continue;
    const int code = BackwardOfRange(a, begin, end, delta + begin * a.heads, launcher.stream());
    if (code != 0) return code;
  }
  return 0;
}
TP_INSTANTIATE(AttentionBackward)

}  // namespace tidepool::cuda
