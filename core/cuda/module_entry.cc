// Entry points of libtidepool_cuda.so: identity and errors. Part of the module only.

#include <cuda_runtime_api.h>

#include "core/cuda/abi.h"

#define TP_EXPORT extern "C" __attribute__((visibility("default")))

namespace tidepool::cuda {

TP_EXPORT int tidepool_cuda_abi() { return kAbi; }

TP_EXPORT const char* tidepool_cuda_error(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

TP_EXPORT int tidepool_cuda_device_count(int* count) { return static_cast<int>(cudaGetDeviceCount(count)); }

}  // namespace tidepool::cuda
