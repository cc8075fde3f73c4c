#include "core/base/weight_changes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/base/rng.h"
#include "tests/core/fuzz_seeds.h"

namespace tidepool {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Random(Rng& rng, size_t size) {
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Next());
  return bytes;
}

// What comes of coding and applying; empty: the coding would not be shorter.
void ExpectSame(const Bytes& base, const Bytes& now, int64_t word_bytes, const std::string& what) {
  std::string coded;
  if (!CodeChanges(base, now, word_bytes, coded)) return;
  EXPECT_LT(coded.size(), now.size()) << what;
  Bytes made(now.size());
  ASSERT_TRUE(ApplyChanges(std::as_bytes(std::span(coded)), base, word_bytes, made)) << what;
  EXPECT_EQ(made, now) << what;
}

TEST(WeightChangesTest, ComeBackAsTheyWereWhateverChanged) {
  Rng rng(5);
  std::vector<size_t> sizes = {1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 66, 127, 128, 131, 1000, 4099, 262144};
  for (const size_t size : sizes) {
    for (const int64_t word_bytes : {2, 4}) {
      for (const double share : {0.0, 0.001, 0.02, 0.3, 1.0}) {
        for (const bool little : {true, false}) {
          const Bytes base = Random(rng, size);
          Bytes now = base;
          for (size_t at = 0; at < size; at += static_cast<size_t>(word_bytes)) {
            if (rng.Uniform() < share) now[at] ^= static_cast<std::byte>(little ? 1 : rng.Next());
          }
          ExpectSame(base, now, word_bytes,
                     std::to_string(size) + " bytes, " + std::to_string(share) + " of words of " +
                         std::to_string(word_bytes));
        }
      }
    }
  }
}

TEST(WeightChangesTest, TakeAsFewBytesAsTheyAre) {
  Rng rng(6);
  const Bytes base = Random(rng, 1 << 20);
  std::string coded;
  ASSERT_TRUE(CodeChanges(base, base, 2, coded));
  EXPECT_TRUE(coded.empty()) << "nothing changed";
  EXPECT_FALSE(CodeChanges(base, Random(rng, 1 << 20), 2, coded)) << "everything did";
  EXPECT_FALSE(CodeChanges(base, Random(rng, 1 << 20), 4, coded));

  // As bfloat16 changes: one of a hundred, to the next value.
  Bytes now = base;
  for (size_t at = 0; at < now.size(); at += 2) {
    uint16_t word = 0;
    std::memcpy(&word, &now[at], 2);
    if (rng.Uniform() < 0.01) ++word;
    std::memcpy(&now[at], &word, 2);
  }
  ASSERT_TRUE(CodeChanges(base, now, 2, coded));
  EXPECT_LT(coded.size(), now.size() / 60) << "three bytes each at most";

  // As float32 changes: all, in the last digits.
  std::vector<float> floats((1 << 20) / 4), next(floats.size());
  for (size_t i = 0; i < floats.size(); ++i) {
    floats[i] = static_cast<float>(rng.Uniform() - 0.5) * 0.1F;
    next[i] = floats[i] + (i % 2 == 0 ? 1e-6F : -1e-6F);
  }
  ASSERT_TRUE(CodeChanges(std::as_bytes(std::span(floats)), std::as_bytes(std::span(next)), 4, coded));
  EXPECT_LT(coded.size(), now.size() * 6 / 10);
}

// From whoever it comes: it is refused, or makes something of the same size (under the sanitizers: touches
// nothing else), and is not taken for longer than it is.
TEST(WeightChangesTest, DamagedOnesAreRefusedOrMakeOtherWeights) {
  for (int64_t seed = 0; seed < FuzzSeeds(300); ++seed) {
    Rng rng(static_cast<uint64_t>(seed));
    const int64_t word_bytes = rng.Next() % 2 == 0 ? 2 : 4;
    const Bytes base = Random(rng, 1 + rng.Next() % 600);
    Bytes now = base;
    for (size_t i = 0; i < now.size() / 20 + 1; ++i) now[rng.Next() % now.size()] ^= std::byte{3};
    std::string coded;
    if (!CodeChanges(base, now, word_bytes, coded)) continue;
    for (int i = 0; i < 20; ++i) {
      std::string damaged = coded;
      const uint64_t how = rng.Next() % 3;
      if (how == 0) damaged.resize(rng.Next() % (coded.size() + 1));
      if (how == 1) damaged.append(rng.Next() % 12, static_cast<char>(rng.Next()));
      if (how == 2 && !damaged.empty())
        damaged[rng.Next() % damaged.size()] ^= static_cast<char>(1 << (rng.Next() % 8));
      Bytes made(base.size());
      (void)ApplyChanges(std::as_bytes(std::span(damaged)), base, word_bytes, made);
    }
  }
  const Bytes base(64);
  Bytes made(64);
  const auto takes = [&](std::vector<int> bytes) {
    Bytes coded;
    for (const int b : bytes) coded.push_back(static_cast<std::byte>(b));
    return ApplyChanges(coded, base, 2, made);
  };
  EXPECT_TRUE(takes({}));
  EXPECT_TRUE(takes({62, 1})) << "the last word";
  EXPECT_FALSE(takes({64, 1})) << "the one after it";
  EXPECT_TRUE(takes({1, 1, 1, 1})) << "two in a row";
  EXPECT_FALSE(takes({63, 1, 1, 1})) << "two at the end";
  EXPECT_FALSE(takes({0})) << "a change is missing";
  EXPECT_FALSE(takes({0, 0x80})) << "a byte is missing";
  EXPECT_TRUE(takes({0, 0xff, 0xff, 3}));
  EXPECT_FALSE(takes({0, 0x80, 0x80, 4})) << "larger than a word";
  EXPECT_FALSE(takes({0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}));
  EXPECT_FALSE(takes({62, 1, 0, 1})) << "behind the last word";
}

}  // namespace
}  // namespace tidepool
