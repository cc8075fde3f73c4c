// The self-test of deterministic mode finds a device that computes a row otherwise in another batch.
#include "core/device/batch_invariance.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/base/rng.h"
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

// Of many rows each thread takes some with all columns, of few some columns.
TEST(BatchInvarianceTest, ManyRowsHaveTheBitsOfFew) {
  constexpr int64_t kRows = 2011, kN = 48, kK = 416, kFew = 19;
  CpuDevice device;
  Rng rng(3);
  const auto random = [&](int64_t n) {
    std::vector<BF16> x(static_cast<size_t>(n));
    for (BF16& v : x) v.bits = static_cast<uint16_t>(0x3F00 | (rng.Next() & 0x80FF));
    return x;
  };
  const std::vector<BF16> x = random(kRows * kK), w = random(kN * kK);
  std::vector<BF16> strips(w.size()), all(kRows * kN), some(kFew * kN);
  device.LayOut({const_cast<BF16*>(w.data()), kN, kK, DType::kBFloat16}, strips.data());
  const auto multiply = [&](int64_t first, int64_t rows, BF16* y) {
    device.Multiply(MultiplyArgs<BF16>{.rows = rows,
                                       .n = kN,
                                       .k = kK,
                                       .x = x.data() + first * kK,
                                       .w = strips.data(),
                                       .y = y,
                                       .strips = true});
  };
  multiply(0, kRows, all.data());
  for (int64_t first : {int64_t{0}, rng.Below(kRows - kFew), kRows - kFew}) {
    multiply(first, kFew, some.data());
    EXPECT_EQ(std::memcmp(some.data(), all.data() + first * kN, some.size() * sizeof(BF16)), 0) << first;
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
