#include "tests/core/device/test_device.h"

#include <cstdlib>
#include <iostream>
#include <string_view>
#include <utility>

#include "core/device/torch_device.h"
#include "tests/core/device/checked_device.h"
#include "tests/core/device/graph_device.h"
#ifdef TIDEPOOL_TEST_CUDA_MODULE
#include "core/cuda/cuda_module.h"
#include "tests/core/cuda/emulated_device.h"
#endif

namespace tidepool::device {

#ifdef TIDEPOOL_TEST_CUDA_MODULE
namespace {

std::shared_ptr<Device> Gpu() {
  const StatusOr<cuda::CudaModule> module = cuda::CudaModule::Load(TIDEPOOL_TEST_CUDA_MODULE);
  if (!module.ok()) {
    std::cout << "skipped: " << module.status().ToString() << std::endl;
    std::exit(77);  // SKIP_RETURN_CODE of the tests that ask for a GPU
  }
  StatusOr<std::unique_ptr<Device>> device = module->MakeDevice(0);
  TP_CHECK(device.ok()) << device.status().ToString();
  return std::move(device).value();
}

}  // namespace
#endif

std::shared_ptr<Device> TestDevice() {
  const char* wanted = std::getenv("TIDEPOOL_TEST_DEVICE");
  const std::string_view name = wanted == nullptr ? "cpu" : wanted;
  if (name == "cpu") return std::make_shared<CpuDevice>();
  if (name == "torch") return std::make_shared<TorchDevice>(c10::kCPU);
#ifdef TIDEPOOL_TEST_CUDA_MODULE
  if (name == "gpu") return Gpu();
  if (name == "cuda" || name == "cuda_invariant")
    return std::make_shared<cuda::EmulatedCudaDevice>(
        cuda::CudaDeviceOptions{.batch_invariant = name == "cuda_invariant"});
#endif
  if (name == "graphs") return std::make_shared<GraphDevice>();
  TP_CHECK(name == "checked") << "TIDEPOOL_TEST_DEVICE is " << name
                              << ", expected cpu, checked, graphs, torch, gpu, or cuda or cuda_invariant "
                                 "(without the thread sanitizer)";
  return std::make_shared<CheckedDevice>();
}

std::shared_ptr<Device> DeviceWithGraphs() {
  std::shared_ptr<Device> device = TestDevice();
  return device->has_graphs() ? device : std::make_shared<GraphDevice>();
}

}  // namespace tidepool::device
