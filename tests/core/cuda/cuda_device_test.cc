// A GPU behind the module: memory, and kernels of LibTorch and ours in the order of their calls. Every kernel
// is compared in tests/core/device/agreement_test.cc (TIDEPOOL_TEST_DEVICE=gpu), which needs more than this.

#include <cmath>
#include <memory>
#include <vector>

#include "core/cuda/cuda_module.h"
#include "core/device/batch_invariance.h"
#include "tests/core/cuda/test_framework.h"

namespace tidepool::cuda {
namespace {

template <typename V>
V* DataOf(const std::shared_ptr<device::Buffer>& memory) {
  return static_cast<V*>(memory->data());
}

TEST(CudaDeviceTest, KernelsOfLibTorchAndOursRunInTheOrderOfTheirCalls) {
  const auto module = CudaModule::Load(TIDEPOOL_CUDA_MODULE);
  if (!module.ok()) GTEST_SKIP() << module.status().ToString();
  const auto made = module->MakeDevice(0);
  if (made.status().code() == StatusCode::kUnimplemented) GTEST_SKIP() << made.status().ToString();
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  device::Device& device = **made;
  EXPECT_TRUE(device.name() == "cuda 0") << device.name();
  EXPECT_FALSE(device.host_memory());

  // y = x w^T (LibTorch) with w twice the identity, then the norm of y (ours), then y again (LibTorch).
  constexpr int64_t kRows = 64, kSize = 512;
  std::vector<float> x(kRows * kSize), w(kSize * kSize), ones(kSize, 1.0F);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 2.5F;
  for (size_t i = 0; i < kSize; ++i) w[i * kSize + i] = 2.0F;
  const auto put = [&](const std::vector<float>& values) {
    auto memory = device.Allocate(static_cast<int64_t>(values.size() * sizeof(float))).value();
    device.Upload(DataOf<float>(memory), std::span<const float>(values));
    return memory;
  };
  const auto d_x = put(x), d_w = put(w), d_y = put(x), d_weight = put(ones), d_norm = put(x);
  device.Zero(d_y->data(), d_y->bytes());
  EXPECT_EQ(device.Read(DataOf<float>(d_y), 3)[2], 0.0F);
  const device::MultiplyArgs<float> multiply{.rows = kRows,
                                             .n = kSize,
                                             .k = kSize,
                                             .x = DataOf<float>(d_x),
                                             .w = DataOf<float>(d_w),
                                             .y = DataOf<float>(d_y)};
  const device::RmsNormArgs<float> norm{.rows = kRows,
                                        .d = kSize,
                                        .x = DataOf<float>(d_y),
                                        .weight = DataOf<float>(d_weight),
                                        .out = DataOf<float>(d_norm)};
  device.Multiply(multiply);
  device.RmsNorm(norm);
  device.Multiply(multiply);
  const std::vector<float> got = device.Read(DataOf<float>(d_norm), kRows * kSize);
  for (int64_t r = 0; r < kRows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < kSize; ++c)
      squares += 4.0 * std::pow(static_cast<double>(x[static_cast<size_t>(r * kSize + c)]), 2);
    const double rstd = 1 / std::sqrt(squares / kSize);
    for (int64_t c = 0; c < kSize; ++c) {
      const auto at = static_cast<size_t>(r * kSize + c);
      EXPECT_NEAR(got[at], 2 * static_cast<double>(x[at]) * rstd, 2e-3)
          << r << ", " << c;  // products in TF32
    }
  }
  EXPECT_FALSE(device.Allocate(int64_t{1} << 50).ok());
  EXPECT_FALSE(module->MakeDevice(1000).ok());

  // dw += dy^T x of bfloat16 into float32: 64 rows of ones, so each element becomes 1 + 64.
  const std::vector<device::BF16> rows(static_cast<size_t>(kRows * kSize), device::BF16{0x3F80});
  const auto d_rows = device.Allocate(kRows * kSize * 2).value();
  device.Upload(DataOf<device::BF16>(d_rows), std::span<const device::BF16>(rows));
  const auto d_dw = put(std::vector<float>(kSize * kSize, 1.0F));
  device.MultiplyBackWeight(device::MultiplyBackWeightArgs<device::BF16>{.rows = kRows,
                                                                         .n = kSize,
                                                                         .k = kSize,
                                                                         .dy = DataOf<device::BF16>(d_rows),
                                                                         .x = DataOf<device::BF16>(d_rows),
                                                                         .dw = DataOf<float>(d_dw)});
  const std::vector<float> dw = device.Read(DataOf<float>(d_dw), kSize * kSize);
  for (const float value : dw) ASSERT_TRUE(value == 65.0F) << value;
}

TEST(CudaDeviceTest, ARowHasTheSameBitsInEveryBatchWhereThatIsAskedFor) {
  const auto module = CudaModule::Load(TIDEPOOL_CUDA_MODULE);
  if (!module.ok()) GTEST_SKIP() << module.status().ToString();
  const auto made = module->MakeDevice(0, /*batch_invariant=*/true);
  if (made.status().code() == StatusCode::kUnimplemented) GTEST_SKIP() << made.status().ToString();
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const std::vector<device::ProductShape> shapes = {
      {"qkv", 960, 576}, {"down", 576, 1536}, {"odd", 77, 50}, {"head", 49152, 576, /*head=*/true}};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Status tried = device::TryBatchInvariance(**made, shapes, dtype);
    EXPECT_TRUE(tried.ok()) << tried.ToString();
  }
}

TEST(CudaDeviceTest, AGraphComputesAgainFromWhatWasUploadedSince) {
  const auto module = CudaModule::Load(TIDEPOOL_CUDA_MODULE);
  if (!module.ok()) GTEST_SKIP() << module.status().ToString();
  const auto made = module->MakeDevice(0);
  if (made.status().code() == StatusCode::kUnimplemented) GTEST_SKIP() << made.status().ToString();
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  device::Device& device = **made;
  ASSERT_TRUE(device.has_graphs());

  // sigmoid(x w^T) with w twice the identity.
  constexpr int64_t kSize = 32;
  std::vector<float> x(kSize), w(kSize * kSize);
  for (size_t i = 0; i < kSize; ++i) w[i * kSize + i] = 2.0F;
  // Not Device::Put: its failure is an exception of LibTorch's, which this program does not link.
  const auto put = [&](const std::vector<float>& values) {
    auto memory = device.Allocate(static_cast<int64_t>(values.size() * sizeof(float))).value();
    device.Upload(DataOf<float>(memory), std::span<const float>(values));
    return memory;
  };
  const auto d_x = put(x), d_w = put(w), d_y = put(x);
  std::unique_ptr<device::Graph> graph;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kSize; ++i) x[i] = static_cast<float>(round) - static_cast<float>(i % 5);
    device.Upload(DataOf<float>(d_x), std::span<const float>(x));
    if (graph != nullptr) {
      graph->Launch();
    } else {
      graph = device.Record([&] {
        device.Multiply(device::MultiplyArgs<float>{.rows = 1,
                                                    .n = kSize,
                                                    .k = kSize,
                                                    .x = DataOf<float>(d_x),
                                                    .w = DataOf<float>(d_w),
                                                    .y = DataOf<float>(d_y)});
        device.Sigmoid({.n = kSize, .x = DataOf<float>(d_y)});
      });
    }
    const std::vector<float> got = device.Read(DataOf<float>(d_y), kSize);
    for (size_t i = 0; i < kSize; ++i)
      EXPECT_NEAR(got[i], 1 / (1 + std::exp(-2 * static_cast<double>(x[i]))), 1e-5) << round << ", " << i;
  }
}

}  // namespace
}  // namespace tidepool::cuda
