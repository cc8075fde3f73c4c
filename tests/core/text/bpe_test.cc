#include "core/text/bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "core/base/rng.h"

namespace tidepool::text {
namespace {

// The definition: merge the pair of lowest rank, leftmost first, until none has a rank.
std::vector<int32_t> Slow(const std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>>& ranks,
                          std::vector<int32_t> symbols) {
  while (true) {
    int32_t best_rank = INT32_MAX;
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second.first < best_rank) {
        best_rank = found->second.first;
        best = i;
      }
    }
    if (best_rank == INT32_MAX) return symbols;
    symbols[best] = ranks.at({symbols[best], symbols[best + 1]}).second;
    symbols.erase(symbols.begin() + static_cast<int64_t>(best) + 1);
  }
}

// Three letters and random merges of what there is so far.
struct RandomBpe {
  explicit RandomBpe(uint64_t seed) {
    Rng rng(seed);
    std::vector<std::string> bytes = {"a", "b", "c"};
    std::vector<BpeMerge> merges;
    while (bytes.size() < 60) {
      const auto left = static_cast<int32_t>(rng.Below(static_cast<int64_t>(bytes.size())));
      const auto right = static_cast<int32_t>(rng.Below(static_cast<int64_t>(bytes.size())));
      const std::string both = bytes[static_cast<size_t>(left)] + bytes[static_cast<size_t>(right)];
      bool known = both.size() > 12;
      for (const std::string& token : bytes) known = known || token == both;
      if (known) continue;
      const auto id = static_cast<int32_t>(bytes.size());
      ranks[{left, right}] = {static_cast<int32_t>(merges.size()), id};
      merges.push_back({left, right, id});
      bytes.push_back(both);
    }
    std::vector<BpeToken> tokens;
    for (size_t i = 0; i < bytes.size(); ++i) tokens.push_back({bytes[i], static_cast<int32_t>(i)});
    bpe = Bpe::Create(std::move(tokens), merges, {});
  }
  std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>> ranks;
  std::unique_ptr<Bpe> bpe;
};

TEST(BpeTest, ShortAndLongWordsEqualTheDefinition) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const RandomBpe random(seed);
    Rng rng(1000 + seed);
    for (int i = 0; i < 60; ++i) {
      std::string word;
      std::vector<int32_t> symbols;
      for (int64_t k = rng.InRange(1, i % 2 == 0 ? 30 : 200); k > 0; --k) {
        symbols.push_back(static_cast<int32_t>(rng.Below(3)));
        word.push_back(static_cast<char>('a' + symbols.back()));
      }
      std::vector<int32_t> ids;
      random.bpe->Encode(word, &ids);
      ASSERT_EQ(ids, Slow(random.ranks, symbols)) << "seed " << seed << ", word " << word;
    }
  }
}

TEST(BpeTest, AWordOfAMillionBytesTakesNoQuadraticTime) {
  const RandomBpe random(1);
  std::string word;
  Rng rng(2);
  for (int i = 0; i < 1'000'000; ++i) word.push_back(static_cast<char>('a' + rng.Below(3)));
  std::vector<int32_t> ids;
  random.bpe->Encode(word, &ids);  // minutes if it were
  EXPECT_GT(ids.size(), 1000U);
}

TEST(BpeTest, IgnoreMergesKeepsAWholeWord) {
  const std::vector<BpeToken> tokens = {{"a", 0}, {"b", 1}, {"ab", 2}, {"abab", 3}};
  const std::vector<BpeMerge> merges = {{0, 1, 2}};
  std::vector<int32_t> ids;
  Bpe::Create(tokens, merges, {})->Encode("abab", &ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 2}));
  ids.clear();
  Bpe::Create(tokens, merges, {.ignore_merges = true, .unknown_id = {}, .fuse_unknown = false})
      ->Encode("abab", &ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{3}));
}

TEST(BpeTest, UnknownBytesAreLeftOutOrNamed) {
  const std::vector<BpeToken> tokens = {{"a", 0}};
  std::vector<int32_t> ids;
  Bpe::Create(tokens, {}, {})->Encode("axya", &ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 0}));
  ids.clear();
  Bpe::Create(tokens, {}, {.ignore_merges = false, .unknown_id = 7, .fuse_unknown = false})
      ->Encode("axya", &ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 7, 7, 0}));
  ids.clear();
  Bpe::Create(tokens, {}, {.ignore_merges = false, .unknown_id = 7, .fuse_unknown = true})
      ->Encode("axya", &ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 7, 0}));
}

}  // namespace
}  // namespace tidepool::text
