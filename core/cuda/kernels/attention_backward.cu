// Backward of attention and of the rotation, for rows whose keys lie among themselves.
//
//   p_j = exp(s_j - lse),  dp_j = dout.v_j,  ds_j = p_j (dp_j - out.dout) / sqrt(D)
//   dq = sum_j ds_j k_j,  dk_j = sum ds_j q,  dv_j = sum p_j dout
//
// Probabilities are computed again from lse. Nothing is added by atomics: one kernel walks the keys for a
// block of queries (dq), another the queries for a block of keys (dk, dv), each in the order of the rows.
// That computes two of seven products twice, and the sums are the same in every run. They depend on the rows
// of their range alone, not on its place in the batch.
#include "core/cuda/kernels/attention_rows.h"

namespace tidepool::cuda {
namespace {

// Whether a row of `length` keys from `run` on attends to the slot.
__device__ inline bool Attends(Global<const device::KvRun> runs, int64_t run, int64_t length, int64_t slot) {
  for (int64_t left = length; left > 0; ++run) {
    const device::KvRun r = runs[run];
    const int64_t count = r.count < left ? r.count : left;
    if (slot >= r.start && slot < r.start + count) return true;
    left -= count;
  }
  return false;
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

// Heads of 64 and 128 in bfloat16: the blocks, steps and masks of attention_plan.h.
//
// A warp has kStrips times 16 rows of the block, whose sums stay in its registers; of a step it multiplies
// kChunk rows at a time, so that p and ds, rounded, are at once the left operands of the products that
// follow. The next step is under way meanwhile.

template <int kD_, int kStrips_, int kStep_, int kChunk_, int kBlocks_, bool kHeld_>
struct BackwardTiles {
  static constexpr int kD = kD_, kStrips = kStrips_, kChunk = kChunk_;
  static constexpr int kStep = kStep_;      // rows that are loaded at a time, of the plan's step
  static constexpr int kBlocks = kBlocks_;  // of a multiprocessor
  static constexpr bool kHeld = kHeld_;     // whether the block's rows stay in registers, too
  static constexpr int kRow = kTileRow<kD>, kThreads = kBackBlock / (16 * kStrips) * 32;
  // Dynamic shared memory, bytes: two operands of the block, two of a step, twice; their sums, twice.
  static constexpr int kWide = kBackBlock * kRow * 2, kNarrow = kStep * kRow * 2;
  static constexpr int kSteps = 2 * kWide, kSums = kSteps + 4 * kNarrow, kSumsBytes = 2 * kStep * 4;
  static constexpr int kBytes = kSums + 2 * kSumsBytes;
  static_assert(kBytes <= kSharedMax && kBackStep % kStep == 0 && kStep % kChunk == 0);
};

// Starts the copy of `count` rows of kD elements, `stride` apart, and zeros up to kRows rows.
template <int kD, int kRows, int kThreads>
__device__ inline void CopyRows(Shared<BF16> to, Global<const BF16> from, int stride, int count) {
  constexpr int kChunks = kD / 8;
  static_assert(kThreads % kChunks == 0 && kRows * kChunks % kThreads == 0);
  const int first = static_cast<int>(threadIdx.x) / kChunks,
            chunk = static_cast<int>(threadIdx.x) % kChunks * 8;
#pragma unroll
  for (int r = first; r < kRows + first; r += kThreads / kChunks) {
    CopyAsync16(to + r * kTileRow<kD> + chunk, from + (r < count ? r * stride + chunk : 0), r < count);
  }
}

// Bit i of bits[strip][h]: whether the lane's row goes with row first + i of the step. Returns whether the
// warp has one.
template <int kChunk, int kStrips>
__device__ inline bool GetMask(const BackwardWork& work, int mask, int first, uint32_t (&bits)[kStrips][2]) {
  static_assert(kChunk <= 32);
  const int warp = static_cast<int>(threadIdx.x) / 32, g = static_cast<int>(threadIdx.x) % 32 / 4;
  uint32_t any = 0;
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t at = int64_t{mask} * kBackBlock + (warp * kStrips + s) * 16 + g + 8 * h;
      bits[s][h] = static_cast<uint32_t>(View(work.mask)[at] >> first) & (~uint32_t{0} >> (32 - kChunk));
      any |= bits[s][h];
    }
  }
  return __any_sync(kAllLanes, any != 0 ? 1 : 0) != 0;
}
template <int kChunk, int kStrips>
__device__ inline void ZeroUnmasked(const uint32_t (&bits)[kStrips][2], float (&p)[kStrips][kChunk / 8][4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((bits[s][i / 2] >> (n * 8 + 2 * t + i % 2) & 1U) == 0) p[s][n][i] = 0.0F;
      }
    }
  }
}

// A lane's part of a row of gradients: as it is, or times `factor` with the rotation undone.
template <int kD>
__device__ inline void PutRow(const float (&acc)[kD / 8][4], int h, Shared<BF16> out) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) Put2(out, n * 8 + 2 * t, acc[n][2 * h], acc[n][2 * h + 1]);
}
template <int kD>
__device__ inline void PutRotatedBack(const device::AttentionBackwardArgs<BF16>& a, int64_t row,
                                      const float (&acc)[kD / 8][4], int h, float factor, Shared<BF16> out) {
  constexpr int kHalf = kD / 2;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int64_t at = int64_t{View(a.positions)[row]} * kHalf;
#pragma unroll
  for (int n = 0; n < kD / 16; ++n) {
    float cos[2], sin[2], low[2], high[2];
    Get2(View(a.cos), at + n * 8 + 2 * t, cos);
    Get2(View(a.sin), at + n * 8 + 2 * t, sin);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float x = acc[n][2 * h + i] * factor, y = acc[n + kD / 16][2 * h + i] * factor;
      low[i] = x * cos[i] + y * sin[i];
      high[i] = y * cos[i] - x * sin[i];
    }
    Put2(out, n * 8 + 2 * t, low[0], low[1]);
    Put2(out, kHalf + n * 8 + 2 * t, high[0], high[1]);
  }
}
// A warp's rows from shared memory to rows that are `stride` apart.
template <int kD, int kRows>
__device__ inline void StoreRows(Shared<BF16> from, Global<BF16> to, int64_t stride, int count) {
  constexpr int kLanes = kD / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % kLanes * 8;
  __syncwarp();
#pragma unroll
  for (int r = lane / kLanes; r < kRows + lane / kLanes; r += 32 / kLanes) {
    if (r >= count) continue;
    uint32_t words[4];
    GetWords4(from, r * kTileRow<kD> + chunk, words);
    PutWords4(to, r * stride + chunk, words);
  }
}

// Blocks: query heads of the plan's blocks of queries. Leaves what the other kernel needs of a row:
// sums[head, tile] has 64 times lse log2(e), then 64 times out.dout; zeros where there is no row.
template <typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, Tiles::kBlocks)
    QueryGradientKernel(device::AttentionBackwardArgs<BF16> a, BackwardWork work, float* sums) {
  TP_DYNAMIC_SHARED(bytes);
  TP_SHARED(float, of_rows, 2 * kBackBlock);
  constexpr int kD = Tiles::kD, kStrips = Tiles::kStrips, kStep = Tiles::kStep, kChunk = Tiles::kChunk;
  constexpr int kRow = Tiles::kRow, kThreads = Tiles::kThreads;
  const Shared<BF16> queries = Carve<BF16>(bytes, 0, kBackBlock * kRow);
  const Shared<BF16> douts = Carve<BF16>(bytes, Tiles::kWide, kBackBlock * kRow);
  const Shared<BF16> keys = Carve<BF16>(bytes, Tiles::kSteps, 2 * kStep * kRow);
  const Shared<BF16> values = Carve<BF16>(bytes, Tiles::kSteps + 2 * Tiles::kNarrow, 2 * kStep * kRow);
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.heads)),
            kv = head / static_cast<int>(a.heads / a.kv_heads);
  const BackwardBlock block = View(work.queries.block)[blockIdx.x / static_cast<unsigned>(a.heads)];
  const Global<const BackwardStep> steps = View(work.queries.step) + block.step;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32,
            g = lane / 4;
  const int q_stride = static_cast<int>(a.heads) * kD, k_stride = static_cast<int>(a.kv_heads) * kD;
  {
    const int64_t at = (block.first * a.heads + head) * kD;
    CopyRows<kD, kBackBlock, kThreads>(queries, View(a.q) + at, q_stride, block.count);
    CopyRows<kD, kBackBlock, kThreads>(douts, View(a.dout) + at, q_stride, block.count);
  }
  int at_step = 0, next_part = 0;  // parts of kStep rows of the plan's step
  const auto load = [&](int buffer) {
    const BackwardStep next = steps[at_step];
    const int64_t at = ((next.first + next_part * kStep) * a.kv_heads + kv) * kD;
    const int count = next.count - next_part * kStep;
    CopyRows<kD, kStep, kThreads>(keys + buffer * kStep * kRow, View(a.k) + at, k_stride, count);
    CopyRows<kD, kStep, kThreads>(values + buffer * kStep * kRow, View(a.v) + at, k_stride, count);
    CopyAsyncCommit();
  };
  load(0);
  const Shared<BF16> my_queries = queries + warp * kStrips * 16 * kRow,
                     my_douts = douts + warp * kStrips * 16 * kRow;
  // The sums of the warp's rows, for this kernel and the next.
  constexpr int kLanes = kD / 8, kLaneRows = 32 / kLanes, kParts = kStrips * 16 / kLaneRows;
  const int my_first = warp * kStrips * 16, lane_row = lane / kLanes, lane_at = lane % kLanes * 8;
  float out[kParts][8] = {}, log_sum[kParts] = {};
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int m = my_first + i * kLaneRows + lane_row;
    if (m >= block.count) continue;
    const int64_t at = (block.first + m) * a.heads + head;
    Get8(View(a.out), at * kD + lane_at, out[i]);
    log_sum[i] = View(a.lse)[at] * kLog2E;
  }
  CopyAsyncWait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int m = my_first + i * kLaneRows + lane_row;
    float dout[8], sum = 0.0F;
    Get8(my_douts, (m - my_first) * kRow + lane_at, dout);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += out[i][j] * dout[j];
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane % kLanes != 0) continue;
    of_rows[m] = log_sum[i];
    of_rows[kBackBlock + m] = sum;
    if (m / kBackStep * kBackStep >= block.count) continue;  // no tile of the plan
    const Global<float> to =
        View(sums) + (head * work.tiles + block.tile + m / kBackStep) * 2 * kBackStep + m % kBackStep;
    to[0] = log_sum[i];
    to[kBackStep] = sum;
  }
  __syncwarp();
  float lse[kStrips][2], out_dout[kStrips][2];
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = my_first + s * 16 + g + 8 * h;
      lse[s][h] = of_rows[m];
      out_dout[s][h] = of_rows[kBackBlock + m];
    }
  }
  const float scale = 1.0F / sqrtf(static_cast<float>(kD)), scale2 = scale * kLog2E;
  float dq[kStrips][kD / 8][4] = {};
  Strips<kD, kStrips> left, left2;
  if (Tiles::kHeld) {
    LoadStrips<kD, kStrips>(my_queries, left);
    LoadStrips<kD, kStrips>(my_douts, left2);
  }
  const int loads = block.steps * (kBackStep / kStep);
  for (int i = 0; i < loads; ++i) {
    const int mask = steps[at_step].mask, part = next_part, buffer = i % 2;
    CopyAsyncWait<0>();
    __syncthreads();  // this step is there, and the one before was used
    if (i + 1 < loads) {
      if (++next_part == kBackStep / kStep) {
        next_part = 0;
        ++at_step;
      }
      load(buffer ^ 1);
    }
#pragma unroll 1
    for (int c = 0; c < kStep; c += kChunk) {
      uint32_t bits[kStrips][2] = {};
      if (mask >= 0 && !GetMask<kChunk, kStrips>(work, mask, part * kStep + c, bits)) continue;
      const Shared<const BF16> k = keys + (buffer * kStep + c) * kRow,
                               v = values + (buffer * kStep + c) * kRow;
      float p[kStrips][kChunk / 8][4], ds[kStrips][kChunk / 8][4];
      if (!Tiles::kHeld) LoadStrips<kD, kStrips>(my_queries, left);
      MultiplyStrips<kD, kChunk, kStrips>(left, k, p);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
#pragma unroll
        for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) p[s][n][j] = Exp2(p[s][n][j] * scale2 - lse[s][j / 2]);
        }
      }
      if (mask >= 0) ZeroUnmasked<kChunk, kStrips>(bits, p);
      if (!Tiles::kHeld) LoadStrips<kD, kStrips>(my_douts, left2);
      MultiplyStrips<kD, kChunk, kStrips>(left2, v, ds);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
#pragma unroll
        for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) ds[s][n][j] = p[s][n][j] * (ds[s][n][j] - out_dout[s][j / 2]);
        }
      }
      MultiplyWeightStrips<kD, kChunk, kStrips>(ds, k, dq);
    }
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = s * 16 + g + 8 * h;
      if (my_first + m >= block.count) continue;
      PutRotatedBack<kD>(a, block.first + my_first + m, dq[s], h, scale, my_queries + m * kRow);
    }
  }
  const int64_t width = (a.heads + 2 * a.kv_heads) * kD;
  StoreRows<kD, kStrips * 16>(my_queries, View(a.dqkv) + (block.first + my_first) * width + head * kD, width,
                              block.count - my_first);
}

// Blocks: key-value heads of the plan's blocks of keys. Products are transposed: their rows are keys, their
// columns the queries of a step, of one head after the other.
template <typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, Tiles::kBlocks)
    KeyGradientKernel(device::AttentionBackwardArgs<BF16> a, BackwardWork work, const float* sums) {
  TP_DYNAMIC_SHARED(bytes);
  constexpr int kD = Tiles::kD, kStrips = Tiles::kStrips, kStep = Tiles::kStep, kChunk = Tiles::kChunk;
  constexpr int kRow = Tiles::kRow, kThreads = Tiles::kThreads;
  const Shared<BF16> keys = Carve<BF16>(bytes, 0, kBackBlock * kRow);
  const Shared<BF16> values = Carve<BF16>(bytes, Tiles::kWide, kBackBlock * kRow);
  const Shared<BF16> queries = Carve<BF16>(bytes, Tiles::kSteps, 2 * kStep * kRow);
  const Shared<BF16> douts = Carve<BF16>(bytes, Tiles::kSteps + 2 * Tiles::kNarrow, 2 * kStep * kRow);
  const Shared<float> of_rows = Carve<float>(bytes, Tiles::kSums, 4 * kStep);
  const int kv = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.kv_heads)),
            group = static_cast<int>(a.heads / a.kv_heads);
  const BackwardBlock block = View(work.keys.block)[blockIdx.x / static_cast<unsigned>(a.kv_heads)];
  const Global<const BackwardStep> steps = View(work.keys.step) + block.step;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  const int q_stride = static_cast<int>(a.heads) * kD, k_stride = static_cast<int>(a.kv_heads) * kD;
  {
    const int64_t at = (block.first * a.kv_heads + kv) * kD;
    CopyRows<kD, kBackBlock, kThreads>(keys, View(a.k) + at, k_stride, block.count);
    CopyRows<kD, kBackBlock, kThreads>(values, View(a.v) + at, k_stride, block.count);
    CopyAsyncCommit();
  }
  int at_step = 0, next_part = 0, next_head = kv * group;  // parts of kStep rows of the plan's step
  const auto load = [&](int buffer) {
    const BackwardStep next = steps[at_step];
    const int64_t at = ((next.first + next_part * kStep) * a.heads + next_head) * kD;
    const int count = next.count - next_part * kStep;
    CopyRows<kD, kStep, kThreads>(queries + buffer * kStep * kRow, View(a.q) + at, q_stride, count);
    CopyRows<kD, kStep, kThreads>(douts + buffer * kStep * kRow, View(a.dout) + at, q_stride, count);
    if (tid < kStep / 2) {
      const int which = tid / (kStep / 4), chunk = tid % (kStep / 4) * 4;
      CopyAsync16(of_rows + (buffer * 2 + which) * kStep + chunk,
                  View(sums) + ((next_head * work.tiles + next.tile) * 2 + which) * kBackStep +
                      next_part * kStep + chunk,
                  true);
    }
    CopyAsyncCommit();
  };
  const int loads = block.steps * (kBackStep / kStep) * group;
  if (loads > 0) load(0);
  const float scale = 1.0F / sqrtf(static_cast<float>(kD)), scale2 = scale * kLog2E;
  const Shared<BF16> my_keys = keys + warp * kStrips * 16 * kRow,
                     my_values = values + warp * kStrips * 16 * kRow;
  Strips<kD, kStrips> left, left2;
  float dk[kStrips][kD / 8][4] = {}, dv[kStrips][kD / 8][4] = {};
  for (int i = 0; i < loads; ++i) {
    const int mask = steps[at_step].mask, part = next_part, buffer = i % 2;
    CopyAsyncWait<0>();
    __syncthreads();  // this step is there, and the one before was used
    if (Tiles::kHeld && i == 0) {
      LoadStrips<kD, kStrips>(my_keys, left);
      LoadStrips<kD, kStrips>(my_values, left2);
    }
    if (i + 1 < loads) {
      if (++next_part == kBackStep / kStep) {
        next_part = 0;
        if (++next_head == (kv + 1) * group) {
          next_head = kv * group;
          ++at_step;
        }
      }
      load(buffer ^ 1);
    }
#pragma unroll 1
    for (int c = 0; c < kStep; c += kChunk) {
      uint32_t bits[kStrips][2] = {};
      if (mask >= 0 && !GetMask<kChunk, kStrips>(work, mask, part * kStep + c, bits)) continue;
      const Shared<const BF16> q = queries + (buffer * kStep + c) * kRow,
                               o = douts + (buffer * kStep + c) * kRow;
      const Shared<const float> lse = of_rows + buffer * 2 * kStep + c + 2 * t, out_dout = lse + kStep;
      float p[kStrips][kChunk / 8][4], ds[kStrips][kChunk / 8][4];
      if (!Tiles::kHeld) LoadStrips<kD, kStrips>(my_keys, left);
      MultiplyStrips<kD, kChunk, kStrips>(left, q, p);
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
        float of[2];
        Get2(lse, n * 8, of);
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
#pragma unroll
          for (int j = 0; j < 4; ++j) p[s][n][j] = Exp2(p[s][n][j] * scale2 - of[j % 2]);
        }
      }
      if (mask >= 0) ZeroUnmasked<kChunk, kStrips>(bits, p);
      if (!Tiles::kHeld) LoadStrips<kD, kStrips>(my_values, left2);
      MultiplyStrips<kD, kChunk, kStrips>(left2, o, ds);
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
        float of[2];
        Get2(out_dout, n * 8, of);
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
#pragma unroll
          for (int j = 0; j < 4; ++j) ds[s][n][j] = p[s][n][j] * (ds[s][n][j] - of[j % 2]);
        }
      }
      MultiplyWeightStrips<kD, kChunk, kStrips>(p, o, dv);
      MultiplyWeightStrips<kD, kChunk, kStrips>(ds, q, dk);
    }
  }
  CopyAsyncWait<0>();  // of keys that no query attends to
  __syncthreads();
  const int my_first = warp * kStrips * 16;
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = s * 16 + g + 8 * h;
      if (my_first + m >= block.count) continue;
      PutRotatedBack<kD>(a, block.first + my_first + m, dk[s], h, scale, my_keys + m * kRow);
      PutRow<kD>(dv[s], h, my_values + m * kRow);
    }
  }
  const int64_t width = (a.heads + 2 * a.kv_heads) * kD;
  const Global<BF16> out = View(a.dqkv) + (block.first + my_first) * width + (a.heads + kv) * kD;
  StoreRows<kD, kStrips * 16>(my_keys, out, width, block.count - my_first);
  StoreRows<kD, kStrips * 16>(my_values, out + a.kv_heads * kD, width, block.count - my_first);
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
        Attends(View(f.keys.runs), View(f.keys.first_run)[row], View(f.keys.lengths)[row], slot)) {
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

template <typename QueryTiles, typename KeyTiles>
int BackwardByTiles(const device::AttentionBackwardArgs<BF16>& a, const BackwardWork& work, float* sums,
                    Stream stream) {
  if (const int code = Launch({.name = "attention_backward_queries",
                               .x = work.queries.blocks * a.heads,
                               .threads = QueryTiles::kThreads,
                               .shared_bytes = QueryTiles::kBytes},
                              stream, QueryGradientKernel<QueryTiles>, a, work, sums);
      code != 0) {
    return code;
  }
  return Launch({.name = "attention_backward_keys",
                 .x = work.keys.blocks * a.kv_heads,
                 .threads = KeyTiles::kThreads,
                 .shared_bytes = KeyTiles::kBytes},
                stream, KeyGradientKernel<KeyTiles>, a, work, sums);
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
  const auto& work = static_cast<const AttentionOnDevice&>(*a.work);
  if constexpr (sizeof(T) == 2) {
    if (work.backward.tiles > 0 && HasTiles(a.head_size) && On16Bytes(a.q) && On16Bytes(a.k) &&
        On16Bytes(a.v) && On16Bytes(a.out) && On16Bytes(a.dout) && On16Bytes(a.dqkv)) {
      auto* sums = static_cast<float*>(launcher.Scratch(work.backward.tiles * a.heads * 2 * kBackStep *
                                                        static_cast<int64_t>(sizeof(float))));
      // Of some dozen divisions the fastest on an H100 for sequences of 1024 rows; on no other GPU were they
      // tried.
      using Queries64 = BackwardTiles<64, 1, 64, 16, 2, true>;
      using Keys64 = BackwardTiles<64, 2, 64, 32, 2, false>;
      using Queries128 = BackwardTiles<128, 2, 32, 32, 2, false>;
      using Keys128 = BackwardTiles<128, 1, 64, 16, 1, true>;
      using SmallQueries128 = BackwardTiles<128, 2, 16, 16, 1, false>;  // the same bits
      using SmallKeys128 = BackwardTiles<128, 1, 16, 16, 1, false>;
      static_assert(Queries64::kBytes <= kSmallSharedMax && Keys64::kBytes <= kSmallSharedMax &&
                    SmallQueries128::kBytes <= kSmallSharedMax && SmallKeys128::kBytes <= kSmallSharedMax);
      if (a.head_size == 64)
        return BackwardByTiles<Queries64, Keys64>(a, work.backward, sums, launcher.stream());
      return Fits(Keys128::kBytes) && Fits(Queries128::kBytes)
                 ? BackwardByTiles<Queries128, Keys128>(a, work.backward, sums, launcher.stream())
                 : BackwardByTiles<SmallQueries128, SmallKeys128>(a, work.backward, sums, launcher.stream());
    }
  }
  auto* delta =
      static_cast<float*>(launcher.Scratch(a.keys.rows * a.heads * static_cast<int64_t>(sizeof(float))));
  for (const auto& [begin, end] : work.ranges) {
    if (begin == end) continue;
    const int code = BackwardOfRange(a, begin, end, delta + begin * a.heads, launcher.stream());
    if (code != 0) return code;
  }
  return 0;
}
TP_INSTANTIATE(AttentionBackward)

}  // namespace tidepool::cuda
