// One rank on one GPU: the group is made, sums, and refuses what it should. Needs a GPU and LibTorch's CUDA
// part.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "core/cuda/cuda_module.h"
#include "tests/core/cuda/test_framework.h"

namespace tidepool::cuda {
namespace {

TEST(NcclGroupTest, AGroupOfOneSumsToItself) {
  const auto module = CudaModule::Load(TIDEPOOL_CUDA_MODULE);
  if (!module.ok()) GTEST_SKIP() << module.status().ToString();
  if (!module->has_nccl()) GTEST_SKIP() << "the module was built without NCCL";
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  c10::intrusive_ptr<c10d::Backend> group;
  const Status status = module->MakeNcclGroup(&store, 0, 1, std::chrono::seconds(30), &group);
  ASSERT_TRUE(status.ok()) << status.ToString();
  at::Tensor x = at::empty({1000}, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA, 0));
  x.fill_(3.0);
  std::vector<at::Tensor> tensors = {x};
  group->allreduce(tensors)->wait();
  EXPECT_EQ(x.sum().item<double>(), 3000.0);
  EXPECT_FALSE(module->MakeNcclGroup(&store, 2, 1, std::chrono::seconds(1), &group).ok());
}

}  // namespace
}  // namespace tidepool::cuda
