#include "core/sharding/intervals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "core/base/rng.h"

namespace tidepool::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(OwnedTest, RanksCoverTheSpaceInOrderAndDifferByOneBlockAtMost) {
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    const auto elements = rng.Below(5000) * 64;
    const auto world = 1 + rng.Below(16);
    SCOPED_TRACE(::testing::Message() << elements << " elements, " << world << " ranks");
    int64_t next = 0, least = elements, most = 0;
    for (const Interval& i : OwnedByAll(elements, world)) {
      EXPECT_EQ(i.from, next);
      EXPECT_EQ(i.from % 64, 0);
      least = std::min(least, i.size());
      most = std::max(most, i.size());
      next = i.to;
    }
    EXPECT_EQ(next, elements);
    EXPECT_LE(most - least, 64);
  }
}

TEST(OwnedTest, APieceOfTheSpaceIsCutAsTheSpaceIs) {
  const std::vector<Interval> of_rank{{0, 128}, {128, 192}, {192, 200}, {200, 200}};
  EXPECT_EQ(Within(of_rank, {100, 150}), (std::vector<Interval>{{0, 28}, {28, 50}, {}, {}}));
  EXPECT_EQ(Within(of_rank, {150, 200}, 4), (std::vector<Interval>{{}, {0, 168}, {168, 200}, {}}));
}

// A space that is cut up anyhow.
std::vector<Interval> Division(Rng& rng, int64_t size) {
  std::vector<int64_t> cuts{0, size};
  for (int64_t n = rng.Below(15); n > 0; --n) cuts.push_back(rng.Below(size + 1));
  std::ranges::sort(cuts);
  std::vector<Interval> parts;
  for (size_t i = 1; i < cuts.size(); ++i) parts.push_back({cuts[i - 1], cuts[i]});
  rng.Shuffle(std::span(parts));
  return parts;
}

TEST(MissingTest, CountsWhatIsWantedAndNotHeldElementByElement) {
  Rng rng(11);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    const int64_t size = 1 + rng.Below(300);
    std::vector<std::vector<uint8_t>> has(2, std::vector<uint8_t>(static_cast<size_t>(size)));
    std::vector<std::vector<Interval>> of(2);
    for (size_t side = 0; side < 2; ++side) {
      for (const Interval& i : Division(rng, size)) {
        if (rng.Chance(0.4)) continue;
        of[side].push_back(i);
        for (int64_t at = i.from; at < i.to; ++at) has[side][static_cast<size_t>(at)] = 1;
      }
    }
    int64_t missing = 0;
    for (size_t at = 0; at < has[0].size(); ++at) missing += has[1][at] == 1 && has[0][at] == 0 ? 1 : 0;
    EXPECT_EQ(Missing(of[0], of[1]), missing);
  }
}

using Held = std::vector<std::vector<uint64_t>>;  // of each owner
Held Move(const Held& from, const std::vector<Interval>& sources, const std::vector<Interval>& targets) {
  Held to;
  for (const Interval& t : targets) to.emplace_back(static_cast<size_t>(t.size()));
  const auto copies = Reshard(sources, targets);
  EXPECT_TRUE(copies.ok()) << copies.status().message();
  int64_t moved = 0;
  for (const Copy& c : *copies) {
    const auto* begin = from[c.source].data() + (c.of.from - sources[c.source].from);
    std::copy(begin, begin + c.of.size(), to[c.target].data() + (c.of.from - targets[c.target].from));
    moved += c.of.size();
  }
  int64_t wanted = 0;
  for (const Interval& t : targets) wanted += t.size();
  EXPECT_EQ(moved, wanted);  // no element twice
  return to;
}

TEST(ReshardTest, ThereAndBackGivesTheSameElementsWhateverTheDivisions) {
  Rng rng(11);
  for (int round = 0; round < 300; ++round) {
    const auto size = 1 + rng.Below(4000);
    const std::vector<Interval> a = Division(rng, size);
    const std::vector<Interval> b =
        round % 2 == 0 ? Division(rng, size) : OwnedByAll(size, 1 + rng.Below(16));
    Held held;
    for (const Interval& part : a) {
      held.emplace_back(static_cast<size_t>(part.size()));
      std::iota(held.back().begin(), held.back().end(), static_cast<uint64_t>(part.from));
    }
    const Held there = Move(held, a, b);
    for (size_t i = 0; i < b.size(); ++i)
      for (size_t k = 0; k < there[i].size(); ++k)
        ASSERT_EQ(there[i][k], static_cast<uint64_t>(b[i].from) + k);
    EXPECT_EQ(Move(there, b, a), held);
  }
}

TEST(ReshardTest, OneCopyWhereverTwoIntervalsMeet) {
  const std::vector<Interval> two{{0, 128}, {128, 256}}, three{{0, 64}, {64, 192}, {192, 256}};
  const auto copies = Reshard(two, three);
  ASSERT_TRUE(copies.ok());
  EXPECT_THAT(*copies, ElementsAre(Copy{0, 0, {0, 64}}, Copy{0, 1, {64, 128}}, Copy{1, 1, {128, 192}},
                                   Copy{1, 2, {192, 256}}));
}

TEST(ReshardTest, AnElementThatIsNowhereOrTwiceIsRefused) {
  const std::vector<Interval> whole{{0, 100}};
  const auto refused = [&](const std::vector<Interval>& sources) {
    const auto copies = Reshard(sources, whole);
    EXPECT_EQ(copies.status().code(), StatusCode::kDataLoss);
    return copies.status().message();
  };
  EXPECT_THAT(refused({{0, 40}, {50, 100}}), HasSubstr("elements [40, 50) of [0, 100) are in no part"));
  EXPECT_THAT(refused({{0, 99}}), HasSubstr("elements [99, 100) of [0, 100) are in no part"));
  EXPECT_THAT(refused({}), HasSubstr("are in no part"));
  EXPECT_THAT(refused({{0, 60}, {50, 100}}), HasSubstr("elements [50, 60) of [0, 100) are in several parts"));
  EXPECT_THAT(refused({{0, 100}, {0, 100}}), HasSubstr("are in several parts"));
}

}  // namespace
}  // namespace tidepool::sharding
