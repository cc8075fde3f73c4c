// Draws a token from each row of logits, and gives its log-probability.
//
// Masses come from vocab_parts.h; then one block a row. It does what core/device/cpu/sampler.cc does,
// addition by addition (vocab_row.h), so that a draw has the same bits on both, with one difference: masses
// under the cut of top_p are added as multiples of 2^-44, since integers have the same sum in every order.
// The cuts of top_k and top_p are found as thresholds by a radix walk over three digits of the logit's key,
// the counters of a digit in shared memory. Counters are integers: their sums have no order. Nothing of the
// size of the vocabulary is kept: masses are computed again from the logits, which are in the cache by then.
#include "core/cuda/kernels/vocab_parts.h"

namespace tidepool::cuda {
namespace {

constexpr int kDigits = 2048;                    // of the first two digits, 11 bits each; the last one has 10
constexpr double kMassUnits = 17592186044416.0;  // 2^44: 327 680 masses of at most 1 stay below 2^63

__device__ inline uint64_t Units(float mass) {
  return static_cast<uint64_t>(static_cast<double>(mass) * kMassUnits);
}
// Unsigned keys in the order of the floats.
__device__ inline uint32_t KeyOf(float v) {
  const uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float FromKey(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

// What the walk has settled, in shared memory: one thread of warp 0 writes it, all read it after a barrier.
struct Walk {
  uint32_t digit;
  uint32_t count;  // of tokens above the chosen digit
  uint64_t mass;
};

// The highest digit from which on, downwards, the tokens are enough; else the lowest that has any. By warp 0.
__device__ inline void ChooseDigit(int digits, uint32_t count_wanted, uint64_t mass_wanted,
                                   Shared<const uint32_t> counts, Shared<const uint64_t> masses,
                                   Shared<Walk> walk) {
  const int lane = static_cast<int>(threadIdx.x);
  Walk above = walk[0];
  Walk lowest = above;
  __syncwarp();
  bool enough = false;
  for (int base = digits - 32; base >= 0 && !enough; base -= 32) {
    const int d = base + 31 - lane;  // lane 0 has the highest
    const uint32_t mine = counts[d];
    const uint64_t my_mass = masses[d];
    uint32_t count = mine;
    uint64_t mass = my_mass;
    for (unsigned step = 1; step < 32; step *= 2) {
      const uint32_t c = __shfl_up_sync(kAllLanes, count, step);
      const uint64_t m = __shfl_up_sync(kAllLanes, mass, step);
      if (lane >= static_cast<int>(step)) {
        count += c;
        mass += m;
      }
    }
    const bool there = mine > 0;
    const unsigned good = __ballot_sync(
        kAllLanes, there && above.count + count >= count_wanted && above.mass + mass >= mass_wanted);
    const unsigned any = __ballot_sync(kAllLanes, there);
    enough = good != 0;
    if (any != 0) {
      // The first that is enough, else the last that is there.
      int from = enough ? __ffs(static_cast<int>(good)) - 1 : 31;
      while (!enough && (any >> from & 1U) == 0) --from;
      lowest.digit = static_cast<uint32_t>(base + 31 - from);
      lowest.count = above.count + __shfl_sync(kAllLanes, count - mine, from);
      lowest.mass = above.mass + __shfl_sync(kAllLanes, mass - my_mass, from);
    }
    above.count += __shfl_sync(kAllLanes, count, 31);
    above.mass += __shfl_sync(kAllLanes, mass, 31);
  }
  if (lane == 0) walk[0] = lowest;
}

// The largest logit t such that the tokens with logit >= t are at least `count` many and hold at least
// `mass`; tokens below `floor` do not take part.
template <typename T>
__device__ inline float Threshold(Global<const T> row, int64_t vocab, float max, float scale, float floor,
                                  uint32_t count, uint64_t mass, Shared<uint32_t> counts,
                                  Shared<uint64_t> masses, Shared<Walk> walk) {
  const uint32_t floor_key = KeyOf(floor);
  uint32_t prefix = 0;
  int above = 32;  // bits not yet fixed
  if (threadIdx.x == 0) walk[0] = Walk{0, 0, 0};
  for (int digit_number = 0; digit_number < 3; ++digit_number) {
    const int bits = digit_number < 2 ? 11 : 10, shift = above - bits, digits = 1 << bits;
    for (int d = static_cast<int>(threadIdx.x); d < digits; d += kVocabThreads) {
      counts[d] = 0;
      masses[d] = 0;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < vocab; i += kVocabThreads) {
      const float z = Get(row, i);
      const uint32_t key = KeyOf(z);
      if (key < floor_key || (above < 32 && key >> above != prefix)) continue;
      const uint32_t digit = (key >> shift) & (static_cast<uint32_t>(digits) - 1);
      AtomicAdd(counts, digit, uint32_t{1});
      AtomicAdd(masses, digit, Units(MassOf(z, max, scale)));
    }
    __syncthreads();
    if (threadIdx.x < 32) ChooseDigit(digits, count, mass, counts, masses, walk);
    __syncthreads();
    prefix = (prefix << bits) | Walk(walk[0]).digit;
    above = shift;
  }
  __syncthreads();  // the next walk begins by writing
  return FromKey(prefix);
}

// The first thread whose sum, that of the masses up to its own, is above the target; else the last with mass.
__device__ inline int64_t FirstOver(float mass, Shared<const double> sums, double target,
                                    Shared<float> scratch) {
  float over = -3.0e38F, with_mass = -1.0F;
  if (mass > 0.0F) {
    with_mass = static_cast<float>(threadIdx.x);
    if (sums[threadIdx.x] > target) over = -with_mass;
  }
  over = BlockMax<kVocabThreads>(over, scratch);
  with_mass = BlockMax<kVocabThreads>(with_mass, scratch);
  return static_cast<int64_t>(over > -1.0e38F ? -over : with_mass);
}

template <typename T>
// Two blocks: left to itself, ptxas makes room for three on sm_80 and spills.
__global__ void __launch_bounds__(kVocabThreads, 2) SampleKernel(device::SampleArgs<T> a, VocabParts v) {
  TP_SHARED(float, tiles, kVocabTilesMax);
  TP_SHARED(double, prefix, kVocabTile);  // of a group's tiles, then of a tile's tokens
  TP_SHARED(double, groups, kGroupsMax);
  TP_SHARED(uint32_t, counts, kDigits);
  TP_SHARED(uint64_t, masses, kDigits);
  TP_SHARED(float, tile_mass, kVocabTile);
  TP_SHARED(float, scratch, kVocabThreads / 32);
  TP_SHARED(uint64_t, wide_scratch, kVocabThreads / 32);
  TP_SHARED(Walk, walk, 1);
  LetKernelAfterStart();
  WaitForKernelBefore();
  const int64_t r = blockIdx.x, vocab = a.vocab, tile_count = CeilDiv<int64_t>(vocab, kVocabTile);
  const Global<const T> row = View(a.logits) + int64_t{View(a.source)[r]} * vocab;
  const device::SampleRow how = View(a.how)[r];
  bool finite = false;
  const float max = MaxOfParts(v, r, &finite);
  if (!finite) {
    if (threadIdx.x == 0) {
      View(a.ids)[r] = -1;
      View(a.log_kept)[r] = 0.0F;
      View(a.logprob)[r] = NAN;
    }
    return;
  }
  const bool greedy = how.temperature == 0.0F;
  const float scale = ScaleOf(how);
  for (int64_t t = threadIdx.x; t < tile_count; t += kVocabThreads) {
    tiles[t] = View(v.sum)[r * tile_count + t];
  }
  __syncthreads();
  const double total = AddGroups(tile_count, tiles, groups);
  double kept = total;
  float threshold = -INFINITY;
  const bool top_k = how.top_k > 0 && how.top_k < vocab, top_p = how.top_p < 1.0F;
  const bool cut = !greedy && (top_k || top_p || how.min_p > 0.0F);
  if (cut) {
    if (top_k) {
      threshold = Threshold(row, vocab, max, scale, threshold, static_cast<uint32_t>(how.top_k), 0, counts,
                            masses, walk);
    }
    if (top_p) {
      double mass = total;
      if (top_k) {
        uint64_t mine = 0;
        for (int64_t i = threadIdx.x; i < vocab; i += kVocabThreads) {
          const float z = Get(row, i);
          if (z >= threshold) mine += Units(MassOf(z, max, scale));
        }
        mass = static_cast<double>(BlockSum<kVocabThreads>(mine, wide_scratch)) / kMassUnits;
      }
      const double wanted = ceil(mass * static_cast<double>(how.top_p) * kMassUnits);
      threshold = Threshold(row, vocab, max, scale, threshold, 1, static_cast<uint64_t>(wanted), counts,
                            masses, walk);
    }
    if (how.min_p > 0.0F) {
      threshold = fmaxf(threshold, __fadd_rn(max, __fmul_rn(how.log_min_p, how.temperature)));
    }
    __syncthreads();
    for (int64_t t0 = 0; t0 < tile_count; t0 += kVocabThreads / 16) {  // all lanes of a warp together
      const int64_t t = t0 + threadIdx.x / 16;
      float sum = 0.0F;
      SumTile<false>(row, vocab, t, max, scale, threshold, &sum, static_cast<float*>(nullptr));
      if (threadIdx.x % 16 == 0 && t < tile_count) tiles[t] = sum;
    }
    __syncthreads();
    kept = AddGroups(tile_count, tiles, groups);
  }

  float first = -3.0e38F;  // minus the number of a token or a tile: the largest is the first
  if (greedy) {
    for (int64_t i = threadIdx.x; i < vocab; i += kVocabThreads) {
      if (Get(row, i) == max) first = fmaxf(first, -static_cast<float>(i));
    }
    first = BlockMax<kVocabThreads>(first, scratch);
    if (threadIdx.x == 0) {
      View(a.ids)[r] = static_cast<int32_t>(-first);
      View(a.log_kept)[r] = 0.0F;
      View(a.logprob)[r] = TokenLogProbOf(max, max, scale, LogOfTotal(total));
    }
    return;
  }
  const double target = __dmul_rn(static_cast<double>(how.uniform), kept);
  // The group, the tile in it and the token in that, each the first whose sum is above the target; the sum
  // inside one may end a rounding below that of the whole, and then the last that has mass takes what is
  // left.
  const int64_t group_count = CeilDiv<int64_t>(tile_count, kPartTiles);
  if (threadIdx.x < group_count && (threadIdx.x == group_count - 1 || groups[threadIdx.x] > target)) {
    first = -static_cast<float>(threadIdx.x);
  }
  const auto group = static_cast<int64_t>(-BlockMax<kVocabThreads>(first, scratch));
  const int64_t begin = group * kPartTiles,
                count = tile_count - begin < kPartTiles ? tile_count - begin : kPartTiles;
  const double before_group = group == 0 ? 0.0 : groups[group - 1];
  if (threadIdx.x == 0) {
    double sum = before_group;
    for (int64_t t = 0; t < count; ++t) {
      sum = __dadd_rn(sum, tiles[begin + t]);
      prefix[t] = sum;
    }
  }
  __syncthreads();
  const int64_t in_group = FirstOver(threadIdx.x < count ? float{tiles[begin + threadIdx.x]} : 0.0F, prefix,
                                     target, scratch),
                tile = begin + in_group;
  if (threadIdx.x < kVocabTile) {
    const int64_t i = tile * kVocabTile + threadIdx.x;
    const float z = i < vocab ? Get(row, i) : -INFINITY;
    tile_mass[threadIdx.x] = i < vocab && z >= threshold ? MassOf(z, max, scale) : 0.0F;
  }
  const double before = in_group == 0 ? before_group : double{prefix[in_group - 1]};
  __syncthreads();  // prefix takes those of the tile's tokens
  // Token by token, as the order is the result; what has no mass leaves the sum as it is.
  if (threadIdx.x == 0) {
    double sum = before;
#pragma unroll 8
    for (int j = 0; j < kVocabTile; ++j) {
      sum = __dadd_rn(sum, tile_mass[j]);
      prefix[j] = sum;
    }
  }
  __syncthreads();
  const int64_t id =
      tile * kVocabTile +
      FirstOver(threadIdx.x < kVocabTile ? float{tile_mass[threadIdx.x]} : 0.0F, prefix, target, scratch);
  if (threadIdx.x != 0) return;
  View(a.ids)[r] = static_cast<int32_t>(id);
  View(a.log_kept)[r] = cut ? static_cast<float>(log(fmin(1.0, kept / total))) : 0.0F;
  View(a.logprob)[r] = TokenLogProbOf(Get(row, id), max, scale, LogOfTotal(total));
}

}  // namespace

template <typename T>
int Sample(const device::SampleArgs<T>& a, Launcher& launcher) {
  if (a.vocab < 1 || a.vocab > kVocabTile * kVocabTilesMax) return static_cast<int>(cudaErrorInvalidValue);
  VocabParts v;
  if (const int code = SumVocab(
          VocabRows<T>{
              .rows = a.rows, .vocab = a.vocab, .logits = a.logits, .source = a.source, .how = a.how},
          launcher, &v);
      code != 0) {
    return code;
  }
  return Launch({.name = "sample", .x = a.rows, .threads = kVocabThreads, .early = true}, launcher.stream(),
                SampleKernel<T>, a, v);
}
TP_INSTANTIATE(Sample)

}  // namespace tidepool::cuda
