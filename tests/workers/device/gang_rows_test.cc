// Ranks of a gang as threads, by sockets and by shared memory.
#include "workers/device/gang_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/rng.h"
#include "core/comm/rendezvous_table.h"
#include "core/sample/codec.h"
#include "tests/core/sample/random_trajectory.h"

namespace tidepool::workers {
namespace {

using testing::HasSubstr;

class GangRowsTest : public testing::TestWithParam<bool> {
 protected:
  GangRowsTest() {
    folder_ = (std::filesystem::exists("/dev/shm") ? "/dev/shm" : testing::TempDir()) + "/gang_rows-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    Rng rng(std::random_device{}());
    for (int i = 0; i < 40; ++i) {
      BatchRow& row = fetched_.rows.emplace_back();
      row.rank = i % 2;
      row.gid = GroupId{i / 4};
      row.trajectory = sample::RandomTrajectory(rng, i);
      row.stored.tid = row.trajectory.tid;
      row.stored.digest = sample::Digest(row.trajectory);
      row.reward = rng.Normal();
      row.components = {row.reward, 1};
      if (row.rank != 1) row.trajectory = row.trajectory.Outline();
    }
  }
  ~GangRowsTest() override { std::filesystem::remove_all(folder_); }

  // Rank 0 does `first`, the others take rows of data-parallel rank 1 for so long; what these got, by rank.
  std::vector<StatusOr<FetchedRows>> Run(int ranks, const std::function<void(comm::Collective&)>& first,
                                         double within_s = 60) {
    const auto rendezvous = std::make_shared<comm::RendezvousTable>();
    std::vector<StatusOr<FetchedRows>> got(static_cast<size_t>(ranks), FetchedRows());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        auto gang = comm::MakeGroup({.rendezvous = rendezvous,
                                     .rank = rank,
                                     .size = ranks,
                                     .shared_folder = GetParam() ? folder_ : ""});
        ASSERT_TRUE(gang.ok()) << gang.status().message();
        if (rank == 0) return first(**gang);
        got[static_cast<size_t>(rank)] = TakeRows(**gang, 1, within_s, [&] { return !called_off_; });
      });
    }
    for (std::thread& t : threads) t.join();
    return got;
  }

  FetchedRows fetched_;
  std::string folder_;
  std::atomic<bool> called_off_ = false;
};
INSTANTIATE_TEST_SUITE_P(Ways, GangRowsTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Memory" : "Sockets"; });

TEST_P(GangRowsTest, WhatTheFirstHasFetchedAllHave) {
  for (const int ranks : {2, 4}) {
    const auto got = Run(ranks, [&](comm::Collective& gang) {
      EXPECT_EQ(ExpectRows(gang, 30), OkStatus());
      EXPECT_EQ(GiveRows(gang, fetched_), OkStatus());
    });
    for (size_t rank = 1; rank < got.size(); ++rank) {
      ASSERT_TRUE(got[rank].ok()) << got[rank].status().ToString();
      ASSERT_EQ(got[rank]->rows.size(), fetched_.rows.size());
      for (size_t i = 0; i < fetched_.rows.size(); ++i) {
        const BatchRow &mine = got[rank]->rows[i], &of_first = fetched_.rows[i];
        EXPECT_EQ(mine.trajectory, of_first.trajectory) << i;
        EXPECT_EQ(mine.gid, of_first.gid);
        EXPECT_EQ(mine.rank, of_first.rank);
        EXPECT_EQ(mine.stored.digest, of_first.stored.digest);
        EXPECT_EQ(mine.reward, of_first.reward);
        EXPECT_EQ(mine.components, of_first.components);
      }
    }
  }
}

TEST_P(GangRowsTest, AllLearnWhyThereAreNone) {
  for (const auto& got : Run(3, [](comm::Collective& gang) {
         EXPECT_EQ(GiveRows(gang, Aborted("the read of rows was called off")), OkStatus());
       })) {
    if (got.ok()) continue;  // of the first
    EXPECT_EQ(got.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(got.status().message(), HasSubstr("the read of rows was called off"));
  }
  fetched_ = {.rows = {}, .bad = {{{3, 1, 2}, "0007.tpp is gone"}}};
  const auto got = Run(2, [&](comm::Collective& gang) { EXPECT_EQ(GiveRows(gang, fetched_), OkStatus()); });
  ASSERT_TRUE(got[1].ok()) << got[1].status().ToString();
  ASSERT_EQ(got[1]->bad.size(), 1U);
  EXPECT_EQ(got[1]->bad[0].tid, (SampleId{3, 1, 2}));
  EXPECT_EQ(got[1]->bad[0].why, "0007.tpp is gone");
}

TEST_P(GangRowsTest, OtherRowsThanTheJournalsAreRefused) {
  fetched_.rows[1].stored.digest ^= 1;
  const auto got = Run(2, [&](comm::Collective& gang) { EXPECT_EQ(GiveRows(gang, fetched_), OkStatus()); });
  ASSERT_FALSE(got[1].ok());
  EXPECT_THAT(got[1].status().message(), HasSubstr("is not what its ENQ says"));
}

TEST_P(GangRowsTest, AWaitByMemoryIsCalledOff) {
  if (!GetParam()) GTEST_SKIP() << "by sockets a rank that waits sees nothing else";
  const auto begin = std::chrono::steady_clock::now();
  const auto got = Run(2, [&](comm::Collective&) {
    called_off_ = true;
    std::this_thread::sleep_for(std::chrono::seconds(2));
  });
  EXPECT_EQ(got[1].status().code(), StatusCode::kAborted) << got[1].status().message();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_P(GangRowsTest, WhoIsWaitedForIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto late = Run(
      2, [](comm::Collective&) { std::this_thread::sleep_for(std::chrono::seconds(2)); }, /*within_s=*/0.5);
  ASSERT_FALSE(late[1].ok());
  EXPECT_THAT(late[1].status().message(), HasSubstr("tag=rows"));
  EXPECT_THAT(late[1].status().message(), HasSubstr("rank 0"));
  const auto lost = Run(2, [](comm::Collective& gang) { EXPECT_EQ(ExpectRows(gang, 60), OkStatus()); });
  ASSERT_FALSE(lost[1].ok());
  EXPECT_EQ(lost[1].status().code(), StatusCode::kUnavailable) << lost[1].status().message();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace tidepool::workers
