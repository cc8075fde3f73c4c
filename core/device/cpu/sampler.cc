// Compiled with -O3 -ffp-contract=off: loops over lanes become vector code for the machine at hand, and
// none of them may fuse a product with a sum, so that all machines get the same bits.
#include "core/device/cpu/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tidepool::device {
namespace {

constexpr int64_t kTile = 256;
constexpr int64_t kLanes = 16;
constexpr size_t kGroup = 32;  // tiles that are added up by themselves

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TP_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else  // the dynamic linker resolves clones before a sanitizer's run time is ready
#define TP_EVERY_CPU
#endif

// exp(x) for x <= 0, within 2 ulp; 0 below -87. Cephes' polynomial: x = n ln 2 + r, |r| <= ln 2 / 2.
inline __attribute__((always_inline)) float ExpNonPositive(float x) {
  const float clamped = x < -87.0F ? -87.0F : x;
  const float shifted = clamped * 1.44269504088896341F + 12582912.0F;  // 1.5 * 2^23: rounds to an integer
  const float n = shifted - 12582912.0F;
  const float r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - 0x4B400000;  // n
  const float scale = std::bit_cast<float>((exponent + 127) << 23);
  return x < -87.0F ? 0.0F : p * scale;
}

struct RowFacts {
  float max = 0;
  bool finite = false;
};

TP_EVERY_CPU RowFacts Facts(const float* z, int64_t n) {
  float max[kLanes];
  int32_t bad[kLanes] = {};
  for (int64_t l = 0; l < kLanes; ++l) max[l] = -INFINITY;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const float v = z[i + l];
      max[l] = v > max[l] ? v : max[l];
      bad[l] |= (std::bit_cast<int32_t>(v) & 0x7F800000) == 0x7F800000 ? 1 : 0;
    }
  }
  for (; i < n; ++i) {
    max[0] = z[i] > max[0] ? z[i] : max[0];
    bad[0] |= (std::bit_cast<int32_t>(z[i]) & 0x7F800000) == 0x7F800000 ? 1 : 0;
  }
  RowFacts facts{max[0], bad[0] == 0};
  for (int64_t l = 1; l < kLanes; ++l) {
    facts.max = std::max(facts.max, max[l]);
    facts.finite = facts.finite && bad[l] == 0;
  }
  return facts;
}

TP_EVERY_CPU void Widen(const BF16* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i].bits) << 16);
}

inline __attribute__((always_inline)) float FoldLanes(const float* lanes) {
  float sum = 0;
  for (int64_t l = 0; l < kLanes; ++l) sum += lanes[l];
  return sum;
}

// mass[i] = exp((z[i] - max) * scale), and the sum of each tile.
TP_EVERY_CPU void Masses(const float* z, float max, float scale, int64_t n, float* mass, float* tiles) {
  for (int64_t t = 0; t * kTile < n; ++t) {
    const int64_t end = std::min(n, (t + 1) * kTile);
    float lanes[kLanes] = {};
    int64_t i = t * kTile;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) {
        const float e = ExpNonPositive((z[i + l] - max) * scale);
        mass[i + l] = e;
        lanes[l] += e;
      }
    }
    for (int64_t l = 0; i < end; ++i, ++l) {
      mass[i] = ExpNonPositive((z[i] - max) * scale);
      lanes[l] += mass[i];
    }
    tiles[t] = FoldLanes(lanes);
  }
}

// Masses of tokens below the threshold become 0; tile sums anew.
TP_EVERY_CPU void Cut(const float* z, float threshold, int64_t n, float* mass, float* tiles) {
  for (int64_t t = 0; t * kTile < n; ++t) {
    const int64_t end = std::min(n, (t + 1) * kTile);
    float lanes[kLanes] = {};
    int64_t i = t * kTile;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) {
        const float e = z[i + l] >= threshold ? mass[i + l] : 0.0F;
        mass[i + l] = e;
        lanes[l] += e;
      }
    }
    for (int64_t l = 0; i < end; ++i, ++l) {
      mass[i] = z[i] >= threshold ? mass[i] : 0.0F;
      lanes[l] += mass[i];
    }
    tiles[t] = FoldLanes(lanes);
  }
}

double SumGroup(const std::vector<float>& tiles, size_t first) {
  double sum = 0;
  for (size_t t = first; t < std::min(first + kGroup, tiles.size()); ++t) sum += tiles[t];
  return sum;
}
double SumTiles(const std::vector<float>& tiles) {
  double sum = 0;
  for (size_t first = 0; first < tiles.size(); first += kGroup) sum += SumGroup(tiles, first);
  return sum;
}

// Unsigned keys in the order of the floats.
inline uint32_t KeyOf(float v) {
  const auto bits = std::bit_cast<uint32_t>(v);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
inline float FromKey(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

// The largest logit t such that the tokens with logit >= t are at least `count` many and hold at least
// `mass` of mass; tokens below `floor` do not take part. Three digits of 11, 11 and 10 bits from the top.
float Threshold(const SamplerScratch& row, int64_t n, float floor, int64_t count, double mass,
                std::vector<int64_t>& counts, std::vector<double>& masses) {
  const uint32_t floor_key = KeyOf(floor);
  uint32_t prefix = 0;
  int64_t seen_count = 0;
  double seen_mass = 0;
  int above = 32;  // bits not yet fixed
  for (const int bits : {11, 11, 10}) {
    const int shift = above - bits;
    const uint32_t digits = 1U << bits;
    counts.assign(digits, 0);
    masses.assign(digits, 0.0);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = KeyOf(row.logits[static_cast<size_t>(i)]);
      if (key < floor_key || (above < 32 && (key >> above) != prefix)) continue;
      const uint32_t digit = (key >> shift) & (digits - 1);
      ++counts[digit];
      masses[digit] += row.mass[static_cast<size_t>(i)];
    }
    uint32_t chosen = 0;
    bool any = false;
    for (uint32_t d = digits; d-- > 0;) {
      if (counts[d] == 0) continue;
      if (any) {  // the bucket above was not enough: it lies wholly above the threshold
        seen_count += counts[chosen];
        seen_mass += masses[chosen];
      }
      chosen = d;
      any = true;
      if (seen_count + counts[d] >= count && seen_mass + masses[d] >= mass) break;
    }
    prefix = (prefix << bits) | chosen;
    above = shift;
  }
  return FromKey(prefix);
}

int32_t Greedy(const std::vector<float>& z, int64_t n, float max) {
  return static_cast<int32_t>(std::find(z.begin(), z.begin() + n, max) - z.begin());
}

Draw DrawWidened(int64_t n, const SampleRow& params, SamplerScratch& s) {
  const RowFacts facts = Facts(s.logits.data(), n);
  if (!facts.finite) return {};
  if (params.temperature == 0.0F) return {.id = Greedy(s.logits, n, facts.max)};

  s.mass.resize(static_cast<size_t>(n));
  s.tiles.resize(static_cast<size_t>((n + kTile - 1) / kTile));
  const float scale = InverseTemperature(params.temperature);
  Masses(s.logits.data(), facts.max, scale, n, s.mass.data(), s.tiles.data());
  double total = SumTiles(s.tiles);
  Draw draw;

  const bool top_k = params.top_k > 0 && params.top_k < n;
  const bool top_p = params.top_p < 1.0F;
  if (top_k || top_p || params.min_p > 0.0F) {
    float threshold = -INFINITY;
    if (top_k) threshold = Threshold(s, n, threshold, params.top_k, 0.0, s.counts, s.masses);
    if (top_p) {
      double mass = total;
      if (top_k) {
        mass = 0;
        for (int64_t i = 0; i < n; ++i) {
          if (s.logits[static_cast<size_t>(i)] >= threshold) mass += s.mass[static_cast<size_t>(i)];
        }
      }
      threshold = Threshold(s, n, threshold, 1, mass * params.top_p, s.counts, s.masses);
    }
    if (params.min_p > 0.0F) {
      threshold = std::max(threshold, facts.max + params.log_min_p * params.temperature);
    }
    Cut(s.logits.data(), threshold, n, s.mass.data(), s.tiles.data());
    const double kept = SumTiles(s.tiles);
    draw.log_kept = static_cast<float>(std::log(std::min(1.0, kept / total)));
    total = kept;
  }

  const double target = static_cast<double>(params.uniform) * total;
  double before = 0;
  size_t tile = 0;
  for (double with = SumGroup(s.tiles, 0); tile + kGroup < s.tiles.size() && with <= target;) {
    before = with;
    with += SumGroup(s.tiles, tile += kGroup);
  }
  // Inside the group and the tile the sum may end a rounding below theirs; the last tile, and the last token,
  // that has mass takes what is left.
  size_t last = std::min(tile + kGroup, s.tiles.size()) - 1;
  while (s.tiles[last] == 0.0F) --last;  // some tile has mass: the group's sum is above the target
  while (tile < last && before + s.tiles[tile] <= target) before += s.tiles[tile++];
  const int64_t end = std::min(n, (static_cast<int64_t>(tile) + 1) * kTile);
  for (int64_t i = static_cast<int64_t>(tile) * kTile; i < end; ++i) {
    const float e = s.mass[static_cast<size_t>(i)];
    if (e <= 0.0F) continue;
    draw.id = static_cast<int32_t>(i);
    before += e;
    if (before > target) break;
  }
  return draw;
}

}  // namespace

Draw DrawToken(const float* logits, int64_t n, const SampleRow& how, SamplerScratch& scratch) {
  scratch.logits.assign(logits, logits + n);
  return DrawWidened(n, how, scratch);
}

Draw DrawToken(const BF16* logits, int64_t n, const SampleRow& how, SamplerScratch& scratch) {
  scratch.logits.resize(static_cast<size_t>(n));
  Widen(logits, scratch.logits.data(), n);
  return DrawWidened(n, how, scratch);
}

}  // namespace tidepool::device
