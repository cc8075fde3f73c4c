// The self-test of deterministic mode finds a device that computes a row otherwise in another batch.
#include "core/device/batch_invariance.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/device/cpu/cpu_device.h"

namespace tidepool::device {
namespace {

const std::vector<ProductShape> kShapes = {{"qkv", 48, 32}, {"head", 96, 40, /*head=*/true}};

// As a library that takes another algorithm from 64 rows on, for one matrix.
class SecondAlgorithm : public CpuDevice {
 public:
  using CpuDevice::Multiply;
  void Multiply(const MultiplyArgs<float>& a) override {
    CpuDevice::Multiply(a);
    if (a.rows >= 64 && a.n == 96) a.y[(a.rows - 1) * a.n] *= 1.0000002F;
  }
};

TEST(BatchInvarianceTest, ProductsThatAddUpInOneOrderPass) {
  CpuDevice device;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Status tried = TryBatchInvariance(device, kShapes, dtype);
    EXPECT_TRUE(tried.ok()) << tried.ToString();
  }
}

TEST(BatchInvarianceTest, AMatrixWhoseRowsDependOnTheBatchIsNamed) {
  SecondAlgorithm device;
  const Status tried = TryBatchInvariance(device, kShapes, DType::kFloat32);
  EXPECT_EQ(tried.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(tried.message(), "products in float32 on " + device.name() +
                                 " give a row other bits in another batch: head [96, 40]; set deterministic: "
                                 "false, or write cluster.device: cpu");
}

}  // namespace
}  // namespace tidepool::device
