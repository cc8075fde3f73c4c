// Attention of many rows of one sequence in a pass over its keys: prefill, and the forward of training.
//
// A block takes 64 query rows (rows of the batch times the heads of a key-value head) and walks the keys of
// their sequence 64 at a time, with a running maximum and sum of exponentials (FlashAttention-2,
// arXiv:2307.08691). The next keys are under way while this tile's values are used, and the other way round.
// A row's arithmetic depends on its own length and keys alone. Its bits differ from decode's, which merges
// partitions.
#include "core/cuda/kernels/attention_rows.h"

namespace tidepool::cuda {
namespace {

constexpr int kTileQueries = 64, kTileKeys = 64;

template <int kD>
struct PrefillLayout {  // dynamic shared memory, bytes
  static constexpr int kTile = 64 * kTileRow<kD> * 2;
  static constexpr int kKeys = kTile, kValues = 2 * kTile, kBytes = 3 * kTile;
  static_assert(kBytes <= kSharedMax);
};

template <int kD>
__global__ void __launch_bounds__(kAttendThreads)
    PrefillTilesKernel(device::AttentionArgs<BF16> f, PrefillWork work) {
  TP_DYNAMIC_SHARED(bytes);
  TP_SHARED(int32_t, slots, 2 * kTileKeys);
  using Layout = PrefillLayout<kD>;
  constexpr int kRow = kTileRow<kD>, kChunks = kD / 8;
  const Shared<BF16> queries = Carve<BF16>(bytes, 0, kTileQueries * kRow);
  const Shared<BF16> keys = Carve<BF16>(bytes, Layout::kKeys, kTileKeys * kRow);
  const Shared<BF16> values = Carve<BF16>(bytes, Layout::kValues, kTileKeys * kRow);
  const AttentionItem item = View(work.item)[blockIdx.x];
  const int64_t kv = blockIdx.y, group = f.heads / f.kv_heads, m_count = item.count * group;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const Global<const int32_t> lengths = View(f.keys.lengths) + item.first;
  const Global<const device::KvRun> runs = View(f.keys.runs);
  int key_count = 0;
  for (int r = 0; r < item.count; ++r) {
    const int length = lengths[r];
    key_count = length > key_count ? length : key_count;
  }
  const float scale = 1.0F / sqrtf(static_cast<float>(kD));

  for (int i = tid; i < kTileQueries * kChunks; i += kAttendThreads) {
    const int64_t m = i / kChunks, row = item.first + m / group, head = kv * group + m % group;
    CopyAsync16(queries + m * kRow + i % kChunks * 8,
                View(f.q) + (m < m_count ? (row * f.heads + head) * kD + i % kChunks * 8 : 0), m < m_count);
  }
  CopyAsyncCommit();
  SlotWalk walk{item.run, item.run_position};
  const auto find_slots = [&](int tile) {
    const int key = tile * kTileKeys + tid;
    if (tid < kTileKeys && key < key_count) {
      slots[tile % 2 * kTileKeys + tid] = static_cast<int32_t>(walk.SlotOf(runs, key));
    }
  };
  const auto load_tile = [&](int tile, const BF16* from, Shared<BF16> to) {
    for (int i = tid; i < kTileKeys * kChunks; i += kAttendThreads) {
      const int row = i / kChunks, chunk = i % kChunks * 8;
      const bool there = tile * kTileKeys + row < key_count;
      const int64_t slot = there ? slots[tile % 2 * kTileKeys + row] : 0;
      CopyAsync16(to + row * kRow + chunk, View(from) + (slot * f.kv_heads + kv) * kD + chunk, there);
    }
    CopyAsyncCommit();
  };
  find_slots(0);
  __syncthreads();
  load_tile(0, f.k, keys);
  load_tile(0, f.v, values);

  float acc[kD / 8][4] = {};
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  int limit[2];  // keys of the lane's two rows
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t m = warp * 16 + g + 8 * h;
    limit[h] = m < m_count ? lengths[m / group] : 0;
  }
  const int tiles = CeilDiv(key_count, kTileKeys);
  for (int tile = 0; tile < tiles; ++tile) {
    find_slots(tile + 1);
    CopyAsyncWait<1>();
    __syncthreads();  // keys are there
    float p[kTileKeys / 8][4];
    MultiplyRows<kD, kTileKeys>(queries + warp * 16 * kRow, keys, p);
    __syncthreads();                 // and used
    load_tile(tile + 1, f.k, keys);  // past the end: zeros
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          const int key = tile * kTileKeys + n * 8 + 2 * t + i % 2;
          p[n][i] = key < limit[h] ? p[n][i] * scale : -INFINITY;
          top = fmaxf(top, p[n][i]);
        }
      }
      top = fmaxf(max[h], QuadMax(top));
      factor[h] = ExpBelow(max[h], top);
      max[h] = top;
      sum[h] *= factor[h];
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          p[n][i] = ExpBelow(p[n][i], top);
          sum[h] += p[n][i];
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] *= factor[i / 2];
    }
    CopyAsyncWait<1>();
    __syncthreads();  // values are there
    MultiplyWeights<kD, kTileKeys>(p, values, acc);
    __syncthreads();  // and used
    load_tile(tile + 1, f.v, values);
  }
  CopyAsyncWait<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t m = warp * 16 + g + 8 * h, row = item.first + m / group, head = kv * group + m % group;
    const float total = QuadSum(sum[h]);  // all lanes take part, whether or not their row is there
    if (m >= m_count) continue;
    const Global<BF16> out = View(f.out) + (row * f.heads + head) * kD;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      Put2(out, n * 8 + 2 * t, acc[n][2 * h] / total, acc[n][2 * h + 1] / total);
    }
    if (f.lse != nullptr && t == 0) View(f.lse)[row * f.heads + head] = max[h] + logf(total);
  }
}

// A block a row of the item (blockIdx.z): the arithmetic of decode's rows, so the same bits as theirs.
template <typename T>
__global__ void __launch_bounds__(kAttendThreads, 4)
    PrefillRowsKernel(device::AttentionArgs<T> f, PrefillWork work) {
  TP_ATTEND_SHARED(shared);
  const AttentionItem item = View(work.item)[blockIdx.x];
  if (blockIdx.z >= static_cast<unsigned>(item.count)) return;
  const int64_t row = item.first + blockIdx.z, kv = blockIdx.y, group = f.heads / f.kv_heads;
  const int64_t length = View(f.keys.lengths)[row];
  for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
    SlotWalk walk{item.run, item.run_position};
    PartResult all;
    for (int64_t begin = 0; begin < length; begin += kPartitionKeys) {
      for (int j = static_cast<int>(threadIdx.x); j < kPartitionKeys && begin + j < length;
           j += kAttendThreads) {
        shared.slots[j] = static_cast<int32_t>(walk.SlotOf(View(f.keys.runs), begin + j));
      }
      __syncthreads();
      PartResult part;
      AttendPart(f, row, head, static_cast<int>(begin / kPartitionKeys), shared, part);
      if (begin == 0) {
        all = part;
      } else {
        MergeParts(all, part);
      }
    }
#pragma unroll
    for (int i = 0; i < kAttendDims; ++i) {
      const int64_t d = threadIdx.x + kAttendThreads * i;
      if (d < f.head_size) Put(View(f.out) + (row * f.heads + head) * f.head_size, d, all.out[i] / all.sum);
    }
    if (f.lse != nullptr && threadIdx.x == 0) View(f.lse)[row * f.heads + head] = all.max + logf(all.sum);
  }
}

template <int kD>
int PrefillTiles(const device::AttentionArgs<BF16>& f, const PrefillWork& work, Stream stream) {
  return Launch({.name = "prefill_attention",
                 .x = work.items,
                 .y = f.kv_heads,
                 .threads = kAttendThreads,
                 .shared_bytes = PrefillLayout<kD>::kBytes},
                stream, PrefillTilesKernel<kD>, f, work);
}

}  // namespace

template <typename T>
int PrefillAttention(const device::AttentionArgs<T>& f, const PrefillWork& work, Launcher& launcher) {
  if (work.items == 0) return 0;
  if constexpr (sizeof(T) == 2) {
    if (f.heads / f.kv_heads <= kTileQueries && On16Bytes(f.q) && On16Bytes(f.k) && On16Bytes(f.v)) {
      if (f.head_size == 64) return PrefillTiles<64>(f, work, launcher.stream());
      if (f.head_size == 128) return PrefillTiles<128>(f, work, launcher.stream());
    }
  }
  return Launch({.name = "prefill_attention_rows",
                 .x = work.items,
                 .y = f.kv_heads,
                 .z = PrefillRows(f.heads, f.kv_heads),
                 .threads = kAttendThreads},
                launcher.stream(), PrefillRowsKernel<T>, f, work);
}
template int PrefillAttention<float>(const device::AttentionArgs<float>&, const PrefillWork&, Launcher&);
template int PrefillAttention<BF16>(const device::AttentionArgs<BF16>&, const PrefillWork&, Launcher&);

}  // namespace tidepool::cuda
