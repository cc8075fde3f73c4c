// Attention of rows to long caches: by partitions of 256 keys, so that one row fills the device, merged
// afterwards from left to right by their log of summed exponentials.
//
// Partitions are cut at absolute positions, so what a row gets is a function of the row. Rows whose keys of a
// partition lie in the same slots, samples of one prompt, share one pass over them (attention_plan.h): all
// their heads are rows of the same tiles. In bfloat16 with heads of 64 or 128 the products run on tensor
// cores: a warp takes 64 keys.
#include "core/cuda/kernels/attention_rows.h"

namespace tidepool::cuda {
namespace {

constexpr int kWarpKeys = kPartitionKeys / 4;  // 4 warps

// A row's result of a partition in scratch: head_size sums, the maximum, the sum of exponentials.
__device__ inline Global<float> PartialOf(float* partial, int64_t place, int64_t heads, int64_t head,
                                          int64_t size) {
  return View(partial) + (place * heads + head) * (size + 2);
}

template <int kD>
struct DecodeLayout {  // dynamic shared memory, bytes
  static constexpr int kTile = kPartitionKeys * kTileRow<kD> * 2;
  static constexpr int kValues = kTile, kQueries = 2 * kTile, kOut = kQueries + 16 * kTileRow<kD> * 2;
  static constexpr int kBytes = kOut + 16 * kD * 4;
  static_assert(kBytes <= kSharedMax);
};

template <int kD>
__global__ void __launch_bounds__(kAttendThreads)
    DecodeTilesKernel(device::AttentionArgs<BF16> f, DecodeWork work, float* partial) {
  TP_DYNAMIC_SHARED(bytes);
  using Layout = DecodeLayout<kD>;
  constexpr int kRow = kTileRow<kD>, kChunks = kD / 8;
  const Shared<BF16> keys = Carve<BF16>(bytes, 0, kPartitionKeys * kRow);
  const Shared<BF16> values = Carve<BF16>(bytes, Layout::kValues, kPartitionKeys * kRow);
  const Shared<BF16> queries = Carve<BF16>(bytes, Layout::kQueries, 16 * kRow);
  const Shared<float> out = Carve<float>(bytes, Layout::kOut, 16 * kD);
  TP_SHARED(float, warp_max, 4 * 16);
  TP_SHARED(float, warp_sum, 4 * 16);
  const AttentionItem item = View(work.item)[blockIdx.x];
  if (item.count == 0) return;  // room of a graph
  const int64_t kv = blockIdx.y, group = f.heads / f.kv_heads, m_count = item.count * group;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const int64_t begin = int64_t{item.partition} * kPartitionKeys;
  const Global<const int32_t> order = View(work.order) + item.first, lengths = View(f.keys.lengths);
  // Rows share a partition that is full for each of them; a row alone may end inside it.
  const int64_t left = lengths[int32_t{order[0]}] - begin;
  const int key_count = static_cast<int>(left < kPartitionKeys ? left : kPartitionKeys);
  const float scale = 1.0F / sqrtf(static_cast<float>(kD));

  const auto load_queries = [&](int64_t m0) {
    for (int i = tid; i < 16 * kChunks; i += kAttendThreads) {
      const int64_t m = m0 + i / kChunks;
      const bool there = m < m_count;
      const int64_t row = there ? order[m / group] : 0, head = kv * group + m % group;
      CopyAsync16(queries + i / kChunks * kRow + i % kChunks * 8,
                  View(f.q) + (there ? (row * f.heads + head) * kD + i % kChunks * 8 : 0), there);
    }
    CopyAsyncCommit();
  };
  load_queries(0);
  // Each warp brings its own 64 keys, then their values; a lane looks up the slots of two.
  SlotWalk walk{item.run, item.run_position};
  const Global<const device::KvRun> runs = View(f.keys.runs);
  int64_t slots[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int key = warp * kWarpKeys + i * 32 + lane;
    slots[i] = key < key_count ? walk.SlotOf(runs, begin + key) : 0;
  }
  const auto load_tile = [&](const BF16* from, Shared<BF16> to) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < 32; r += 32 / kChunks) {
        const int row = r + lane / kChunks, key = warp * kWarpKeys + i * 32 + row, chunk = lane % kChunks * 8;
        const int64_t slot = __shfl_sync(kAllLanes, slots[i], row);
        CopyAsync16(to + key * kRow + chunk, View(from) + (slot * f.kv_heads + kv) * kD + chunk,
                    key < key_count);
      }
    }
    CopyAsyncCommit();
  };
  load_tile(f.k, keys);
  load_tile(f.v, values);

  for (int64_t m0 = 0; m0 < m_count; m0 += 16) {
    if (m0 == 0) {
      CopyAsyncWait<1>();
    } else {
      CopyAsyncWait<0>();
    }
    __syncthreads();
    float p[kWarpKeys / 8][4];
    MultiplyRows<kD, kWarpKeys>(queries, keys + warp * kWarpKeys * kRow, p);
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll
    for (int n = 0; n < kWarpKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = warp * kWarpKeys + n * 8 + 2 * t + i % 2;
        p[n][i] = key < key_count ? p[n][i] * scale : -INFINITY;
        max[i / 2] = fmaxf(max[i / 2], p[n][i]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) max[h] = QuadMax(max[h]);
#pragma unroll
    for (int n = 0; n < kWarpKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[n][i] = ExpBelow(p[n][i], max[i / 2]);
        sum[i / 2] += p[n][i];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = QuadSum(sum[h]);
      if (t == 0) {
        warp_max[warp * 16 + g + 8 * h] = max[h];
        warp_sum[warp * 16 + g + 8 * h] = sum[h];
      }
    }
    if (m0 == 0) {
      CopyAsyncWait<0>();
      __syncwarp();  // each warp reads its own values alone
    }
    float acc[kD / 8][4] = {};
    MultiplyWeights<kD, kWarpKeys>(p, values + warp * kWarpKeys * kRow, acc);
    // The warps' sums, from the first to the last, at the maximum of all.
    __syncthreads();
    float all[2] = {-INFINITY, -INFINITY}, factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      for (int w = 0; w < 4; ++w) all[h] = fmaxf(all[h], warp_max[w * 16 + g + 8 * h]);
      factor[h] = ExpBelow(max[h], all[h]);
    }
    for (int w = 0; w < 4; ++w) {
      if (w == warp) {
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = (g + i / 2 * 8) * kD + n * 8 + 2 * t + i % 2;
            const float mine = acc[n][i] * factor[i / 2];
            out[at] = w == 0 ? mine : float{out[at]} + mine;
          }
        }
      }
      __syncthreads();
    }
    for (int i = tid; i < 16 * kD; i += kAttendThreads) {
      const int64_t m = m0 + i / kD;
      if (m >= m_count) break;
      const int64_t row = order[m / group], head = kv * group + m % group;
      const Global<float> to =
          PartialOf(partial, View(work.first_partial)[row] + item.partition, f.heads, head, kD);
      to[i % kD] = out[i];
      if (i % kD != 0) continue;
      float top = -INFINITY, total = 0.0F;
      for (int w = 0; w < 4; ++w) top = fmaxf(top, warp_max[w * 16 + i / kD]);
      for (int w = 0; w < 4; ++w) {
        total += ExpBelow(warp_max[w * 16 + i / kD], top) * warp_sum[w * 16 + i / kD];
      }
      to[kD] = top;
      to[kD + 1] = total;
    }
    // The barriers above came after the last read of the queries; the next one comes before sums are written.
    if (m0 + 16 < m_count) load_queries(m0 + 16);
  }
}

template <typename T>
__global__ void __launch_bounds__(kAttendThreads)
    DecodeRowsKernel(device::AttentionArgs<T> f, DecodeWork work, float* partial) {
  TP_ATTEND_SHARED(shared);
  const AttentionItem item = View(work.item)[blockIdx.x];
  if (item.count == 0) return;  // room of a graph
  const int64_t kv = blockIdx.y, group = f.heads / f.kv_heads;
  const Global<const int32_t> order = View(work.order) + item.first;
  const int64_t begin = int64_t{item.partition} * kPartitionKeys,
                left = View(f.keys.lengths)[int32_t{order[0]}] - begin;
  SlotWalk walk{item.run, item.run_position};
  for (int j = static_cast<int>(threadIdx.x); j < kPartitionKeys && j < left; j += kAttendThreads) {
    shared.slots[j] = static_cast<int32_t>(walk.SlotOf(View(f.keys.runs), begin + j));
  }
  __syncthreads();
  for (int64_t m = 0; m < item.count * group; ++m) {
    const int64_t row = order[m / group], head = kv * group + m % group;
    PartResult part;
    AttendPart(f, row, head, item.partition, shared, part);
    const Global<float> to =
        PartialOf(partial, View(work.first_partial)[row] + item.partition, f.heads, head, f.head_size);
#pragma unroll
    for (int i = 0; i < kAttendDims; ++i) {
      const int64_t d = threadIdx.x + kAttendThreads * i;
      if (d < f.head_size) to[d] = part.out[i];
    }
    if (threadIdx.x == 0) {
      to[f.head_size] = part.max;
      to[f.head_size + 1] = part.sum;
    }
  }
}

// A block a head of a row.
template <typename T>
__global__ void __launch_bounds__(kAttendThreads)
    MergePartialsKernel(device::AttentionArgs<T> f, DecodeWork work, float* partial) {
  const int64_t row = View(work.row)[blockIdx.x], head = blockIdx.y, size = f.head_size;
  const int64_t first = View(work.first_partial)[row];
  const int64_t count = CeilDiv<int64_t>(View(f.keys.lengths)[row], kPartitionKeys);
  PartResult all;
  for (int64_t p = 0; p < count; ++p) {
    const Global<float> from = PartialOf(partial, first + p, f.heads, head, size);
    PartResult part;
    part.max = from[size];
    part.sum = from[size + 1];
#pragma unroll
    for (int i = 0; i < kAttendDims; ++i) {
      const int64_t d = threadIdx.x + kAttendThreads * i;
      part.out[i] = d < size ? float{from[d]} : 0.0F;
    }
    if (p == 0) {
      all = part;
    } else {
      MergeParts(all, part);
    }
  }
#pragma unroll
  for (int i = 0; i < kAttendDims; ++i) {
    const int64_t d = threadIdx.x + kAttendThreads * i;
    if (d < size) Put(View(f.out) + (row * f.heads + head) * size, d, all.out[i] / all.sum);
  }
  if (f.lse != nullptr && threadIdx.x == 0) View(f.lse)[row * f.heads + head] = all.max + logf(all.sum);
}

template <int kD>
int DecodeTiles(const device::AttentionArgs<BF16>& f, const DecodeWork& w, float* partial, Stream stream) {
  return Launch({.name = "decode_attention",
                 .x = w.items,
                 .y = f.kv_heads,
                 .threads = kAttendThreads,
                 .shared_bytes = DecodeLayout<kD>::kBytes},
                stream, DecodeTilesKernel<kD>, f, w, partial);
}
template <typename T>
int DecodeParts(const device::AttentionArgs<T>& f, const DecodeWork& w, float* partial, Stream stream) {
  if constexpr (sizeof(T) == 2) {
    if (On16Bytes(f.q) && On16Bytes(f.k) && On16Bytes(f.v)) {
      if (f.head_size == 64) return DecodeTiles<64>(f, w, partial, stream);
      if (f.head_size == 128) return DecodeTiles<128>(f, w, partial, stream);
    }
  }
  return Launch({.name = "decode_attention_rows", .x = w.items, .y = f.kv_heads, .threads = kAttendThreads},
                stream, DecodeRowsKernel<T>, f, w, partial);
}

}  // namespace

template <typename T>
int DecodeAttention(const device::AttentionArgs<T>& f, const DecodeWork& w, Launcher& launcher) {
  if (w.rows == 0) return 0;
  auto* partial = static_cast<float*>(
      launcher.Scratch(w.partials * f.heads * (f.head_size + 2) * static_cast<int64_t>(sizeof(float))));
  if (const int code = DecodeParts(f, w, partial, launcher.stream()); code != 0) return code;
  return Launch({.name = "merge_partials", .x = w.rows, .y = f.heads, .threads = kAttendThreads},
                launcher.stream(), MergePartialsKernel<T>, f, w, partial);
}
template int DecodeAttention<float>(const device::AttentionArgs<float>&, const DecodeWork&, Launcher&);
template int DecodeAttention<BF16>(const device::AttentionArgs<BF16>&, const DecodeWork&, Launcher&);

template <typename T>
int Attention(const device::AttentionArgs<T>& a, Launcher& launcher) {
  if (a.head_size > kAttendHeadMax || a.kv_heads < 1 || a.heads % a.kv_heads != 0) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  const auto& work = static_cast<const AttentionOnDevice&>(*a.work);
  if (const int code = DecodeAttention(a, work.decode, launcher); code != 0) return code;
  return PrefillAttention(a, work.prefill, launcher);
}
TP_INSTANTIATE(Attention)

}  // namespace tidepool::cuda
