// Ranks as threads of one process: sums are right, equal bits on every try, a missing rank is an error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
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
