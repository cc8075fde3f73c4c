#include "core/base/rng.h"

#include <cmath>
#include <numbers>

#include "core/base/check.h"
#include "core/base/hash.h"

namespace tidepool {

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53U} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9U;
    k[1] += 0xBB67AE85U;
  }
  return c;
}

uint64_t SampleUid(const SampleId& tid) {
  uint64_t h = Mix64(static_cast<uint64_t>(tid.ordinal) + 0x74696465ULL);
  h = Mix64(h ^ static_cast<uint64_t>(static_cast<uint32_t>(tid.issue)));
  return Mix64(h ^ (static_cast<uint64_t>(static_cast<uint32_t>(tid.sample)) << 32));
}

float SampleUniform(uint64_t seed, uint64_t uid, uint32_t position, uint32_t draw) {
  const auto words = Philox({draw, position, static_cast<uint32_t>(uid), static_cast<uint32_t>(uid >> 32)},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<float>(words[0] >> 8) * 0x1.0p-24F;
}

Rng Rng::Fork(std::string_view name) const { return Rng(Mix64(key_ ^ Hash64(name))); }
Rng Rng::Fork(uint64_t index) const { return Rng(Mix64(key_ + Mix64(index + 1))); }

uint64_t Rng::Next() {
  const uint64_t n = counter_++;
  const auto w = Philox({static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0x726e67U, 0},
                        {static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32)});
  return (uint64_t{w[1]} << 32) | w[0];
}

double Rng::Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

int64_t Rng::Below(int64_t n) {
  TP_CHECK(n > 0) << "Below(" << n << ")";
  // Multiply-shift with rejection (Lemire): exactly uniform.
  const auto range = static_cast<uint64_t>(n);
  while (true) {
    const auto wide = static_cast<unsigned __int128>(Next()) * range;
    const auto low = static_cast<uint64_t>(wide);
    if (low >= (-range) % range) return static_cast<int64_t>(wide >> 64);
  }
}

int64_t Rng::InRange(int64_t lo, int64_t hi) { return lo + Below(hi - lo + 1); }

double Rng::Normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double u = 1.0 - Uniform();
  const double v = Uniform();
  const double radius = std::sqrt(-2.0 * std::log(u));
  spare_ = radius * std::sin(2.0 * std::numbers::pi * v);
  has_spare_ = true;
  return radius * std::cos(2.0 * std::numbers::pi * v);
}

bool Rng::Chance(double p) { return Uniform() < p; }

int64_t PermutedIndex(int64_t index, int64_t n, uint64_t seed) {
  TP_CHECK(index >= 0 && index < n) << index << " of " << n;
  if (n == 1) return 0;
  int bits = 2;
  while ((int64_t{1} << bits) < n) bits += 2;
  const int half = bits / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half;
    uint64_t right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (Mix64(right ^ Mix64(seed + round * 0x9E3779B97F4A7C15ULL)) & mask);
      left = right;
      right = next;
    }
    x = (left << half) | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace tidepool
