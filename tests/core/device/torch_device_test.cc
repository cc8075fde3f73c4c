// Memory of LibTorch's device; its kernels are compared in agreement_test.cc.
#include "core/device/torch_device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tidepool::device {
namespace {

TEST(TorchDeviceTest, MemoryIsZeroedAlignedAndCopied) {
  TorchDevice device(c10::kCPU);
  const Array a = device.Take(3, 5, DType::kFloat32), b = device.Take(3, 5, DType::kFloat32);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.view.data) % 64, 0U);
  EXPECT_EQ(a.memory->bytes(), 60);
  EXPECT_EQ(device.Read(a.view.As<float>(), 15), std::vector<float>(15));

  std::vector<float> values(15);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  device.Upload(a.view.As<float>(), std::span<const float>(values));
  device.Copy(b.view.data, a.view.data, a.view.bytes());
  device.Zero(a.view.data, a.view.bytes());
  device.Synchronize();
  EXPECT_EQ(device.Read(b.view.As<float>(), 15), values);
  EXPECT_EQ(device.Read(a.view.As<float>(), 15), std::vector<float>(15));
}

TEST(TorchDeviceTest, MemoryThatIsNotThereIsAStatusWithTheSize) {
  TorchDevice device(c10::kCPU);
  const auto memory = device.Allocate(int64_t{1} << 60);
  ASSERT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(memory.status().message().find("1152921504606846976 bytes on torch cpu"), std::string::npos)
      << memory.status().ToString();
}

}  // namespace
}  // namespace tidepool::device
