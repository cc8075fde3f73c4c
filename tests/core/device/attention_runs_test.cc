// An error of one tile or cell reaches the asker: no thread goes on waiting for what is not computed any
// more.
#include "core/device/cpu/attention_runs.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

namespace tidepool::device {
namespace {

class AttentionRunsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { at::set_num_threads(GetParam()); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  const int before_ = at::get_num_threads();
};

TEST_P(AttentionRunsTest, AnErrorOfATileReachesTheAskerAndTheNextPlanIsWhole) {
  const std::vector<int32_t> first = {0}, lengths = {8192};
  const std::vector<KvRun> runs = {{0, 8192}};
  const AttentionPlan plan = PlanAttention(
      first, lengths, runs, {.heads = 32, .kv_heads = 2, .head_size = 128, .threads = GetParam()});
  ASSERT_GT(plan.parts_tiles.size(), 1U);
  for (int round = 0; round < 20; ++round) {
    std::atomic<size_t> parts = 0, others = 0;
    EXPECT_THROW(RunTiles(plan,
                          [&](const AttentionTile& t, int64_t) {
                            if (t.part >= 0 && parts++ == 0) throw std::bad_alloc();
                          }),
                 std::bad_alloc);
    parts = 0;
    RunTiles(plan, [&](const AttentionTile& t, int64_t) { ++(t.part >= 0 ? parts : others); });
    EXPECT_EQ(parts, plan.parts_tiles.size());
    EXPECT_EQ(others, plan.tiles.size());
  }
}

TEST_P(AttentionRunsTest, AnErrorOfACellReachesTheAskerAndTheNextPlanIsWhole) {
  constexpr int64_t kRows = 1024, kKvHeads = 2;
  const std::vector<int32_t> first(kRows, 0);
  std::vector<int32_t> lengths(kRows);
  std::iota(lengths.begin(), lengths.end(), 1);
  const std::vector<KvRun> runs = {{0, kRows}};
  const std::vector<std::pair<int64_t, int64_t>> ranges = {{0, kRows}};
  const AttentionBackwardPlan plan = PlanAttentionBackward(
      first, lengths, runs, ranges, {.heads = 4, .kv_heads = kKvHeads, .head_size = 64});
  ASSERT_GT(plan.cells.size(), 2U);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(RunCells(plan, kKvHeads,
                          [](int64_t cell, int64_t kv, int64_t) {
                            if (cell == 1 && kv == 0) throw std::bad_alloc();
                          }),
                 std::bad_alloc);
    std::vector<std::atomic<int>> seen(plan.cells.size() * kKvHeads);
    RunCells(plan, kKvHeads,
             [&](int64_t cell, int64_t kv, int64_t) { ++seen[static_cast<size_t>(cell * kKvHeads + kv)]; });
    for (const auto& n : seen) ASSERT_EQ(n, 1);
  }
}

// Few, and far more than a machine has cores.
INSTANTIATE_TEST_SUITE_P(Threads, AttentionRunsTest, testing::Values(2, 3, 32));

}  // namespace
}  // namespace tidepool::device
