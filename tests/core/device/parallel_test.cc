// Every item is computed once, whatever the pieces; errors come to whoever asked.
#include "core/device/cpu/parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tidepool::device {
namespace {

class ParallelTest : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(3); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  const int before_ = at::get_num_threads();
};

TEST_F(ParallelTest, EveryItemOnceInThousandsOfRounds) {
  for (int64_t round = 0; round < 3000; ++round) {
    const int64_t items = round % 97;
    std::vector<std::atomic<int>> seen(static_cast<size_t>(items));
    ParallelPieces(items, 1 + round % 5, [&](int64_t begin, int64_t end) {
      EXPECT_LT(ThreadIndex(), Threads());
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    for (const auto& n : seen) ASSERT_EQ(n, 1) << "round " << round;
  }
}

TEST_F(ParallelTest, WorkInsideOfABodyIsDoneByItsThread) {
  std::atomic<int64_t> sum = 0;
  ParallelItems(8, 1 << 20, [&](int64_t begin, int64_t end) {
    const int64_t mine = ThreadIndex();
    for (int64_t i = begin; i < end; ++i) {
      ParallelItems(100, 1 << 20, [&](int64_t from, int64_t to) {
        EXPECT_EQ(ThreadIndex(), mine);
        sum += to - from;
      });
    }
  });
  EXPECT_EQ(sum, 800);
}

TEST_F(ParallelTest, AnErrorReachesTheAskerAndTheNextRoundIsWhole) {
  for (int i = 0; i < 50; ++i) {
    EXPECT_THROW(ParallelPieces(20, 1,
                                [](int64_t begin, int64_t) {
                                  if (begin == 7) throw std::runtime_error("seven");
                                }),
                 std::runtime_error);
    std::atomic<int64_t> sum = 0;
    ParallelPieces(20, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 20);
  }
}

// More stack than there are addresses: no thread can be made while it lives.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t huge;
    pthread_getattr_default_np(&before_);
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 48);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST_F(ParallelTest, AMachineWithoutMoreThreadsDoesTheWorkWithThoseThatAreThere) {
  std::atomic<int64_t> sum = 0;
  sigset_t before, after;
  std::thread([&] {  // it has no helpers yet
    at::set_num_threads(3);
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    for (int round = 0; round < 2; ++round) {
      std::optional<NoThreads> none;
      if (round == 0) none.emplace();
      ParallelPieces(20, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    }
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
  })
      .join();
  EXPECT_EQ(sum, 40);
  for (const int signal : {SIGINT, SIGTERM})
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
}

TEST_F(ParallelTest, ThreadsThatComputeAtTheSameTimeHaveHelpersOfTheirOwn) {
  std::vector<std::thread> askers;
  std::atomic<int64_t> sum = 0;
  for (int t = 0; t < 4; ++t) {
    askers.emplace_back([&] {
      at::set_num_threads(2);
      for (int round = 0; round < 300; ++round)
        ParallelPieces(10, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    });
  }
  for (std::thread& t : askers) t.join();
  EXPECT_EQ(sum, 4 * 300 * 10);
}

}  // namespace
}  // namespace tidepool::device
