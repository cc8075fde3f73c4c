// That the checked device finds what it is there to find.
#include "tests/core/device/checked_device.h"

#include <gtest/gtest.h>

namespace tidepool::device {
namespace {

TEST(CheckedDeviceDeathTest, TheHostCanNeitherReadNorWriteWhatKernelsCan) {
  CheckedDevice device;
  const Array a = device.Take(2, 8, DType::kFloat32);
  auto* p = a.view.As<float>();
  device.Upload(p, std::span<const float>(std::vector<float>(16, 0.5F)));
  device.Sigmoid({.n = 16, .x = p});
  EXPECT_NEAR(device.Read(p, 16)[15], 0.6225F, 1e-4F);
  EXPECT_DEATH(
      {
        volatile float x = *p;
        (void)x;
      },
      "");
  EXPECT_DEATH({ *p = 1; }, "");
}

TEST(CheckedDeviceDeathTest, AnArrayMustLieInsideOneAllocationThatIsThere) {
  CheckedDevice device;
  Array a = device.Take(1, 16, DType::kFloat32);
  auto* p = a.view.As<float>();
  EXPECT_DEATH(device.Sigmoid({.n = 17, .x = p}), "Sigmoid: array 1 of 68 bytes");
  std::vector<float> of_host(16);
  EXPECT_DEATH(device.Sigmoid({.n = 16, .x = of_host.data()}), "Sigmoid: array 1");
  a = {};
  EXPECT_DEATH(device.Sigmoid({.n = 16, .x = p}), "Sigmoid: array 1");
}

}  // namespace
}  // namespace tidepool::device
