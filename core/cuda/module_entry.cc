// Entry points of libtidepool_cuda.so beside the kernels: identity, errors, and device memory for callers
// that do not bring their own (tests). Part of the module only.

#include <cuda_runtime_api.h>

#include "core/cuda/abi.h"

#define TP_EXPORT extern "C" __attribute__((visibility("default")))

namespace tidepool::cuda {

TP_EXPORT int tidepool_cuda_abi() { return kAbi; }

TP_EXPORT const char* tidepool_cuda_error(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

TP_EXPORT int tidepool_cuda_device_count(int* count) { return static_cast<int>(cudaGetDeviceCount(count)); }

TP_EXPORT int tidepool_cuda_allocate(void** device, int64_t bytes) {
  return static_cast<int>(cudaMalloc(device, static_cast<size_t>(bytes)));
}

TP_EXPORT int tidepool_cuda_free(void* device) { return static_cast<int>(cudaFree(device)); }

TP_EXPORT int tidepool_cuda_copy(void* to, const void* from, int64_t bytes) {
  return static_cast<int>(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault));
}

TP_EXPORT int tidepool_cuda_synchronize(void* stream) {
  // waits: for the kernels in this stream, all of bounded work; a hung device is the worker's watchdog's case
  return static_cast<int>(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

}  // namespace tidepool::cuda
