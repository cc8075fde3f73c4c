#include "core/model/weights.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/base/weight_pieces.h"
#include "tests/core/device/checked_device.h"
#include "tests/core/model/reference.h"

namespace tidepool::model {
namespace {

TEST(WeightsTest, LayoutIsAlignedInModuleOrderAndCoversTheSpec) {
  const std::vector<Parameter> layout = Layout(TinySpec("qwen2"));
  int64_t end = 0;
  for (const Parameter& p : layout) {
    EXPECT_EQ(p.offset % 64, 0) << p.name;
    EXPECT_GE(p.offset, end) << p.name;
    EXPECT_LT(p.offset - end, 64) << p.name;
    end = p.offset + p.numel();
  }
  EXPECT_EQ(layout.front().name, "embedding");
  EXPECT_EQ(layout.back().name, "final_norm");
  EXPECT_EQ(LayoutElements(TinySpec("qwen2")) % 64, 0);
}

TEST(WeightsTest, AGivenArenaIsUsedInPlace) {
  const ModelSpec s = TinySpec();
  std::vector<float> memory(static_cast<size_t>(LayoutElements(s)) + 16);
  auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  const auto bytes = static_cast<size_t>(LayoutElements(s)) * 4;
  auto w = Weights::Create(s, DType::kFloat32, {aligned, bytes});
  ASSERT_TRUE(w.ok());
  (*w)->Initialize(1, 0.02);
  EXPECT_EQ((*w)->bytes().data(), aligned);
  EXPECT_EQ((*w)->Get("final_norm").const_data_ptr<float>()[0], 1.0F);
  EXPECT_EQ(Weights::Create(s, DType::kFloat32, {aligned, bytes - 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(WeightsTest, DigestSeesEveryByteAndPlace) {
  auto w = std::move(Weights::Create(TinySpec(), DType::kBFloat16)).value();
  w->Initialize(3, 0.02);
  const uint64_t digest = w->Digest();
  EXPECT_EQ(digest, w->Digest());
  EXPECT_EQ(digest, PiecesOf(w->bytes()).Digest());
  w->bytes()[1001] ^= std::byte{1};
  EXPECT_NE(digest, w->Digest());
  w->bytes()[1001] ^= std::byte{1};
  EXPECT_EQ(digest, w->Digest());
  std::swap_ranges(w->bytes().begin(), w->bytes().begin() + 8, w->bytes().begin() + 64);
  EXPECT_NE(digest, w->Digest());
}

// Counts what comes down, or fails as LibTorch does.
class CountingDevice : public device::CheckedDevice {
 public:
  void Download(void* to, const void* from, int64_t bytes) override {
    if (failed) throw std::runtime_error("the device has failed");
    down += bytes;
    CheckedDevice::Download(to, from, bytes);
  }
  using CheckedDevice::Upload;
  void Upload(void* to, const void* from, int64_t bytes) override {
    up += bytes;
    CheckedDevice::Upload(to, from, bytes);
  }
  int64_t down = 0, up = 0;
  bool failed = false;
};
// What an optimizer does: one byte of the device's weights is another.
void Train(DeviceWeights& weights) {
  std::byte byte{0};
  auto* at = static_cast<std::byte*>(weights.data()) + 1001;
  weights.device().Download(&byte, at, 1);
  byte ^= std::byte{1};
  weights.device().Upload(static_cast<void*>(at), &byte, 1);
  weights.Written();
}

TEST(WeightsTest, ADeviceComputesTheDigestOfWhatItTrainedAndTheBytesComeDownWhereTheyAreRead) {
  const auto device = std::make_shared<CountingDevice>();
  auto w = std::move(Weights::Create(TinySpec(), DType::kBFloat16)).value();
  w->Initialize(3, 0.02);
  const std::vector<std::byte> before(w->bytes().begin(), w->bytes().end());
  auto there = w->On(device);
  Train(*there);
  device->down = 0;
  const uint64_t digest = w->Digest();
  EXPECT_LT(device->down, 100) << "nothing but sums";
  EXPECT_EQ(std::as_const(*w).bytes()[1001], before[1001] ^ std::byte{1});
  EXPECT_EQ(w->Digest(), digest) << "the host's, of the same bytes";
  EXPECT_GT(device->down, w->size());
  device->down = 0;
  (void)w->bytes();
  EXPECT_EQ(device->down, 0) << "once";

  Train(*there);
  EXPECT_EQ(w->Get(0).dim(), 2);
  EXPECT_TRUE(std::ranges::equal(w->bytes(), before));
  Train(*there);
  std::ranges::copy(before, w->Overwrite().begin());  // what was trained is given up
  EXPECT_TRUE(std::ranges::equal(w->bytes(), before));
  there->Upload();
  Train(*there);
  there.reset();
  EXPECT_EQ(w->bytes()[1001], before[1001] ^ std::byte{1}) << "it came down before its memory went";
}

// As an engine does that generates with what a trainer on the same device has trained.
TEST(WeightsTest, WhatADeviceTrainedIsNotSentUpToItAgain) {
  const auto device = std::make_shared<CountingDevice>();
  auto w = std::move(Weights::Create(TinySpec(), DType::kBFloat16)).value();
  w->Initialize(3, 0.02);
  const std::vector<std::byte> before(w->bytes().begin(), w->bytes().end());
  auto there = w->On(device);
  const auto on_device = [&] {
    std::vector<std::byte> now(before.size());
    device->Download(now.data(), there->data(), w->size());
    return now;
  };
  Train(*there);
  const std::vector<std::byte> trained = on_device();
  device->down = device->up = 0;
  there->Upload();
  EXPECT_EQ(device->down, 0);
  EXPECT_TRUE(std::ranges::equal(std::as_const(*w).bytes(), trained));  // published
  device->down = 0;
  there->Upload();
  (void)w->On(device);
  EXPECT_EQ(device->down, 0);
  EXPECT_EQ(device->up, 0);
  EXPECT_EQ(on_device(), trained);

  // Who may have written is believed.
  std::ranges::copy(before, w->bytes().begin());
  there->Upload();
  EXPECT_EQ(on_device(), before);
  device->up = 0;
  there->Upload();
  (void)w->On(device);
  EXPECT_EQ(device->up, 0) << "it went up, and nobody has asked to write since";

  // Who could write, but reads, moves nothing.
  Train(*there);
  device::ByteStore store = w->store();
  std::vector<std::byte> read(before.size());
  store.CopyTo(0, read);
  EXPECT_EQ(read, on_device());
  device->up = 0;
  there->Upload();
  EXPECT_EQ(device->up, 0);
  store.CopyFrom(0, before);
  there->Upload();
  EXPECT_EQ(device->up, w->size());
  EXPECT_EQ(on_device(), before);

  // A device on which nobody trains gets what another one has trained.
  const auto other = std::make_shared<CountingDevice>();
  auto engine = w->On(other);
  EXPECT_EQ(other->up, w->size());
  Train(*there);
  engine->Upload();
  EXPECT_EQ(other->up, 2 * w->size());
  EXPECT_EQ(other->Read(static_cast<const std::byte*>(engine->data()), w->size()), on_device());
  device->up = 0;
  there->Upload();
  EXPECT_EQ(device->up, 0);
  engine.reset();

  Train(*there);
  (void)std::as_const(*w).bytes();
  w->Get("final_norm").zero_();
  there->Upload();
  EXPECT_TRUE(std::ranges::equal(std::as_const(*w).bytes(), on_device()));
  Train(*there);
  std::ranges::copy(before, w->Overwrite().begin());  // restored
  EXPECT_EQ(w->On(device), there);
  EXPECT_EQ(on_device(), before) << "who comes new finds the arena as it is";
  Train(*there);
  w->Initialize(4, 0.02);
  there->Upload();
  EXPECT_TRUE(std::ranges::equal(std::as_const(*w).bytes(), on_device()));
}

TEST(WeightsDeathTest, NobodyTakesOlderBytesForWhatAFailedDeviceTrained) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto device = std::make_shared<CountingDevice>();
  auto w = std::move(Weights::Create(TinySpec(), DType::kBFloat16)).value();
  auto there = w->On(device);
  Train(*there);
  device->failed = true;
  there.reset();
  EXPECT_DEATH((void)w->bytes(), "trained on a device that failed");
  (void)w->Overwrite();
  EXPECT_EQ(w->bytes().size(), static_cast<size_t>(w->size()));
}

TEST(WeightsTest, InitializationIsAFunctionOfTheSeed) {
  auto a = std::move(Weights::Create(TinySpec(), DType::kFloat32)).value();
  auto b = std::move(Weights::Create(TinySpec(), DType::kFloat32)).value();
  a->Initialize(3, 0.02);
  b->Initialize(3, 0.02);
  EXPECT_EQ(a->Digest(), b->Digest());
  b->Initialize(4, 0.02);
  EXPECT_NE(a->Digest(), b->Digest());
}

TEST(WeightsTest, RefusesSizesThatCannotBe) {
  ModelSpec s = TinySpec();
  s.kv_heads = 3;
  EXPECT_EQ(Weights::Create(s, DType::kFloat32).status().code(), StatusCode::kInvalidArgument);
  s = TinySpec();
  s.head_size = 23;
  EXPECT_EQ(Weights::Create(s, DType::kFloat32).status().code(), StatusCode::kInvalidArgument);
  s = TinySpec();
  s.hidden_size = int64_t{1} << 40;
  EXPECT_EQ(Weights::Create(s, DType::kFloat32).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::model
