#include "core/cuda/cuda_module.h"

#include <dlfcn.h>

#include <string>

#include "tests/core/cuda/test_framework.h"

namespace tidepool::cuda {
namespace {

TEST(CudaModuleTest, AMissingModuleIsNamed) {
  const auto module = CudaModule::Load("/nonexistent/libtidepool_cuda.so");
  EXPECT_FALSE(module.ok());
  EXPECT_TRUE(module.status().code() == StatusCode::kNotFound) << module.status().ToString();
  EXPECT_TRUE(module.status().message().find("/nonexistent/libtidepool_cuda.so") != std::string::npos)
      << module.status().ToString();
}

TEST(CudaModuleTest, AMachineWithoutADriverOrAFileThatIsNoModuleIsToldSo) {
  const std::string path = "/proc/version";  // readable, and no shared object
  const auto module = CudaModule::Load(path);
  EXPECT_FALSE(module.ok());
  EXPECT_TRUE(module.status().code() == StatusCode::kFailedPrecondition) << module.status().ToString();
  const bool driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr;
  EXPECT_TRUE(module.status().message().find(driver ? path : "no NVIDIA driver") != std::string::npos)
      << module.status().ToString();
}

}  // namespace
}  // namespace tidepool::cuda
