// Attention of many rows of one sequence in a pass over its keys: prefill, and the forward of training.
//
// A block takes 128 query rows (rows of the batch times the heads of a key-value head) and walks the keys of
// their sequence 64 at a time, with a running maximum and sum of exponentials (FlashAttention-2,
// arXiv:2307.08691). The next keys and values are under way meanwhile.
// A row's arithmetic depends on its own length and keys alone. Its bits differ from decode's, which merges
// partitions.
#include "core/cuda/kernels/attention_rows.h"

namespace tidepool::cuda {
namespace {

template <int kD_, int kStrips_, int kTileKeys_, int kChunk_, int kBlocks_, bool kLazy_>
struct PrefillTiles {
  static constexpr int kD = kD_, kStrips = kStrips_;  // a warp has kStrips times 16 query rows
  static constexpr int kTileKeys = kTileKeys_;        // keys that are loaded at a time
  static constexpr int kChunk = kChunk_;              // and multiplied at a time
  static constexpr int kBlocks = kBlocks_;            // of a multiprocessor
  static constexpr bool kLazy = kLazy_;               // whether sums are left alone where no maximum rises
  static constexpr int kRow = kTileRow<kD>, kThreads = kPrefillQueries / (16 * kStrips) * 32;
  // Dynamic shared memory, bytes: queries, keys twice, values twice.
  static constexpr int kQueries = kPrefillQueries * kRow * 2, kTile = kTileKeys * kRow * 2;
  static constexpr int kKeys = kQueries, kValues = kKeys + 2 * kTile, kBytes = kValues + 2 * kTile;
  static_assert(kBytes <= kSharedMax && kTileKeys % kChunk == 0);
};

template <typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, Tiles::kBlocks)
    PrefillTilesKernel(device::AttentionArgs<BF16> f, PrefillWork work) {
  TP_DYNAMIC_SHARED(bytes);
  constexpr int kTileKeys = Tiles::kTileKeys;
  TP_SHARED(int32_t, slots, 2 * kTileKeys);
  TP_SHARED(int32_t, limits, kPrefillQueries);  // keys of the rows
  constexpr int kD = Tiles::kD, kStrips = Tiles::kStrips, kRow = Tiles::kRow, kThreads = Tiles::kThreads;
  constexpr int kChunk = Tiles::kChunk, kParts = kD / 8;  // keys; of 16 bytes of a row
  const Shared<BF16> queries = Carve<BF16>(bytes, 0, kPrefillQueries * kRow);
  const Shared<BF16> keys = Carve<BF16>(bytes, Tiles::kKeys, 2 * kTileKeys * kRow);
  const Shared<BF16> values = Carve<BF16>(bytes, Tiles::kValues, 2 * kTileKeys * kRow);
  const AttentionItem item = View(work.item)[blockIdx.x];
  const int group = static_cast<int>(f.heads / f.kv_heads), m_count = item.count * group;
  const int kv = static_cast<int>(blockIdx.y);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const Global<const int32_t> lengths = View(f.keys.lengths) + item.first;
  const Global<const device::KvRun> runs = View(f.keys.runs);
  int key_count = 0;
  for (int r = lane; r < item.count; r += 32) {
    const int length = lengths[r];
    key_count = length > key_count ? length : key_count;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, key_count, step);
    key_count = other > key_count ? other : key_count;
  }

  const int part = tid % kParts * 8;
#pragma unroll
  for (int first = 0; first < kPrefillQueries; first += kThreads / kParts) {
    const int m = first + tid / kParts;
    const int64_t row = item.first + m / group, head = kv * group + m % group;
    CopyAsync16(queries + m * kRow + part, View(f.q) + (m < m_count ? (row * f.heads + head) * kD + part : 0),
                m < m_count);
  }
  SlotWalk walk{item.run, item.run_position};
  const auto find_slots = [&](int tile) {
    const int key = tile * kTileKeys + tid;
    if (tid < kTileKeys && key < key_count) {
      slots[tile % 2 * kTileKeys + tid] = static_cast<int32_t>(walk.SlotOf(runs, key));
    }
  };
  const auto load = [&](int tile) {
#pragma unroll
    for (int first = 0; first < kTileKeys; first += kThreads / kParts) {
      const int r = first + tid / kParts, to = (tile % 2 * kTileKeys + r) * kRow + part;
      const bool there = tile * kTileKeys + r < key_count;
      const int64_t slot = there ? slots[tile % 2 * kTileKeys + r] : 0,
                    at = (slot * f.kv_heads + kv) * kD + part;
      CopyAsync16(keys + to, View(f.k) + at, there);
      CopyAsync16(values + to, View(f.v) + at, there);
    }
    CopyAsyncCommit();
  };
  find_slots(0);
  for (int m = tid; m < kPrefillQueries; m += kThreads) limits[m] = m < m_count ? lengths[m / group] : 0;
  __syncthreads();
  load(0);
  find_slots(1);

  const Shared<const BF16> my_queries = queries + warp * kStrips * 16 * kRow;
  Strips<kD, kStrips> left;
  float acc[kStrips][kD / 8][4] = {};
  float max[kStrips][2], sum[kStrips][2];
  int least = key_count, most = 0;  // of the warp's rows
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = (warp * kStrips + s) * 16 + g + 8 * h;
      max[s][h] = -INFINITY, sum[s][h] = 0.0F;
      const int limit = limits[m];
      least = limit < least ? limit : least;
      most = limit > most ? limit : most;
    }
  }
#pragma unroll
  for (int step = 16; step > 2; step /= 2) {
    const int low = __shfl_xor_sync(kAllLanes, least, step), high = __shfl_xor_sync(kAllLanes, most, step);
    least = low < least ? low : least;
    most = high > most ? high : most;
  }
  const float scale2 = kLog2E / sqrtf(static_cast<float>(kD));  // exponents are of 2
  const int tiles = CeilDiv(key_count, kTileKeys);
  for (int tile = 0; tile < tiles; ++tile) {
    CopyAsyncWait<0>();
    __syncthreads();  // this tile is there, and the one before was used
    if (tile + 1 < tiles) {
      load(tile + 1);
      find_slots(tile + 2);
    }
#pragma unroll 1
    for (int c = 0; c < kTileKeys; c += kChunk) {
      const int first = tile * kTileKeys + c;
      // Keys beyond those of a row leave what it has, bit for bit: these are beyond those of the warp.
      if (first >= most) break;
      LoadStrips<kD, kStrips>(my_queries, left);
      float p[kStrips][kChunk / 8][4];
      MultiplyStrips<kD, kChunk, kStrips>(left, keys + (tile % 2 * kTileKeys + c) * kRow, p);
      if (first + kChunk > least) {
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
          const int m = (warp * kStrips + s) * 16 + g;
          const int left_of[2] = {limits[m] - first, limits[m + 8] - first};
#pragma unroll
          for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (n * 8 + 2 * t + i % 2 >= left_of[i / 2]) p[s][n][i] = -INFINITY;
            }
          }
        }
      }
      float factor[kStrips][2];
      bool rises = false;
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float top = max[s][h];
#pragma unroll
          for (int n = 0; n < kChunk / 8; ++n) top = fmaxf(top, fmaxf(p[s][n][2 * h], p[s][n][2 * h + 1]));
          top = QuadMax(top);
          const float base = top == -INFINITY ? 0.0F : top * scale2;
          // 1 exactly where nothing rises, as for a row that is not looked at any more.
          factor[s][h] = top == max[s][h] ? 1.0F : Exp2((max[s][h] - top) * scale2);
          rises = rises || top != max[s][h];
          max[s][h] = top;
          sum[s][h] *= factor[s][h];
#pragma unroll
          for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; ++i) {
              p[s][n][i] = Exp2(p[s][n][i] * scale2 - base);
              sum[s][h] += p[s][n][i];
            }
          }
        }
      }
      if (!Tiles::kLazy || __any_sync(kAllLanes, rises ? 1 : 0) != 0) {
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
#pragma unroll
          for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[s][n][i] *= factor[s][i / 2];
          }
        }
      }
      MultiplyWeightStrips<kD, kChunk, kStrips>(p, values + (tile % 2 * kTileKeys + c) * kRow, acc);
    }
  }
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = (warp * kStrips + s) * 16 + g + 8 * h;
      const int64_t row = item.first + m / group, head = kv * group + m % group;
      const float total = QuadSum(sum[s][h]);  // all lanes take part, whether or not their row is there
      if (m >= m_count) continue;
      const Global<BF16> out = View(f.out) + (row * f.heads + head) * kD;
      const float inverse = 1.0F / total;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        Put2(out, n * 8 + 2 * t, acc[s][n][2 * h] * inverse, acc[s][n][2 * h + 1] * inverse);
      }
      if (f.lse != nullptr && t == 0) {
        View(f.lse)[row * f.heads + head] = max[s][h] / sqrtf(static_cast<float>(kD)) + logf(total);
      }
    }
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

template <typename Tiles>
int PrefillByTiles(const device::AttentionArgs<BF16>& f, const PrefillWork& work, Stream stream) {
  return Launch({.name = "prefill_attention",
                 .x = work.items,
                 .y = f.kv_heads,
                 .threads = Tiles::kThreads,
                 .shared_bytes = Tiles::kBytes},
                stream, PrefillTilesKernel<Tiles>, f, work);
}

}  // namespace

template <typename T>
int PrefillAttention(const device::AttentionArgs<T>& f, const PrefillWork& work, Launcher& launcher) {
  if (work.items == 0) return 0;
  if constexpr (sizeof(T) == 2) {
    if (f.heads / f.kv_heads <= kPrefillQueries && On16Bytes(f.q) && On16Bytes(f.k) && On16Bytes(f.v)) {
      using Of64 = PrefillTiles<64, 2, 64, 64, 2, false>;
      using Of128 = PrefillTiles<128, 2, 64, 32, 2, true>;
      using SmallOf128 = PrefillTiles<128, 2, 32, 32, 1, true>;  // the same bits
      static_assert(Of64::kBytes <= kSmallSharedMax && SmallOf128::kBytes <= kSmallSharedMax);
      if (f.head_size == 64) return PrefillByTiles<Of64>(f, work, launcher.stream());
      if (f.head_size == 128) {
        return Fits(Of128::kBytes) ? PrefillByTiles<Of128>(f, work, launcher.stream())
                                   : PrefillByTiles<SmallOf128>(f, work, launcher.stream());
      }
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
