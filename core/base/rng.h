#pragma once
// Random numbers that are the same on every compiler and machine.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): a counter
// in, four words out, no state. Sampling noise is keyed by (run seed; draw, position, sample), so
// a sample does not depend on batch, worker, chunking or migration. `Rng` is a stream over it,
// forked by name, so one more draw here shifts nothing there. Value types; thread-compatible.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/ids.h"

namespace tidepool {

// key: two words; counter: four words.
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// 64-bit name of a sample for noise: H(tid). Attempts of a sample share it, so a retry redraws
// the same noise.
uint64_t SampleUid(const SampleId& tid);

// One uniform in [0, 1) with 24 random bits for draw `draw` of `position` of sample `uid`.
float SampleUniform(uint64_t seed, uint64_t uid, uint32_t position, uint32_t draw);

class Rng {
 public:
  explicit Rng(uint64_t seed) : key_(seed) {}
  // An independent stream; the same (seed, name) always gives the same one.
  [[nodiscard]] Rng Fork(std::string_view name) const;
  [[nodiscard]] Rng Fork(uint64_t index) const;

  uint64_t Next();                          // 64 random bits
  double Uniform();                         // [0, 1), 53 bits
  int64_t Below(int64_t n);                 // uniform in [0, n); requires n > 0
  int64_t InRange(int64_t lo, int64_t hi);  // uniform in [lo, hi]
  double Normal();                          // mean 0, deviation 1 (Box-Muller, both used in turn)
  bool Chance(double p);                    // true with probability p

  template <typename T>
  void Shuffle(std::span<T> items) {  // Fisher-Yates from the end
    for (int64_t i = static_cast<int64_t>(items.size()) - 1; i > 0; --i) {
      const int64_t j = Below(i + 1);
      std::swap(items[static_cast<size_t>(i)], items[static_cast<size_t>(j)]);
    }
  }

 private:
  uint64_t key_;
  uint64_t counter_ = 0;
  bool has_spare_ = false;
  double spare_ = 0;
};

// Item `index` of a pseudo-random permutation of [0, n) named by `seed` (a Feistel network with
// cycle walking): a shuffled data order without a table.  requires 0 <= index < n.
int64_t PermutedIndex(int64_t index, int64_t n, uint64_t seed);

}  // namespace tidepool
