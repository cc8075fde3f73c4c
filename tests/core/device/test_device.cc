#include "tests/core/device/test_device.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/device/torch_device.h"
#include "tests/core/device/checked_device.h"
#ifdef TIDEPOOL_TEST_CUDA_DEVICE
#include "tests/core/cuda/emulated_device.h"
#endif

namespace tidepool::device {

std::shared_ptr<Device> TestDevice(CpuDeviceOptions options) {
  const char* wanted = std::getenv("TIDEPOOL_TEST_DEVICE");
  const std::string_view name = wanted == nullptr ? "cpu" : wanted;
  if (name == "cpu") return std::make_shared<CpuDevice>(std::move(options));
  if (name == "torch") return std::make_shared<TorchDevice>(c10::kCPU);
#ifdef TIDEPOOL_TEST_CUDA_DEVICE
  if (name == "cuda") return std::make_shared<cuda::EmulatedCudaDevice>();
#endif
  TP_CHECK(name == "checked") << "TIDEPOOL_TEST_DEVICE is " << name
                              << ", expected cpu, checked, torch or cuda (without the thread sanitizer)";
  return std::make_shared<CheckedDevice>(std::move(options));
}

}  // namespace tidepool::device
