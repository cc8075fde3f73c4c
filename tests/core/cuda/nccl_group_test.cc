// One rank on one GPU: the group is made, sums, and refuses what it should. Needs a GPU and LibTorch's CUDA
// part.

#include <chrono>
#include <memory>
#include <vector>

#include "core/comm/rendezvous_table.h"
#include "core/cuda/cuda_module.h"
#include "tests/core/cuda/test_framework.h"

namespace tidepool::cuda {
namespace {

TEST(NcclGroupTest, AGroupOfOneSumsToItself) {
  const auto module = CudaModule::Load(TIDEPOOL_CUDA_MODULE);
  if (!module.ok()) GTEST_SKIP() << module.status().ToString();
  if (!module->has_nccl()) GTEST_SKIP() << "the module was built without NCCL";
  const auto device = module->MakeDevice(0);
  ASSERT_TRUE(device.ok()) << device.status().ToString();
  const auto sum =
      module->MakeNcclSum(0, std::make_shared<comm::RendezvousTable>(), 0, 1, std::chrono::seconds(30));
  ASSERT_TRUE(sum.ok()) << sum.status().ToString();
  const std::vector<float> values(1000, 3.0F);
  const auto memory = (*device)->Allocate(4000).value();
  auto* data = static_cast<float*>(memory->data());
  (*device)->Upload(data, std::span<const float>(values));
  ASSERT_TRUE((*sum)->AllReduceSum(data, 1000, "test").ok());
  EXPECT_TRUE((*device)->Read(data, 1000) == values);
  EXPECT_FALSE(
      module->MakeNcclSum(0, std::make_shared<comm::RendezvousTable>(), 2, 1, std::chrono::seconds(1)).ok());
}

}  // namespace
}  // namespace tidepool::cuda
