// Ranks as threads of one process, by sockets and by shared memory: sums are right, equal bits on every try,
// a missing rank is an error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <thread>

#include "core/comm/collective.h"
#include "core/comm/host_group.h"
#include "core/comm/rendezvous_table.h"

namespace tidepool::comm {
namespace {

// As a host's is: in shared memory, where there is some.
struct HostFolder {
  std::string path;
  HostFolder() {
    path = (std::filesystem::exists("/dev/shm") ? "/dev/shm" : ::testing::TempDir()) + "/group_test-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
  }
  ~HostFolder() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
    return files;
  }
};

enum class By : uint8_t { kSockets, kMemory };

class GroupTest : public ::testing::TestWithParam<By> {
 protected:
  // Empty for groups that are to use sockets.
  [[nodiscard]] std::string Folder() const { return GetParam() == By::kMemory ? folder_.path : ""; }

  // Runs `body` on every rank of a fresh group.
  void Run(int size, const std::function<void(Collective&)>& body, double timeout_s = 60) const {
    const auto rendezvous = std::make_shared<RendezvousTable>();
    std::vector<std::thread> ranks;
    for (int r = 0; r < size; ++r) {
      ranks.emplace_back([&, r] {
        auto group = MakeGroup({.rendezvous = rendezvous,
                                .rank = r,
                                .size = size,
                                .shared_folder = Folder(),
                                .timeout_s = timeout_s});
        ASSERT_TRUE(group.ok()) << group.status().message();
        body(**group);
      });
    }
    for (auto& t : ranks) t.join();
  }
  HostFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Ways, GroupTest, ::testing::Values(By::kSockets, By::kMemory),
                         [](const auto& info) { return info.param == By::kMemory ? "Memory" : "Sockets"; });

std::vector<float> Noise(int seed, size_t n) {
  std::mt19937 rng(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

TEST_P(GroupTest, SumsOverRanksAndGivesTheSameBitsToAll) {
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

// A rank that has nothing to do until another one says what looks whether that one has begun.
TEST_P(GroupTest, ARankSeesThatAnotherOneHasBegunOrIsGone) {
  Run(2, [&](Collective& c) {
    using std::chrono::milliseconds;
    if (c.rank() == 0) {
      for (int i = 0; i < 3; ++i) {
        std::this_thread::sleep_for(milliseconds(30));
        ASSERT_TRUE(c.AllGather(std::string("go ") + std::to_string(i), "order").ok());
      }
      return;  // and leaves
    }
    if (GetParam() == By::kSockets) {
      EXPECT_EQ(c.Begun(0, milliseconds(1)).status().code(), StatusCode::kUnimplemented);
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(c.AllGather(std::string(), "order").ok());
      return;
    }
    for (int i = 0; i < 3; ++i) {
      StatusOr<bool> begun = c.Begun(0, milliseconds(1));
      for (int looks = 0; begun.ok() && !*begun && looks < 10000; ++looks)
        begun = c.Begun(0, milliseconds(1));
      ASSERT_TRUE(begun.ok() && *begun);
      EXPECT_EQ((*c.AllGather(std::string(), "order"))[0], "go " + std::to_string(i));
    }
    StatusOr<bool> begun = c.Begun(0, milliseconds(1));
    for (int looks = 0; begun.ok() && looks < 10000; ++looks) begun = c.Begun(0, milliseconds(1));
    EXPECT_EQ(begun.status().code(), StatusCode::kUnavailable);
    EXPECT_FALSE(c.AllGather(std::string(), "order").ok());
  });
}

// Intervals of any lengths, with elements between them that are nobody's; larger than a bucket.
std::vector<sharding::Interval> Uneven(int ranks) {
  std::vector<sharding::Interval> of_rank{{7, 700007}, {700010, 700010}, {700100, 700103}, {700110, 1300000}};
  of_rank.resize(static_cast<size_t>(ranks));
  return of_rank;
}

// Of a rank's values in place.
Status Scatter(Collective& c, std::span<float> values, const std::vector<sharding::Interval>& of_rank) {
  const sharding::Interval& mine = of_rank[static_cast<size_t>(c.rank())];
  return c.ReduceScatterSum(
      {.values = values,
       .of_rank = of_rank,
       .into = values.subspan(static_cast<size_t>(mine.from), static_cast<size_t>(mine.size()))},
      "gradients");
}

TEST_P(GroupTest, ReduceScatterSumsInTheOrderOfTheRanks) {
  constexpr size_t kN = 1300001;
  for (const int ranks : {1, 2, 4}) {
    std::vector<std::vector<float>> results(static_cast<size_t>(ranks));
    Run(ranks, [&](Collective& c) {
      std::vector<float> v = Noise(c.rank(), kN);
      const Status done = Scatter(c, v, Uneven(ranks));
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

// Every rank may be the one that has nothing: the others get their sums without memory for values, which go
// where they were asked for.
TEST_P(GroupTest, RanksWithoutValuesGetTheirSumsAllTheSame) {
  constexpr size_t kN = 1300001;
  constexpr int kRanks = 4;
  const std::vector<sharding::Interval> of_rank = Uneven(kRanks);
  for (unsigned which = 0; which < 16; which += which == 0 ? 1 : 3) {
    SCOPED_TRACE(which);
    std::vector<uint8_t> has;
    std::vector<float> sum(kN, 0.0F);
    bool first = true;
    for (int r = 0; r < kRanks; ++r) {
      has.push_back((which >> r & 1) != 0 ? 1 : 0);
      if (has.back() == 0) continue;
      const auto v = Noise(r, kN);
      for (size_t i = 0; i < kN; ++i) sum[i] = first ? v[i] : sum[i] + v[i];
      first = false;
    }
    Run(kRanks, [&](Collective& c) {
      const bool mine = has[static_cast<size_t>(c.rank())] != 0;
      const std::vector<float> v = mine ? Noise(c.rank(), kN) : std::vector<float>();
      const sharding::Interval& own = of_rank[static_cast<size_t>(c.rank())];
      std::vector<float> into(static_cast<size_t>(own.size()), NAN);
      const Status done =
          c.ReduceScatterSum({.values = v, .has = has, .of_rank = of_rank, .into = into}, "gradients");
      ASSERT_TRUE(done.ok()) << done.message();
      EXPECT_TRUE(std::equal(into.begin(), into.end(), sum.begin() + own.from)) << "rank " << c.rank();
      EXPECT_TRUE(!mine || v == Noise(c.rank(), kN));
    });
  }
}

TEST_P(GroupTest, AllGatherGivesEachTheIntervalsOfAll) {
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

// What every rank gives every other one: of any length, of none now and then, of more than an outbox, with
// gaps between, in any order.
TEST_P(GroupTest, AllToAllGivesEachWhatTheOthersHaveForIt) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  for (const int ranks : {1, 2, 3, 4}) {
    Run(ranks, [&](Collective& c) {
      std::mt19937 same(seed + static_cast<uint32_t>(ranks));
      for (int round = 0; round < 12; ++round) {
        const auto n = static_cast<size_t>(ranks), me = static_cast<size_t>(c.rank());
        std::vector<std::vector<std::vector<std::byte>>> all(n, std::vector<std::vector<std::byte>>(n));
        for (auto& of_rank : all)
          for (auto& bytes : of_rank) {
            bytes.resize(same() % 3 == 0 ? 0 : same() % (round == 5 ? 1'500'000 : 3000));
            std::mt19937 values(same());
            for (std::byte& b : bytes) b = static_cast<std::byte>(values());
          }
        std::vector<std::byte> out;
        std::vector<sharding::Interval> to(n), from(n);
        for (size_t i = n; i-- > 0;) {  // the last rank's first
          out.resize(out.size() + 5);
          to[i].from = static_cast<int64_t>(out.size());
          out.insert(out.end(), all[me][i].begin(), all[me][i].end());
          to[i].to = static_cast<int64_t>(out.size());
        }
        int64_t end = 0;
        for (size_t i = 0; i < n; ++i) {
          from[i] = {end, end + static_cast<int64_t>(all[i][me].size())};
          end = from[i].to + 3;
        }
        std::vector<std::byte> in(static_cast<size_t>(end));
        const Status done = c.AllToAll({.out = out, .to = to, .in = in, .from = from}, "rows");
        ASSERT_TRUE(done.ok()) << done.message();
        for (size_t i = 0; i < n; ++i)
          ASSERT_TRUE(std::equal(all[i][me].begin(), all[i][me].end(), in.begin() + from[i].from))
              << "round " << round << ", rank " << me << " of " << ranks << " from rank " << i;
      }
    });
  }
}

TEST_P(GroupTest, RanksThatDisagreeAboutWhatOneGivesAreTold) {
  Run(
      2,
      [&](Collective& c) {
        std::vector<std::byte> out(100), in(100);
        const std::vector<sharding::Interval> ten(2, {0, 10}), twenty(2, {0, 20});
        const Status done =
            c.AllToAll({.out = out, .to = ten, .in = in, .from = c.rank() == 0 ? ten : twenty}, "rows");
        if (c.rank() == 1) {
          EXPECT_EQ(done.code(), StatusCode::kInternal);
          EXPECT_THAT(done.message(),
                      ::testing::HasSubstr("op=all_to_all tag=rows rank=1/2: rank 0 has 10 bytes "
                                           "for this one, which awaits 20"));
        }
      },
      /*timeout_s=*/5);
}

TEST_P(GroupTest, ARankThatLeavesAnAllToAllIsAnErrorThatNamesTheOperation) {
  Run(3, [&](Collective& c) {
    if (c.rank() == 1) return;
    std::vector<std::byte> out(1000), in(3000);
    const std::vector<sharding::Interval> to(3, {0, 1000}), from = {{0, 1000}, {1000, 2000}, {2000, 3000}};
    Status last = OkStatus();
    for (int i = 0; i < 3 && last.ok(); ++i)
      last = c.AllToAll({.out = out, .to = to, .in = in, .from = from}, "rows");
    EXPECT_THAT(last.message(), ::testing::HasSubstr("op=all_to_all tag=rows"));
  });
}

TEST_P(GroupTest, ARankThatLeavesAScatterIsAnErrorThatNamesIt) {
  Run(3, [&](Collective& c) {
    if (c.rank() == 1) return;
    std::vector<float> v(1000, 1.0F);
    Status last = OkStatus();
    for (int i = 0; i < 3 && last.ok(); ++i) last = Scatter(c, v, sharding::OwnedByAll(1000, 3));
    EXPECT_THAT(last.message(), ::testing::HasSubstr("op=reduce_scatter tag=gradients"));
  });
}

TEST_P(GroupTest, GathersOneNumberOfEach) {
  Run(3, [&](Collective& c) {
    const auto all = c.AllGather(uint64_t{1} << (60 + c.rank()), "digest");
    ASSERT_TRUE(all.ok());
    EXPECT_THAT(*all, ::testing::ElementsAre(uint64_t{1} << 60, uint64_t{1} << 61, uint64_t{1} << 62));
  });
}

TEST_P(GroupTest, ARankThatNeverComesIsAnErrorWithinTheDeadline) {
  const auto group = MakeGroup({.rendezvous = std::make_shared<RendezvousTable>(),
                                .rank = 0,
                                .size = 3,
                                .shared_folder = Folder(),
                                .timeout_s = 0.5});
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(
      group.status().message(),
      ::testing::HasSubstr("rank 0 could not meet the others within 0.500000 s: rank 1, 2 did not come"));
}

TEST_P(GroupTest, ARankThatLeavesIsAnErrorForTheOthers) {
  Run(2, [&](Collective& c) {
    if (c.rank() == 1) return;  // its sockets close
    std::vector<float> v(100, 1.0F);
    Status last = OkStatus();
    for (int i = 0; i < 3 && last.ok(); ++i) last = c.AllReduceSum(std::span<float>(v), "gradients");
    EXPECT_FALSE(last.ok());
    EXPECT_THAT(last.message(), ::testing::HasSubstr("op=all_reduce tag=gradients"));
  });
}

TEST_P(GroupTest, TheRankThatIsWaitedForIsNamedByThoseThatWait) {
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
                ::testing::ContainsRegex("op=all_reduce tag=gradients seq=[12] rank=" + std::to_string(rank) +
                                         "/3 failed after .* s, waiting for rank 1"));
  }
}

TEST_P(GroupTest, AGroupThatIsOverIsLeftAtOnce) {
  const auto rendezvous = std::make_shared<RendezvousTable>();
  const auto begin = std::chrono::steady_clock::now();
  std::jthread closes([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    rendezvous->Close("another one was formed");
  });
  const auto group =
      MakeGroup({.rendezvous = rendezvous, .rank = 0, .size = 2, .shared_folder = Folder(), .timeout_s = 30});
  EXPECT_EQ(group.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(group.status().message(), ::testing::HasSubstr("the training group is over: another one"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST_P(GroupTest, SumsBfloat16InFloat32AndRoundsOnce) {
  constexpr size_t kN = 70001;
  const auto rounded = [](float x) {  // by its definition
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t low = bits & 0xffffU, high = bits >> 16;
    return static_cast<uint16_t>(low > 0x8000U || (low == 0x8000U && (high & 1U) != 0) ? high + 1 : high);
  };
  const auto wide = [](uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); };
  std::vector<std::vector<uint16_t>> of_rank(3);
  for (int r = 0; r < 3; ++r)
    for (const float x : Noise(40 + r, kN)) of_rank[static_cast<size_t>(r)].push_back(rounded(x));
  of_rank[1][3] = 0x7fc0;  // NaN
  Run(3, [&](Collective& c) {
    std::vector<uint16_t> mine = of_rank[static_cast<size_t>(c.rank())];
    ASSERT_TRUE(c.AllReduceSum(std::span<uint16_t>(mine), "hidden").ok());
    for (size_t i = 0; i < kN; ++i) {
      const float sum = wide(of_rank[0][i]) + wide(of_rank[1][i]) + wide(of_rank[2][i]);
      if (i == 3)
        EXPECT_TRUE(std::isnan(wide(mine[i])));
      else
        ASSERT_EQ(mine[i], rounded(sum)) << i;
    }
  });
}

// Ranks have one sum or several, of which some are in other ranks' nodes of the tree.
TEST_P(GroupTest, SumsByTheTreeWhateverRankHasItsNodes) {
  using Nodes = std::vector<std::vector<sharding::SumNode>>;
  const std::vector<Nodes> trees = {{{{0, 2}}, {{2, 2}}},
                                    {{{0, 1}}, {{1, 1}}, {{2, 1}}},
                                    {{{0, 1}}, {{1, 1}}, {{2, 1}}, {{3, 1}}},
                                    {{{0, 2}, {2, 1}}, {{3, 1}, {4, 2}}},
                                    {{{0, 1}}, {{1, 1}, {2, 1}}, {{3, 1}}}};
  for (const Nodes& nodes : trees) {
    const auto ranks = static_cast<int>(nodes.size());
    for (const size_t n : {size_t{5}, size_t{3001}, size_t{400003}}) {
      const auto of = [&](size_t rank) { return Noise(static_cast<int>(rank), n * nodes[rank].size()); };
      std::vector<std::vector<float>> all;
      std::vector<sharding::SumNode> flat;
      for (size_t rank = 0; rank < nodes.size(); ++rank) {
        const std::vector<float> v = of(rank);
        for (size_t i = 0; i < nodes[rank].size(); ++i) {
          flat.push_back(nodes[rank][i]);
          all.emplace_back(v.begin() + static_cast<int64_t>(i * n),
                           v.begin() + static_cast<int64_t>((i + 1) * n));
        }
      }
      sharding::AddUpTree(flat, [&](size_t left, size_t right) {
        for (size_t i = 0; i < n; ++i) all[left][i] += all[right][i];
      });
      Run(ranks, [&](Collective& c) {
        const std::vector<float> mine = of(static_cast<size_t>(c.rank()));
        std::vector<float> sum(n);
        ASSERT_TRUE(c.AllReduceTree({nodes, mine}, std::span<float>(sum), "feed-forward").ok());
        EXPECT_EQ(std::memcmp(sum.data(), all[0].data(), n * sizeof(float)), 0) << ranks << " ranks, " << n;
        std::vector<uint16_t> narrow(n);
        ASSERT_TRUE(c.AllReduceTree({nodes, mine}, std::span<uint16_t>(narrow), "feed-forward").ok());
        for (size_t i = 0; i < n; ++i) {
          const auto bits = std::bit_cast<uint32_t>(sum[i]);
          ASSERT_EQ(narrow[i], (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
        }
      });
    }
  }
}

TEST_P(GroupTest, GathersBytesOfAnyLength) {
  const auto text = [](int rank) {
    const size_t sizes[] = {0, 3'500'001, 17};
    return std::string(sizes[rank], static_cast<char>('a' + rank));
  };
  Run(3, [&](Collective& c) {
    for (int round = 0; round < 3; ++round) {
      const auto all = c.AllGather(text(c.rank()), "outlines");
      ASSERT_TRUE(all.ok()) << all.status().message();
      for (int rank = 0; rank < 3; ++rank)
        EXPECT_TRUE((*all)[static_cast<size_t>(rank)] == text(rank)) << rank;
    }
  });
}

// Any operations behind each other, of sizes around those of an outbox; ranks that are late now and then.
TEST_P(GroupTest, AnyOrderOfOperationsGivesWhatOneRankWouldCompute) {
  constexpr int kRanks = 4;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  Run(kRanks, [&](Collective& c) {
    std::mt19937 same(seed), own(seed + static_cast<uint32_t>(c.rank()));
    for (int op = 0; op < 60; ++op) {
      const size_t n = same() % 3 == 0 ? same() % 600'000 : same() % 3000;
      std::vector<std::vector<double>> of_rank;
      for (int r = 0; r < kRanks; ++r) {
        of_rank.emplace_back();
        for (size_t i = 0; i < n; ++i) of_rank.back().push_back(static_cast<double>(same() % 1000));
      }
      std::vector<double> mine = of_rank[static_cast<size_t>(c.rank())], sum(n, 0.0);
      for (const auto& v : of_rank)
        for (size_t i = 0; i < n; ++i) sum[i] += v[i];
      if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(own() % 70));
      const auto owned = sharding::OwnedByAll(static_cast<int64_t>(n), kRanks);
      switch (same() % 3) {
        case 0: {
          ASSERT_TRUE(c.AllReduceSum(std::span<double>(mine), "sums").ok());
          ASSERT_TRUE(mine == sum) << "operation " << op << " of " << n;
          break;
        }
        case 1: {
          std::vector<float> values(mine.begin(), mine.end());
          ASSERT_TRUE(Scatter(c, values, owned).ok());
          const sharding::Interval of = owned[static_cast<size_t>(c.rank())];
          for (int64_t i = of.from; i < of.to; ++i)
            ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<float>(sum[static_cast<size_t>(i)])) << op;
          break;
        }
        default: {
          const auto all = c.AllGather(uint64_t{same()} + static_cast<uint64_t>(c.rank()), "digest");
          ASSERT_TRUE(all.ok()) << all.status().message();
          for (size_t r = 1; r < kRanks; ++r) ASSERT_EQ((*all)[r], (*all)[0] + r);
        }
      }
    }
  });
}

TEST_P(GroupTest, LeavesNothingInTheFolder) {
  Run(2, [&](Collective& c) {
    double one = 1;
    ASSERT_TRUE(c.AllReduceSum(std::span<double>(&one, 1), "sums").ok());
    EXPECT_THAT(folder_.Files(), ::testing::IsEmpty());
  });
}

TEST(HostGroupTest, RanksThatDoNotAllSeeTheMemoryUseSockets) {
  const auto rendezvous = std::make_shared<RendezvousTable>();
  const HostFolder here, elsewhere;
  struct Case {
    int rank;
    std::string folder;
  };
  for (const auto& [odd, folder] :
       {Case{1, elsewhere.path}, {1, "/not/there"}, {1, ""}, {0, "/not/there"}, {0, ""}}) {
    SCOPED_TRACE(folder);
    std::vector<std::thread> ranks;
    for (int r = 0; r < 3; ++r) {
      ranks.emplace_back([&, r] {
        const auto group = MakeGroup({.rendezvous = rendezvous,
                                      .name = "of " + folder + std::to_string(odd),
                                      .rank = r,
                                      .size = 3,
                                      .shared_folder = r == odd ? folder : here.path});
        ASSERT_TRUE(group.ok()) << group.status().message();
        double sum = r;
        ASSERT_TRUE((*group)->AllReduceSum(std::span<double>(&sum, 1), "sums").ok());
        EXPECT_EQ(sum, 3);
        EXPECT_THAT((*group)->by(), ::testing::StartsWith("sockets (rank"));
      });
    }
    for (auto& t : ranks) t.join();
  }
  EXPECT_THAT(here.Files(), ::testing::IsEmpty());
}

TEST(HostGroupTest, AMeetingThatFailsLeavesNothing) {
  const HostFolder here;
  const auto rendezvous = std::make_shared<RendezvousTable>();
  ASSERT_TRUE(rendezvous->Set("gloo/here/1", "").ok());  // it comes, and no further
  const auto group = MakeGroup(
      {.rendezvous = rendezvous, .rank = 0, .size = 2, .shared_folder = here.path, .timeout_s = 0.3});
  EXPECT_THAT(group.status().message(), ::testing::HasSubstr("rank 1 did not come any further"));
  EXPECT_THAT(here.Files(), ::testing::IsEmpty());
  // What somebody left who was killed meanwhile goes with the next group.
  std::ofstream(here.path + "/group-0123456789abcdef") << "left";
  std::string name;
  const auto memory = HostMemory::Make(here.path, 2, name);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_THAT(here.Files(), ::testing::ElementsAre(here.path + "/" + name));
}

TEST(HostGroupTest, ARankWhoseProcessIsKilledIsAnErrorAtOnceAlsoBehindOneThatIsLate) {
  const HostFolder here;
  std::string name;
  auto first = HostMemory::Make(here.path, 3, name);
  ASSERT_TRUE(first.ok()) << first.status().message();
  const pid_t child = fork();
  if (child == 0) {  // rank 2: a process of its own
    close(STDERR_FILENO);
    auto memory = HostMemory::Open(here.path, name, 2, 3);
    const auto group = MakeHostGroup({.rank = 2, .size = 3, .timeout_s = 60}, std::move(memory).value());
    double one = 1;
    (void)group->AllReduceSum(std::span<double>(&one, 1), "sums");
    while (true) sleep(1);
  }
  auto other = HostMemory::Open(here.path, name, 1, 3);
  ASSERT_TRUE(other.ok()) << other.status().message();
  std::jthread late([&] {  // rank 1 comes to the first sum and never to the second
    const auto group = MakeHostGroup({.rank = 1, .size = 3, .timeout_s = 60}, std::move(other).value());
    double one = 1;
    EXPECT_TRUE(group->AllReduceSum(std::span<double>(&one, 1), "sums").ok());
    std::this_thread::sleep_for(std::chrono::seconds(4));
  });
  const auto group = MakeHostGroup({.rank = 0, .size = 3, .timeout_s = 60}, std::move(first).value());
  double one = 1;
  EXPECT_TRUE(group->AllReduceSum(std::span<double>(&one, 1), "sums").ok());
  EXPECT_EQ(one, 3);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);  // waits: it was killed
  const auto from = std::chrono::steady_clock::now();
  const Status gone = group->AllReduceSum(std::span<double>(&one, 1), "sums");
  EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(3));
  EXPECT_EQ(gone.code(), StatusCode::kUnavailable);
  EXPECT_THAT(gone.message(), ::testing::HasSubstr("rank 2 has left the group, or its process ended"));
  // Nothing is done with this group any more.
  EXPECT_EQ(group->AllGather(uint64_t{1}, "digest").status().code(), StatusCode::kUnavailable);
}

// A rank that was late may read an outbox yet when the others have given up.
TEST(HostGroupTest, AfterAnErrorNoOutboxIsFilled) {
  const HostFolder here;
  std::string name;
  auto first = HostMemory::Make(here.path, 2, name);
  ASSERT_TRUE(first.ok()) << first.status().message();
  const auto late = HostMemory::Open(here.path, name, 1, 2);
  ASSERT_TRUE(late.ok()) << late.status().message();
  const auto group = MakeHostGroup({.rank = 0, .size = 2, .timeout_s = 0.2}, std::move(first).value());
  double sum = 1;
  const Status gave_up = group->AllReduceSum(std::span<double>(&sum, 1), "sums");
  EXPECT_EQ(gave_up.code(), StatusCode::kDeadlineExceeded);
  const auto outboxes = [&] {
    std::string bytes;
    for (const uint32_t round : {0, 1})
      bytes.append(reinterpret_cast<const char*>((*late)->outbox(0, round)), 64);
    return bytes;
  };
  const std::string before = outboxes();
  EXPECT_EQ(group->AllGather(~uint64_t{0}, "digest").status().message(), gave_up.message());
  EXPECT_EQ(outboxes(), before);
}

// More than what goes through the outboxes: bytes of a rank, with its number in its own interval.
constexpr size_t kMuch = 9'000'001;
std::vector<std::byte> WithMine(int rank, std::span<const sharding::Interval> of_rank) {
  std::vector<std::byte> bytes(kMuch);
  const sharding::Interval& own = of_rank[static_cast<size_t>(rank)];
  std::fill(bytes.begin() + own.from, bytes.begin() + own.to, static_cast<std::byte>(rank + 1));
  return bytes;
}
bool HasAll(std::span<const std::byte> bytes, std::span<const sharding::Interval> of_rank) {
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    const auto at =
        bytes.subspan(static_cast<size_t>(of_rank[rank].from), static_cast<size_t>(of_rank[rank].size()));
    if (std::ranges::any_of(at, [&](std::byte b) { return b != static_cast<std::byte>(rank + 1); }))
      return false;
  }
  return true;
}

// This thread's process_vm_readv is refused from now on, as containers and kernels may.
void ForbidReadingOthers() {
  std::array filter = {
      sock_filter(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)),  // seccomp_data::nr
      sock_filter(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1)),
      sock_filter(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)),
      sock_filter(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)),
  };
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(HostGroupTest, MuchIsGatheredWhetherTheKernelLetsRanksReadEachOtherOrNot) {
  const HostFolder here;
  for (const int size : {2, 3, 4}) {
    for (const int refused : {-1, 0, size - 1}) {
      const auto rendezvous = std::make_shared<RendezvousTable>();
      const auto of_rank = sharding::OwnedByAll(kMuch, size);
      std::vector<std::thread> ranks;
      for (int r = 0; r < size; ++r) {
        ranks.emplace_back([&, r] {
          const auto group =
              MakeGroup({.rendezvous = rendezvous, .rank = r, .size = size, .shared_folder = here.path});
          ASSERT_TRUE(group.ok()) << group.status().message();
          if (r == refused) ForbidReadingOthers();
          for (int i = 0; i < 3; ++i) {
            std::vector<std::byte> bytes = WithMine(r, of_rank);
            const Status done = (*group)->AllGather(std::span(bytes), of_rank, "weights");
            ASSERT_TRUE(done.ok()) << done.message();
            EXPECT_TRUE(HasAll(bytes, of_rank)) << "rank " << r << " of " << size << ", refused " << refused;
          }
        });
      }
      for (auto& t : ranks) t.join();
    }
  }
}

// Two ranks, of which rank 1 is a process of its own, in the midst of gathering what rank 0 writes.
class GatheringRankTest : public ::testing::Test {
 protected:
  // `gather`: what rank 1 does. It exits with 0: all came; 1: an error; 2: it went well with something else.
  void Start(const std::function<Status(Collective&, std::span<std::byte>)>& gather) {
    std::string name;
    auto first = HostMemory::Make(here_.path, 2, name);
    ASSERT_TRUE(first.ok()) << first.status().message();
    child_ = fork();
    if (child_ == 0) {
      close(STDERR_FILENO);
      auto memory = HostMemory::Open(here_.path, name, 1, 2);
      const auto group = MakeHostGroup({.rank = 1, .size = 2, .timeout_s = 60}, std::move(memory).value());
      std::vector<std::byte> bytes = WithMine(1, of_rank_);
      const Status done = gather(*group, bytes);
      _exit(!done.ok() ? 1 : HasAll(bytes, of_rank_) ? 0 : 2);
    }
    group_ = MakeHostGroup({.rank = 0, .size = 2, .timeout_s = 3}, std::move(first).value());
  }
  Status Gather(Collective& group, std::span<std::byte> bytes) const {
    return group.AllGather(bytes, of_rank_, "weights");
  }
  // As rank 0: `midway` comes when rank 1 has had the time to take the first half.
  Status GatherWith(const std::function<void()>& midway) {
    return group_->AllGatherWritten(
        std::span(bytes_), of_rank_,
        [&](const Collective::Wrote& wrote) {
          wrote(of_rank_[0].to / 2);
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          midway();
          return true;
        },
        "weights");
  }
  int Code() {
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  HostFolder here_;
  const std::vector<sharding::Interval> of_rank_ = sharding::OwnedByAll(kMuch, 2);
  pid_t child_ = -1;
  std::unique_ptr<Collective> group_;
  std::vector<std::byte> bytes_ = WithMine(0, of_rank_);
};

TEST_F(GatheringRankTest, WhatIsWrittenMeanwhileComes) {
  Start([this](Collective& group, std::span<std::byte> bytes) { return Gather(group, bytes); });
  const sharding::Interval& own = of_rank_[0];
  std::fill(bytes_.begin() + own.from, bytes_.begin() + own.to, std::byte{7});
  const Status done = group_->AllGatherWritten(
      std::span(bytes_), of_rank_,
      [&](const Collective::Wrote& wrote) {
        for (int64_t at = own.from; at < own.to; at += 100'003) {
          const int64_t to = std::min(own.to, at + 100'003);
          std::fill(bytes_.begin() + at, bytes_.begin() + to, std::byte{1});
          wrote(to);
        }
        return true;
      },
      "weights");
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_TRUE(HasAll(bytes_, of_rank_));
  EXPECT_EQ(Code(), 0);
}

TEST_F(GatheringRankTest, OneThatIsKilledIsAnErrorAtOnce) {
  Start([this](Collective& group, std::span<std::byte> bytes) { return Gather(group, bytes); });
  const auto from = std::chrono::steady_clock::now();
  const Status gone = GatherWith([&] {
    kill(child_, SIGKILL);
    EXPECT_EQ(Code(), -1);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(2));
  EXPECT_EQ(gone.code(), StatusCode::kUnavailable);
  EXPECT_THAT(gone.message(), ::testing::HasSubstr("rank 1 has left the group, or its process ended"));
}

TEST_F(GatheringRankTest, OneThatIsKilledWhileItWritesIsAnErrorAtOnce) {
  Start([this](Collective& group, std::span<std::byte> bytes) {
    return group.AllGatherWritten(
        bytes, of_rank_,
        [&](const Collective::Wrote& wrote) {
          wrote((of_rank_[1].from + of_rank_[1].to) / 2);
          return kill(getpid(), SIGKILL) == 0;
        },
        "weights");
  });
  const auto from = std::chrono::steady_clock::now();
  const Status gone = Gather(*group_, bytes_);
  EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(2));
  EXPECT_EQ(gone.code(), StatusCode::kUnavailable);
  EXPECT_THAT(gone.message(), ::testing::HasSubstr("rank 1 has left the group, or its process ended"));
  EXPECT_EQ(Code(), -1);
}

// Who has given up goes on, and what it has may be anything then: the one that was late is told.
TEST_F(GatheringRankTest, OneThatIsLateTakesNothingFromOneThatHasGivenUp) {
  Start([this](Collective& group, std::span<std::byte> bytes) { return Gather(group, bytes); });
  const Status gave_up = GatherWith([&] { kill(child_, SIGSTOP); });
  EXPECT_EQ(gave_up.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(gave_up.message(), ::testing::HasSubstr("waiting for rank 1"));
  std::ranges::fill(bytes_, std::byte{9});
  kill(child_, SIGCONT);
  EXPECT_EQ(Code(), 1);
}

TEST(HostGroupTest, SumsHaveTheBitsThatTheyHaveBySockets) {
  const HostFolder here;
  for (const int size : {3, 4}) {
    for (const size_t n : {size_t{1000}, size_t{700001}}) {
      std::vector<std::thread> ranks;
      const auto rendezvous = std::make_shared<RendezvousTable>();
      for (int r = 0; r < size; ++r) {
        ranks.emplace_back([&, r] {
          std::vector<float> sums[2];
          for (const bool memory : {false, true}) {
            const auto group = MakeGroup({.rendezvous = rendezvous,
                                          .name = memory ? "m" : "s",
                                          .rank = r,
                                          .size = size,
                                          .shared_folder = memory ? here.path : ""});
            ASSERT_TRUE(group.ok()) << group.status().message();
            EXPECT_EQ((*group)->by() == "memory", memory);
            sums[memory] = Noise(r, n);
            ASSERT_TRUE((*group)->AllReduceSum(std::span<float>(sums[memory]), "gradients").ok());
          }
          EXPECT_TRUE(sums[0] == sums[1]);
        });
      }
      for (auto& t : ranks) t.join();
    }
  }
}

TEST(HostGroupTest, RanksAtDifferentOperationsSayWhichOnes) {
  const HostFolder here;
  const auto rendezvous = std::make_shared<RendezvousTable>();
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      const auto group =
          MakeGroup({.rendezvous = rendezvous, .rank = r, .size = 2, .shared_folder = here.path});
      ASSERT_TRUE(group.ok()) << group.status().message();
      std::vector<float> v(static_cast<size_t>(10 + r), 1.0F);
      const Status other = (*group)->AllReduceSum(std::span<float>(v), "gradients");
      EXPECT_EQ(other.code(), StatusCode::kInternal);
      EXPECT_THAT(other.message(), ::testing::HasSubstr("is at seq=1 op=all_reduce tag=gradients with " +
                                                        std::to_string(40 + 4 * (1 - r)) + " bytes"));
    });
  }
  for (auto& t : ranks) t.join();
}

}  // namespace
}  // namespace tidepool::comm
