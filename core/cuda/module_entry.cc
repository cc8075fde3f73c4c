// Entry points of libtidepool_cuda.so: identity, GPUs and errors. Part of the module only.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "core/cuda/abi.h"

#define TP_EXPORT extern "C" __attribute__((visibility("default")))

// Of TIDEPOOL_GENCODE (cmake/cuda.cmake).
#ifndef TIDEPOOL_CUDA_OLDEST
#define TIDEPOOL_CUDA_OLDEST 80
#endif

namespace tidepool::cuda {

TP_EXPORT int tidepool_cuda_abi() { return kAbi; }

TP_EXPORT const char* tidepool_cuda_error(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

TP_EXPORT int tidepool_cuda_device_count(int* count) { return static_cast<int>(cudaGetDeviceCount(count)); }

TP_EXPORT int tidepool_cuda_oldest() { return TIDEPOOL_CUDA_OLDEST; }

TP_EXPORT int tidepool_cuda_gpu_facts(int index, GpuFacts* facts) {
  cudaDeviceProp properties;
  if (const cudaError_t code = cudaGetDeviceProperties(&properties, index); code != cudaSuccess) return code;
  *facts = {};
  std::memcpy(facts->name, properties.name, std::min(std::strlen(properties.name), sizeof(facts->name) - 1));
  facts->capability = 10 * properties.major + properties.minor;
  if (const cudaError_t code = cudaSetDevice(index); code != cudaSuccess) return code;
  size_t free = 0, total = 0;
  if (const cudaError_t code = cudaMemGetInfo(&free, &total); code != cudaSuccess) return code;
  facts->free_bytes = static_cast<int64_t>(free);
  facts->total_bytes = static_cast<int64_t>(total);
  return 0;
}

}  // namespace tidepool::cuda
