// Ranks as threads of one process: sums are right, equal bits on every try, a missing rank is an error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <thread>

#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"

namespace tidepool::comm {
namespace {

class GlooGroupTest : public ::testing::Test {
 protected:
  // Runs `body` on every rank of a fresh group.
  static void Run(int size, const std::function<void(Collective&)>& body, double timeout_s = 60) {
    const auto rendezvous = std::make_shared<RendezvousTable>();
    std::vector<std::thread> ranks;
    for (int r = 0; r < size; ++r) {
      ranks.emplace_back([&, r] {
        auto group =
            MakeGlooGroup({.rendezvous = rendezvous, .rank = r, .size = size, .timeout_s = timeout_s});
        ASSERT_TRUE(group.ok()) << group.status().message();
        body(**group);
      });
    }
    for (auto& t : ranks) t.join();
  }
};

std::vector<float> Noise(int seed, size_t n) {
  std::mt19937 rng(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

TEST_F(GlooGroupTest, SumsOverRanksAndGivesTheSameBitsToAll) {
  constexpr int kRanks = 3;
  constexpr size_t kN = 10007;
  std::vector<std::vector<float>> results(2 * kRanks);
  for (int round = 0; round < 2; ++round) {
    Run(kRanks, [&](Collective& c) {
      std::vector<float> v = Noise(c.rank(), kN);
      ASSERT_TRUE(c.AllReduceSum(std::span<float>(v), "gradients").ok());
      results[static_cast<size_t>(round * kRanks + c.rank())] = std::move(v);
    });
  }
  std::vector<double> want(kN, 0);
  for (int r = 0; r < kRanks; ++r) {
    const auto v = Noise(r, kN);
    for (size_t i = 0; i < kN; ++i) want[i] += v[i];
  }
  for (size_t i = 0; i < kN; ++i) ASSERT_NEAR(results[0][i], want[i], 1e-5);
  for (const auto& other : results)
    EXPECT_EQ(std::memcmp(other.data(), results[0].data(), kN * sizeof(float)), 0);
}

// Intervals of any lengths, with elements between them that are nobody's; larger than a bucket.
std::vector<sharding::Interval> Uneven(int ranks) {
  std::vector<sharding::Interval> of_rank{{7, 700007}, {700010, 700010}, {700100, 700103}, {700110, 1300000}};
  of_rank.resize(static_cast<size_t>(ranks));
  return of_rank;
}

TEST_F(GlooGroupTest, ReduceScatterSumsInTheOrderOfTheRanks) {
  constexpr size_t kN = 1300001;
  for (const int ranks : {1, 2, 4}) {
    std::vector<std::vector<float>> results(static_cast<size_t>(ranks));
    Run(ranks, [&](Collective& c) {
      std::vector<float> v = Noise(c.rank(), kN);
      const Status done = c.ReduceScatterSum(v, Uneven(ranks), "gradients");
      ASSERT_TRUE(done.ok()) << done.message();
      results[static_cast<size_t>(c.rank())] = std::move(v);
    });
    std::vector<float> sum = Noise(0, kN);
    for (int r = 1; r < ranks; ++r) {
      const auto v = Noise(r, kN);
      for (size_t i = 0; i < kN; ++i) sum[i] += v[i];
    }
    for (int r = 0; r < ranks; ++r) {
      std::vector<float> want = Noise(r, kN);
      const sharding::Interval mine = Uneven(ranks)[static_cast<size_t>(r)];
      std::copy(sum.begin() + mine.from, sum.begin() + mine.to, want.begin() + mine.from);
      EXPECT_EQ(results[static_cast<size_t>(r)], want) << "rank " << r << " of " << ranks;
    }
  }
}

TEST_F(GlooGroupTest, AllGatherGivesEachTheIntervalsOfAll) {
  constexpr size_t kN = 1300001;
  for (const int ranks : {1, 3, 4}) {
    Run(ranks, [&](Collective& c) {
      std::vector<std::byte> bytes(kN, static_cast<std::byte>(100 + c.rank())), want = bytes;
      const auto of_rank = Uneven(ranks);
      for (size_t r = 0; r < of_rank.size(); ++r)
        std::fill(want.begin() + of_rank[r].from, want.begin() + of_rank[r].to,
                  static_cast<std::byte>(100 + r));
      const Status done = c.AllGather(std::span(bytes), of_rank, "weights");
      ASSERT_TRUE(done.ok()) << done.message();
      EXPECT_TRUE(bytes == want) << "rank " << c.rank() << " of " << ranks;
    });
  }
}

TEST_F(GlooGroupTest, ARankThatLeavesAScatterIsAnErrorThatNamesIt) {
  Run(3, [&](Collective& c) {
    if (c.rank() == 1) return;
    std::vector<float> v(1000, 1.0F);
    Status last = OkStatus();
    for (int i = 0; i < 3 && last.ok(); ++i)
      last = c.ReduceScatterSum(v, sharding::OwnedByAll(1000, 3), "gradients");
    EXPECT_THAT(last.message(), ::testing::HasSubstr("op=reduce_scatter tag=gradients"));
  });
}

TEST_F(GlooGroupTest, GathersOneNumberOfEach) {
  Run(3, [&](Collective& c) {
    const auto all = c.AllGather(uint64_t{1} << (60 + c.rank()), "digest");
    ASSERT_TRUE(all.ok());
    EXPECT_THAT(*all, ::testing::ElementsAre(uint64_t{1} << 60, uint64_t{1} << 61, uint64_t{1} << 62));
  });
}

TEST_F(GlooGroupTest, ARankThatNeverComesIsAnErrorWithinTheDeadline) {
  const auto group = MakeGlooGroup(
      {.rendezvous = std::make_shared<RendezvousTable>(), .rank = 0, .size = 3, .timeout_s = 0.5});
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(
      group.status().message(),
      ::testing::HasSubstr("rank 0 could not meet the others within 0.500000 s: rank 1, 2 did not come"));
}

TEST_F(GlooGroupTest, ARankThatLeavesIsAnErrorForTheOthers) {
  Run(2, [&](Collective& c) {
    if (c.rank() == 1) return;  // its sockets close
    std::vector<float> v(100, 1.0F);
    Status last = OkStatus();
    for (int i = 0; i < 3 && last.ok(); ++i) last = c.AllReduceSum(std::span<float>(v), "gradients");
    EXPECT_FALSE(last.ok());
    EXPECT_THAT(last.message(), ::testing::HasSubstr("op=all_reduce tag=gradients"));
  });
}

TEST_F(GlooGroupTest, TheRankThatIsWaitedForIsNamedByThoseThatWait) {
  std::vector<std::string> said(3);
  Run(
      3,
      [&](Collective& c) {
        std::vector<float> v(100, 1.0F);
        if (c.rank() == 1) {  // it is there, and does not come: as one that hangs in its own work
          std::this_thread::sleep_for(std::chrono::seconds(3));
          return;
        }
        said[static_cast<size_t>(c.rank())] = c.AllReduceSum(std::span<float>(v), "gradients").message();
      },
      1.0);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(said[static_cast<size_t>(rank)],
                ::testing::ContainsRegex("op=all_reduce tag=gradients seq=2 rank=" + std::to_string(rank) +
                                         "/3 failed after .* s, waiting for rank 1"));
  }
}

TEST_F(GlooGroupTest, AGroupThatIsOverIsLeftAtOnce) {
  const auto rendezvous = std::make_shared<RendezvousTable>();
  const auto begin = std::chrono::steady_clock::now();
  std::jthread closes([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    rendezvous->Close("another one was formed");
  });
  const auto group = MakeGlooGroup({.rendezvous = rendezvous, .rank = 0, .size = 2, .timeout_s = 30});
  EXPECT_EQ(group.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(group.status().message(), ::testing::HasSubstr("the training group is over: another one"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

}  // namespace
}  // namespace tidepool::comm
