#include "workers/data/host_base.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/cpu/cpu_device.h"
#include "core/model/adapter.h"
#include "workers/data/shared_arena.h"

namespace tidepool::workers {
namespace {

using namespace std::chrono_literals;

class HostBaseTest : public testing::Test {
 protected:
  HostBaseTest() : folder_(SharedBlock::FolderOf("base-" + std::to_string(getpid()), "secret")) {
    SharedBlock::RemoveAll(folder_);
    spec_.vocab_size = 32, spec_.hidden_size = 32, spec_.intermediate_size = 64, spec_.layers = 2;
    spec_.heads = 2, spec_.kv_heads = 1, spec_.head_size = 16;
    own_ = std::move(model::Weights::Create(spec_, model::DType::kBFloat16)).value();
    own_->Initialize(3, 0.1);
  }
  ~HostBaseTest() override { SharedBlock::RemoveAll(folder_); }

  // `meanwhile` is called when half of it is read.
  StatusOr<std::shared_ptr<const model::Weights>> Map(
      const std::function<void()>& meanwhile = [] {}, std::chrono::nanoseconds patience = 20s) {
    device::CpuDevice device;
    return MapBase(folder_,
                   {.identity = 12,
                    .spec = spec_,
                    .dtype = model::DType::kBFloat16,
                    .read =
                        [&](std::span<std::byte> arena) {
                          ++reads_;
                          const auto from = std::as_const(*own_).bytes();
                          std::ranges::copy(from.first(from.size() / 2), arena.begin());
                          meanwhile();
                          std::ranges::copy(from, arena.begin());
                          return OkStatus();
                        }},
                   &device, patience);
  }

  // Laid out, as `own_` would be.
  void ExpectOwn(const model::Weights& mapped) {
    EXPECT_EQ(mapped.Digest(), 12U) << "its identity";
    auto laid_out = std::move(model::Weights::Create(spec_, model::DType::kBFloat16)).value();
    std::ranges::copy(std::as_const(*own_).bytes(), laid_out->bytes().begin());
    device::CpuDevice device;
    laid_out->LayOutFor(device);
    ASSERT_TRUE(laid_out->laid_out());
    EXPECT_EQ(
        std::memcmp(Embedding(mapped).data, Embedding(*laid_out).data, static_cast<size_t>(own_->size())), 0);
  }
  // With which the arena begins.
  static device::View Embedding(const model::Weights& weights) {
    return weights.On(std::make_shared<device::CpuDevice>())->stored(0).w;
  }

  std::string folder_;
  model::ModelSpec spec_;
  std::unique_ptr<model::Weights> own_;
  std::atomic<int> reads_ = 0;
};

TEST_F(HostBaseTest, IsReadOnceForAllWhoComeAtATime) {
  std::vector<std::shared_ptr<const model::Weights>> mapped(4);
  {
    std::vector<std::jthread> workers;  // waits: MapBase has a deadline
    for (auto& one : mapped)
      workers.emplace_back([&] { one = Map([] { std::this_thread::sleep_for(20ms); }).value(); });
  }
  EXPECT_EQ(reads_, 1);
  for (const auto& one : mapped) {
    ExpectOwn(*one);
    EXPECT_FALSE(one->owns_arena());
    EXPECT_EQ(Embedding(*one).data == Embedding(*mapped[0]).data, &one == &mapped[0])
        << "a mapping of its own";
  }
}

TEST_F(HostBaseTest, WhatAKilledWorkerHasReadHalfWayIsReadAnew) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)Map([&] {
      (void)!write(ends[1], "x", 1);
      std::this_thread::sleep_for(60s);
    });
    _exit(1);
  }
  char half = 0;
  ASSERT_EQ(read(ends[0], &half, 1), 1);
  EXPECT_EQ(Map([] {}, 100ms).status().code(), StatusCode::kDeadlineExceeded);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);  // waits: it was killed
  const auto mapped = Map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().ToString();
  ExpectOwn(**mapped);
  EXPECT_EQ(reads_, 1) << "of this process";
}

TEST_F(HostBaseTest, AnErrorOfTheReaderLeavesNothing) {
  const auto failing = MapBase(folder_,
                               {.identity = 12,
                                .spec = spec_,
                                .dtype = model::DType::kBFloat16,
                                .read = [](std::span<std::byte>) { return NotFound("no such folder"); }},
                               nullptr, 1s);
  EXPECT_EQ(failing.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(Map().ok());
}

}  // namespace
}  // namespace tidepool::workers
