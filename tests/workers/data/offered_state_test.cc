#include "workers/data/offered_state.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;

uint64_t Sum(const OfferedState::Parts& parts) {
  uint64_t sum = 0;
  for (const device::ByteSource& part : parts) {
    std::vector<std::byte> bytes(part.size());
    part.CopyTo(0, bytes);
    for (const std::byte b : bytes) sum += static_cast<uint64_t>(b);
  }
  return sum;
}

TEST(OfferedStateTest, IsReadForItsStepAloneAndNotAfterItWasWithdrawn) {
  std::array<std::byte, 4> bytes{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  OfferedState state(Sum);
  EXPECT_EQ(state.Read({0}).status().code(), StatusCode::kNotFound);
  state.Offer({3}, {bytes});
  EXPECT_EQ(state.step(), StepNumber{3});
  EXPECT_EQ(state.Read({2}).status().code(), StatusCode::kNotFound);
  {
    const auto one = state.Read({3}), two = state.Read({3});
    ASSERT_TRUE(one.ok() && two.ok());
    EXPECT_EQ(one->digest, 10U);
    EXPECT_FALSE(state.Withdraw(milliseconds(1))) << "it is being read";
    EXPECT_EQ(state.Read({3}).status().code(), StatusCode::kNotFound) << "nobody else begins";
  }
  EXPECT_TRUE(state.Withdraw(milliseconds(1)));
  EXPECT_FALSE(state.step().valid());
}

// Readers come and go while others do: a count that was kept by a shared pointer to nothing locked itself out
// here, and every newcomer to a training group of 14 waited for its deadline.
TEST(OfferedStateTest, ReadersThatComeAndGoAtOnceLockNobodyOut) {
  std::array<std::byte, 64> bytes{};
  OfferedState state([](const OfferedState::Parts&) { return uint64_t{7}; });
  std::atomic<bool> stop = false;
  std::atomic<int64_t> reads = 0;
  std::vector<std::jthread> readers;
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        const auto got = state.Read({5});
        if (!got.ok()) continue;
        EXPECT_EQ(got->parts.size(), 1U);
        ++reads;
      }
    });
  }
  for (int round = 0; round < 40; ++round) {
    state.Offer({5}, {bytes});
    const int64_t before = reads;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (reads == before && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    ASSERT_GT(reads, before) << "in round " << round;
    ASSERT_TRUE(state.Withdraw(milliseconds(20000)));
    bytes[0] = std::byte{static_cast<uint8_t>(round)};  // ours alone now
  }
  stop = true;
}

}  // namespace
}  // namespace tidepool::workers
