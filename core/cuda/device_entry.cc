// A GPU as a device::Device, made inside the module. Part of the module only, where LibTorch has its CUDA
// part.

#include <ATen/Context.h>

#include <exception>
#include <memory>

#include "core/cuda/capturing_device.h"
#include "core/cuda/module_error.h"

namespace tidepool::cuda {

extern "C" __attribute__((visibility("default"))) int tidepool_cuda_device(int index, int batch_invariant,
                                                                           void* device, char* error,
                                                                           int64_t error_bytes) {
  try {
    // cuBLAS may add up the parts of a long sum in bfloat16 unless it is told otherwise.
    at::globalContext().setAllowBF16ReductionCuBLAS(false);
    auto made =
        std::make_unique<CapturingDevice>(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)),
                                          CudaDeviceOptions{.batch_invariant = batch_invariant != 0});
    made->Synchronize();  // a device that LibTorch cannot use says so here
    *static_cast<std::unique_ptr<device::Device>*>(device) = std::move(made);
    return 0;
  } catch (const std::exception& e) {
    return Fail(e.what(), error, error_bytes);
  }
}

}  // namespace tidepool::cuda
