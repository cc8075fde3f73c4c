#include "core/train/shared_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "core/sharding/intervals.h"

namespace tidepool::train {
namespace {

constexpr int64_t kElements = 64 * 1000;

std::unique_ptr<SharedWeights> Filled(uint8_t value) {
  auto weights = std::move(SharedWeights::Create(kElements, 2)).value();
  std::ranges::fill(weights->arena(), std::byte{value});
  return weights;
}

// All of them as the ranks of a new group. `folder`: empty: they exchange by sockets.
std::vector<Status> ShareAll(const std::vector<SharedWeights*>& ranks, const std::string& folder) {
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<Status> done(ranks.size());
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      auto group = comm::MakeGroup({.rendezvous = rendezvous,
                                    .rank = static_cast<int>(rank),
                                    .size = static_cast<int>(ranks.size()),
                                    .shared_folder = folder});
      ASSERT_TRUE(group.ok()) << group.status().message();
      done[rank] = ranks[rank]->Share(**group, ::testing::TempDir());
    });
  }
  return threads.clear(), done;
}

// What a rank sees of the interval of `of`, if it is one value.
int Seen(const SharedWeights& weights, int64_t of, int64_t ranks) {
  const sharding::Interval i = sharding::Owned(kElements, {of, ranks});
  const auto bytes =
      weights.arena().subspan(static_cast<size_t>(2 * i.from), static_cast<size_t>(2 * i.size()));
  return std::ranges::count(bytes, bytes[0]) == std::ssize(bytes) ? static_cast<int>(bytes[0]) : -1;
}

TEST(SharedWeightsTest, EachRankGivesItsIntervalAndWritesItForAll) {
  const auto a = Filled(1), b = Filled(2), c = Filled(3);
  for (const Status& done : ShareAll({a.get(), b.get(), c.get()}, ::testing::TempDir()))
    ASSERT_TRUE(done.ok()) << done.message();
  for (const auto* rank : {&a, &b, &c}) {
    EXPECT_EQ((*rank)->own_bytes(), 0);
    for (int64_t of = 0; of < 3; ++of) EXPECT_EQ(Seen(**rank, of, 3), of + 1);
  }
  const sharding::Interval of_b = sharding::Owned(kElements, {1, 3});
  std::ranges::fill(
      b->arena().subspan(static_cast<size_t>(2 * of_b.from), static_cast<size_t>(2 * of_b.size())),
      std::byte{7});
  EXPECT_EQ(Seen(*a, 1, 3), 7);
  EXPECT_EQ(Seen(*c, 1, 3), 7);
  ASSERT_TRUE(a->Leave().ok());
  EXPECT_EQ(Seen(*a, 1, 3), 0);
  EXPECT_EQ(a->own_bytes(), 2 * kElements);
  EXPECT_EQ(Seen(*b, 0, 3), 1) << "what one has left stays with the others";
}

// A worker that hangs in its update is taken for lost; it may go on when the others have a new one.
TEST(SharedWeightsTest, ARankThatWasTakenForLostWritesWhereNobodyReads) {
  const auto a = Filled(1), hangs = Filled(2), comes = Filled(3);
  for (const Status& done : ShareAll({a.get(), hangs.get()}, ::testing::TempDir())) ASSERT_TRUE(done.ok());
  for (const Status& done : ShareAll({a.get(), comes.get()}, ::testing::TempDir())) ASSERT_TRUE(done.ok());
  std::ranges::fill(hangs->arena(), std::byte{9});
  for (const auto* rank : {&a, &comes}) {
    EXPECT_EQ(Seen(**rank, 0, 2), 1);
    EXPECT_EQ(Seen(**rank, 1, 2), 3);
  }
  // The same two in another group keep what they have.
  const std::byte* at = a->arena().data();
  for (const Status& done : ShareAll({a.get(), comes.get()}, ::testing::TempDir())) ASSERT_TRUE(done.ok());
  EXPECT_EQ(a->arena().data(), at);
  EXPECT_EQ(Seen(*a, 1, 2), 3);
}

TEST(SharedWeightsTest, RanksOfSeveralHostsAreRefused) {
  const auto a = Filled(1), b = Filled(2);
  for (const Status& done : ShareAll({a.get(), b.get()}, "")) {
    EXPECT_EQ(done.code(), StatusCode::kUnimplemented);
    EXPECT_THAT(
        done.message(),
        ::testing::HasSubstr("the slots that train have to share a host's memory, and these have sockets"));
  }
  EXPECT_EQ(Seen(*a, 1, 2), 1);
}

}  // namespace
}  // namespace tidepool::train
