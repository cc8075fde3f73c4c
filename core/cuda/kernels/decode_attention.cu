// Attention of rows to long caches: by partitions of 256 keys, so that one row fills the device, merged
// afterwards from left to right by their log of summed exponentials.
//
// Partitions are cut at absolute positions, so what a row gets is a function of the row. Rows whose keys of a
// partition lie in the same slots, samples of one prompt, share one pass over them (attention_plan.h): all
// their heads are rows of the same tiles. In bfloat16 with heads of 64 or 128 the products run on tensor
// cores: a warp takes 32 keys.
#include "core/cuda/kernels/attention_rows.h"
#include "core/cuda/kernels/product_chain.h"
#include "core/cuda/kernels/rotary_head.h"

namespace tidepool::cuda {
namespace {

constexpr int kDecodeWarps = 8;
constexpr int kDecodeThreads = kDecodeWarps * 32;
constexpr int kWarpKeys = kPartitionKeys / kDecodeWarps;
static_assert(kWarpKeys == 32);  // a lane looks up the slot of one

// A row's result of a partition in scratch: head_size sums, the maximum, the sum of exponentials.
__device__ inline Global<float> PartialOf(float* partial, int64_t place, int64_t heads, int64_t head,
                                          int64_t size) {
  return View(partial) + (place * heads + head) * (size + 2);
}

// kOneTile: values take the place of the keys that were multiplied, so more queries bring the keys again.
template <int kD, bool kOneTile>
struct DecodeLayout {  // dynamic shared memory, bytes
  static constexpr int kTile = kPartitionKeys * kTileRow<kD> * 2;
  static constexpr int kSlabs = kD == 64 ? 4 : 2;  // warps whose sums there is room for
  static constexpr int kValues = kOneTile ? 0 : kTile, kQueries = kValues + kTile,
                       kOut = kQueries + 16 * kTileRow<kD> * 2;
  static constexpr int kBytes = kOut + kSlabs * 16 * kD * 4;
  static_assert(kBytes <= (kD == 64 || kOneTile ? kSmallSharedMax : kSharedMax));
};

// kRotate: queries, and the key and value of each row, come from `turn` and not from memory that a kernel
// before has written; the block that attends to a row's last key writes its key and value there. The keys
// before are of earlier steps, so they are on their way before the kernel before has ended.
template <int kD, bool kRotate, bool kOneTile>
__global__ void __launch_bounds__(kDecodeThreads)
    DecodeTilesKernel(device::AttentionArgs<BF16> f, DecodeWork work, float* partial,
                      device::RotaryArgs<BF16> turn) {
  static_assert(!kRotate || !kOneTile);  // the row's own key and value have to lie there together
  TP_DYNAMIC_SHARED(bytes);
  using Layout = DecodeLayout<kD, kOneTile>;
  constexpr int kRow = kTileRow<kD>, kChunks = kD / 8;
  const Shared<BF16> keys = Carve<BF16>(bytes, 0, kPartitionKeys * kRow);
  const Shared<BF16> values = Carve<BF16>(bytes, Layout::kValues, kPartitionKeys * kRow);
  const Shared<BF16> queries = Carve<BF16>(bytes, Layout::kQueries, 16 * kRow);
  const Shared<float> slabs = Carve<float>(bytes, Layout::kOut, Layout::kSlabs * 16 * kD);
  TP_SHARED(float, warp_max, kDecodeWarps * 16);
  TP_SHARED(float, warp_sum, kDecodeWarps * 16);
  LetKernelAfterStart();
  if constexpr (!kRotate) WaitForKernelBefore();
  const AttentionItem item = View(work.item)[blockIdx.x];
  if (item.count == 0) return;  // room of a graph
  const int64_t kv = blockIdx.y, group = f.heads / f.kv_heads, m_count = item.count * group;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const int64_t begin = int64_t{item.partition} * kPartitionKeys;
  const Global<const int32_t> order = View(work.order) + item.first, lengths = View(f.keys.lengths);
  const auto row_of = [&](int64_t m) { return item.count == 1 ? item.row : int32_t{order[m / group]}; };
  // Rows share a partition that is full for each of them; a row alone may end inside it.
  const int key_count = item.left < kPartitionKeys ? item.left : kPartitionKeys;
  const float scale = 1.0F / sqrtf(static_cast<float>(kD));
  // The row's own key, which is its last one and nobody else's.
  const int own = kRotate && item.count == 1 && item.left <= kPartitionKeys ? key_count - 1 : -1;

  // Each warp brings its own keys, then their values.
  SlotWalk walk{item.run, item.run_position};
  const Global<const device::KvRun> runs = View(f.keys.runs);
  const int my_key = warp * kWarpKeys + lane;
  const int64_t my_slot = my_key < key_count ? walk.SlotOf(runs, begin + my_key) : 0;
  const auto load_tile = [&](const BF16* from, Shared<BF16> to) {
#pragma unroll
    for (int r = 0; r < kWarpKeys; r += 32 / kChunks) {
      const int row = r + lane / kChunks, key = warp * kWarpKeys + row, chunk = lane % kChunks * 8;
      const int64_t slot = __shfl_sync(kAllLanes, my_slot, row);
      if (key == own) continue;
      CopyAsync16(to + key * kRow + chunk, View(from) + (slot * f.kv_heads + kv) * kD + chunk,
                  key < key_count);
    }
  };
  Angles<kD / 64> angles;
  if constexpr (kRotate) LoadAngles(turn, item.row, angles);
  const auto load_queries = [&](int64_t m0) {
    if constexpr (kRotate) {
      constexpr int kHeads = 16 / kDecodeWarps;
      Head<kD / 64> x[kHeads] = {};
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {  // what all of them read is under way before one is used
        const int64_t m = m0 + i * kDecodeWarps + warp;
        if (m < m_count) LoadWithBias(turn, row_of(m), kv * group + m % group, x[i]);
      }
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        const int64_t m = m0 + i * kDecodeWarps + warp;
        if (m < m_count) {
          if (item.count > 1) LoadAngles(turn, row_of(m), angles);
          NormAndRotate(turn, kv * group + m % group, angles, x[i]);
        }
        StoreHead(queries + (i * kDecodeWarps + warp) * kRow, kD / 2, x[i]);
      }
    } else {
      for (int i = tid; i < 16 * kChunks; i += kDecodeThreads) {
        const int64_t m = m0 + i / kChunks;
        const bool there = m < m_count;
        const int64_t row = there ? row_of(m) : 0, head = kv * group + m % group;
        CopyAsync16(queries + i / kChunks * kRow + i % kChunks * 8,
                    View(f.q) + (there ? (row * f.heads + head) * kD + i % kChunks * 8 : 0), there);
      }
      CopyAsyncCommit();
    }
  };
  load_tile(f.k, keys);
  if constexpr (!kRotate) load_queries(0);  // of the keys' group
  if constexpr (kRotate) CopyAsyncCommit();
  if constexpr (!kOneTile) {
    load_tile(f.v, values);
    CopyAsyncCommit();
  }
  if constexpr (kRotate) {
    WaitForKernelBefore();
    load_queries(0);
  }
  if (own >= 0 && warp >= kDecodeWarps - 2) {  // the warps that may have fewer queries
    const int64_t at = (int64_t{View(turn.slots)[item.row]} * f.kv_heads + kv) * kD,
                  head = f.heads + kv + (warp == kDecodeWarps - 2 ? 0 : f.kv_heads);
    Head<kD / 64> x;
    LoadWithBias(turn, item.row, head, x);
    NormAndRotate(turn, head, angles, x);
    StoreHead((warp == kDecodeWarps - 2 ? keys : values) + own * kRow, kD / 2, x);
    StoreHead(View(warp == kDecodeWarps - 2 ? turn.k : turn.v) + at, kD / 2, x);
  }

  for (int64_t m0 = 0; m0 < m_count; m0 += 16) {
    if (m0 == 0 && !kOneTile) {
      CopyAsyncWait<1>();
    } else {
      CopyAsyncWait<0>();
    }
    __syncthreads();
    Strips<kD, 1> left;
    LoadStrips<kD, 1>(queries, left);
    float products[1][kWarpKeys / 8][4];
    MultiplyStrips<kD, kWarpKeys, 1>(left, keys + warp * kWarpKeys * kRow, products);
    float(&p)[kWarpKeys / 8][4] = products[0];
    if constexpr (kOneTile) {
      __syncwarp();  // each warp has used its own keys
      load_tile(f.v, values);
      CopyAsyncCommit();
    }
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
    if (m0 == 0 || kOneTile) {
      CopyAsyncWait<0>();
      __syncwarp();  // each warp reads its own values alone
    }
    float weighted[1][kD / 8][4] = {};
    MultiplyWeightStrips<kD, kWarpKeys, 1>(products, values + warp * kWarpKeys * kRow, weighted);
    const float(&acc)[kD / 8][4] = weighted[0];
    // The warps' sums, from the first to the last, at the maximum of all.
    __syncthreads();
    float all[2] = {-INFINITY, -INFINITY}, factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      for (int w = 0; w < kDecodeWarps; ++w) all[h] = fmaxf(all[h], warp_max[w * 16 + g + 8 * h]);
      factor[h] = ExpBelow(max[h], all[h]);
    }
    // A thread adds up the warps' sums of its elements.
    constexpr int kMine = 16 * kD / kDecodeThreads;
    float mine[kMine];
#pragma unroll
    for (int w0 = 0; w0 < kDecodeWarps; w0 += Layout::kSlabs) {
      if (w0 > 0) __syncthreads();
      if (w0 <= warp && warp < w0 + Layout::kSlabs) {
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            Put2(slabs, ((warp - w0) * 16 + g + h * 8) * kD + n * 8 + 2 * t, acc[n][2 * h] * factor[h],
                 acc[n][2 * h + 1] * factor[h]);
          }
        }
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
#pragma unroll
        for (int w = 0; w < Layout::kSlabs; ++w) {
          const float v = slabs[w * 16 * kD + tid + i * kDecodeThreads];
          mine[i] = w0 + w == 0 ? v : mine[i] + v;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) slabs[tid + i * kDecodeThreads] = mine[i];  // read by this thread alone
#pragma unroll 1
    for (int at = tid; at < 16 * kD; at += kDecodeThreads) {
      const int in_tile = at / kD, c = at % kD;
      const int64_t m = m0 + in_tile;
      if (m >= m_count) break;
      const int64_t row = row_of(m), head = kv * group + m % group;
      const bool whole = (item.count == 1 ? begin + item.left : lengths[row]) <= kPartitionKeys;
      float top = -INFINITY, total = 0.0F;
      for (int w = 0; w < kDecodeWarps; ++w) top = fmaxf(top, warp_max[w * 16 + in_tile]);
      for (int w = 0; w < kDecodeWarps; ++w) {
        total += ExpBelow(warp_max[w * 16 + in_tile], top) * warp_sum[w * 16 + in_tile];
      }
      if (whole) {  // there is nothing to merge
        Put(View(f.out) + (row * f.heads + head) * kD, c, slabs[at] / total);
        if (f.lse != nullptr && c == 0) View(f.lse)[row * f.heads + head] = top + logf(total);
        continue;
      }
      const Global<float> to =
          PartialOf(partial, View(work.first_partial)[row] + item.partition, f.heads, head, kD);
      to[c] = slabs[at];
      if (c != 0) continue;
      to[kD] = top;
      to[kD + 1] = total;
    }
    // The barriers above came after the last read of the queries; the next one comes before sums are written.
    if (m0 + 16 < m_count) {
      if constexpr (kOneTile) load_tile(f.k, keys);  // of the queries' group
      load_queries(m0 + 16);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kAttendThreads)
    DecodeRowsKernel(device::AttentionArgs<T> f, DecodeWork work, float* partial) {
  TP_ATTEND_SHARED(shared);
  LetKernelAfterStart();
  WaitForKernelBefore();
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
    MergePartialsKernel(device::AttentionArgs<T> f, DecodeWork work, float* partial, bool whole_written) {
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t row = View(work.row)[blockIdx.x], head = blockIdx.y, size = f.head_size;
  const int64_t first = View(work.first_partial)[row];
  const int64_t count = CeilDiv<int64_t>(View(f.keys.lengths)[row], kPartitionKeys);
  if (whole_written && count == 1) return;  // is written already
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

template <int kD, bool kRotate, bool kOneTile>
int DecodeTiles(const device::AttentionArgs<BF16>& f, const DecodeWork& w, float* partial,
                const device::RotaryArgs<BF16>& turn, Stream stream) {
  return Launch({.name = "decode_attention",
                 .x = w.items,
                 .y = f.kv_heads,
                 .threads = kDecodeThreads,
                 .shared_bytes = DecodeLayout<kD, kOneTile>::kBytes,
                 .early = true,
                 .beside = kRotate && w.rows <= kChainRowsMax},
                stream, DecodeTilesKernel<kD, kRotate, kOneTile>, f, w, partial, turn);
}
// Whether keys and values have room beside each other.
bool HasTwoTiles(int64_t head_size) { return head_size == 64 || Fits(DecodeLayout<128, false>::kBytes); }
int DecodeTiles(const device::AttentionArgs<BF16>& f, const DecodeWork& w, float* partial,
                const device::RotaryArgs<BF16>* turn, Stream stream) {
  if (turn != nullptr) {
    return f.head_size == 64 ? DecodeTiles<64, true, false>(f, w, partial, *turn, stream)
                             : DecodeTiles<128, true, false>(f, w, partial, *turn, stream);
  }
  if (f.head_size == 64) return DecodeTiles<64, false, false>(f, w, partial, {}, stream);
  return HasTwoTiles(f.head_size) ? DecodeTiles<128, false, false>(f, w, partial, {}, stream)
                                  : DecodeTiles<128, false, true>(f, w, partial, {}, stream);
}
template <typename T>
bool DecodesInTiles(const device::AttentionArgs<T>& f) {
  return sizeof(T) == 2 && On16Bytes(f.q) && On16Bytes(f.k) && On16Bytes(f.v) && HasTiles(f.head_size);
}
template <typename T>
int Decode(const device::AttentionArgs<T>& f, const DecodeWork& w, const device::RotaryArgs<T>* turn,
           Launcher& launcher) {
  if (w.rows == 0) return 0;
  auto* partial = static_cast<float*>(
      launcher.Scratch(w.partials * f.heads * (f.head_size + 2) * static_cast<int64_t>(sizeof(float))));
  const bool in_tiles = DecodesInTiles(f);
  int code = 0;
  if constexpr (sizeof(T) == 2) {
    if (in_tiles) code = DecodeTiles(f, w, partial, turn, launcher.stream());
  }
  if (!in_tiles) {
    code = Launch({.name = "decode_attention_rows",
                   .x = w.items,
                   .y = f.kv_heads,
                   .threads = kAttendThreads,
                   .early = true},
                  launcher.stream(), DecodeRowsKernel<T>, f, w, partial);
  }
  if (code != 0 || (in_tiles && !w.several)) return code;
  return Launch(
      {.name = "merge_partials", .x = w.rows, .y = f.heads, .threads = kAttendThreads, .early = true},
      launcher.stream(), MergePartialsKernel<T>, f, w, partial, in_tiles);
}

}  // namespace

template <typename T>
int DecodeAttention(const device::AttentionArgs<T>& f, const DecodeWork& w, Launcher& launcher) {
  return Decode<T>(f, w, nullptr, launcher);
}
template int DecodeAttention<float>(const device::AttentionArgs<float>&, const DecodeWork&, Launcher&);
template int DecodeAttention<BF16>(const device::AttentionArgs<BF16>&, const DecodeWork&, Launcher&);

bool RotatesInAttention(const device::RotaryArgs<BF16>& turn, const device::AttentionArgs<BF16>& a) {
  const auto& work = static_cast<const AttentionOnDevice&>(*a.work);
  return work.rows_apart && DecodesInTiles(a) && HasTwoTiles(a.head_size) && turn.k == a.k && turn.v == a.v;
}
int RotaryAttention(const device::RotaryArgs<BF16>& turn, const device::AttentionArgs<BF16>& a,
                    Launcher& launcher) {
  return Decode(a, static_cast<const AttentionOnDevice&>(*a.work).decode, &turn, launcher);
}

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
