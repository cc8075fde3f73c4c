#include "core/train/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/base/rng.h"

namespace tidepool::train {
namespace {

Row MakeRow(int64_t gid, std::vector<int32_t> prompt, std::vector<int32_t> response) {
  Row r;
  r.gid = GroupId{gid};
  r.prompt = std::move(prompt);
  r.response = std::move(response);
  return r;
}
std::vector<int64_t> All(const std::vector<Row>& rows) {
  std::vector<int64_t> places(rows.size());
  std::iota(places.begin(), places.end(), int64_t{0});
  return places;
}

// What packed token `t` sees, as ids in order of position.
std::vector<int32_t> Seen(const PackedBatch& b, int32_t t) {
  std::vector<int32_t> seen;
  auto run = static_cast<size_t>(b.first_run[static_cast<size_t>(t)]);
  while (static_cast<int32_t>(seen.size()) < b.lengths[static_cast<size_t>(t)]) {
    for (int32_t i = 0;
         i < b.runs[run].count && static_cast<int32_t>(seen.size()) < b.lengths[static_cast<size_t>(t)];
         ++i) {
      seen.push_back(b.ids[static_cast<size_t>(b.runs[run].start + i)]);
    }
    ++run;
  }
  return seen;
}

void ExpectEveryPredictionSeesItsPast(const std::vector<Row>& rows, const PackedBatch& b) {
  for (size_t k = 0; k < b.rows.size(); ++k) {
    const Row& row = rows[static_cast<size_t>(b.rows[k])];
    ASSERT_EQ(b.pair_of[k].size(), row.response.size());
    for (size_t t = 0; t < row.response.size(); ++t) {
      std::vector<int32_t> past = row.prompt;
      past.insert(past.end(), row.response.begin(), row.response.begin() + static_cast<int64_t>(t));
      const auto pair = static_cast<size_t>(b.pair_of[k][t]);
      EXPECT_EQ(Seen(b, b.sources[pair]), past);
      EXPECT_EQ(b.positions[static_cast<size_t>(b.sources[pair])], static_cast<int32_t>(past.size()) - 1);
      EXPECT_EQ(b.targets[pair], row.response[t]);
    }
  }
}

TEST(PackTest, SharesPromptsAndBeginningsAndSkipsLastTokens) {
  const std::vector<Row> rows = {MakeRow(1, {1, 2, 3}, {4, 5, 6}), MakeRow(1, {1, 2, 3}, {4, 5, 7}),
                                 MakeRow(1, {1, 2, 3}, {4, 5, 6}), MakeRow(1, {1, 2, 3}, {9}),
                                 MakeRow(2, {1, 2, 3}, {4})};
  const PackedBatch b = Pack(rows, All(rows));
  // Group 1: prompt 1 2 3, then 4 5. Group 2 begins alike.
  EXPECT_EQ(b.ids, (std::vector<int32_t>{1, 2, 3, 4, 5}));
  ExpectEveryPredictionSeesItsPast(rows, b);
  EXPECT_EQ(b.pair_of[0], b.pair_of[2]);
  EXPECT_EQ(b.sources.size(), 5U);  // 4, 5, 6, 7, 9, of which group 2 has 4 as well
}

TEST(PackTest, HoldsOnRandomTrees) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Row> rows;
    for (int64_t g = 0; g < 1 + rng.Below(3); ++g) {
      std::vector<int32_t> prompt;
      for (int64_t i = 0; i < 1 + rng.Below(4); ++i) prompt.push_back(static_cast<int32_t>(rng.Below(3)));
      for (int64_t s = 0; s < 1 + rng.Below(5); ++s) {
        std::vector<int32_t> response;
        for (int64_t i = 0; i < rng.Below(6); ++i) response.push_back(static_cast<int32_t>(rng.Below(2)));
        rows.push_back(MakeRow(g, prompt, response));
      }
    }
    const PackedBatch b = Pack(rows, All(rows));
    ExpectEveryPredictionSeesItsPast(rows, b);
    // No past is computed twice inside a group.
    std::set<std::pair<int64_t, std::vector<int32_t>>> pasts;
    for (size_t k = 0; k < b.rows.size(); ++k) {
      for (const int32_t pair : b.pair_of[k]) {
        pasts.insert({b.sources[static_cast<size_t>(pair)], Seen(b, b.sources[static_cast<size_t>(pair)])});
      }
    }
    std::set<int64_t> sources;
    for (const auto& [source, past] : pasts) EXPECT_TRUE(sources.insert(source).second);
  }
}

TEST(MicroBatchesTest, FirstFitDecreasingKeepsGroupsTogether) {
  std::vector<Row> rows;
  const auto group = [&](int64_t gid, int32_t prompt, std::vector<int32_t> responses) {
    for (size_t i = 0; i < responses.size(); ++i) {
      std::vector<int32_t> response;
      for (int32_t t = 0; t < responses[i]; ++t) response.push_back(static_cast<int32_t>(100 * i) + t);
      rows.push_back(MakeRow(gid, std::vector<int32_t>(static_cast<size_t>(prompt), 1), response));
    }
  };
  group(1, 4, {3, 3});  // 4 + 2 + 2 = 8
  group(2, 10, {6});    // 15
  group(3, 5, {3});     // 7
  group(4, 2, {11});    // 12
  const auto micros = MicroBatches(rows, All(rows), 20);
  ASSERT_TRUE(micros.ok());
  // 15 alone, 12 + 8, 7 after 15 does not fit (22), after 20 neither.
  EXPECT_EQ(*micros, (std::vector<std::vector<int64_t>>{{2}, {0, 1, 4}, {3}}));
}

TEST(MicroBatchesTest, CutsAGroupAboveTheBudgetBetweenRows) {
  std::vector<Row> rows;
  for (int32_t i = 0; i < 5; ++i)
    rows.push_back(MakeRow(1, {1, 2, 3, 4}, {10 + i, 20 + i, 30 + i, 40}));  // 4 + 3 each
  const auto micros = MicroBatches(rows, All(rows), 10);
  ASSERT_TRUE(micros.ok());
  std::vector<int64_t> seen;
  for (const auto& micro : *micros) {
    EXPECT_LE(Pack(rows, micro).ids.size(), 10U);
    seen.insert(seen.end(), micro.begin(), micro.end());
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, All(rows));
}

TEST(MicroBatchesTest, RefusesARowAboveTheBudgetWithTheNumbers) {
  const std::vector<Row> rows = {MakeRow(1, std::vector<int32_t>(9, 1), {1, 2, 3})};
  const auto micros = MicroBatches(rows, All(rows), 10);
  ASSERT_EQ(micros.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(micros.status().message().find("9 prompt and 3 response"), std::string::npos);
  EXPECT_NE(micros.status().message().find("micro_batch_tokens = 10"), std::string::npos);
}

TEST(SplitGroupsTest, NeverCutsAGroup) {
  std::vector<Row> rows;
  for (int64_t g = 0; g < 5; ++g) {
    for (int i = 0; i < 3; ++i) rows.push_back(MakeRow(g, {1}, {2}));
  }
  const auto parts = SplitGroups(rows, 2);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].size(), 6U);
  EXPECT_EQ(parts[1].size(), 9U);
  EXPECT_EQ(SplitGroups(rows, 9).size(), 5U);
}

}  // namespace
}  // namespace tidepool::train
