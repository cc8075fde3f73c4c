#pragma once
// The C interface of libtidepool_cuda.so, looked up by name at run time. Included by both sides, so it
// names neither CUDA nor LibTorch types. device::Device, comm::DeviceSum and the structs of
// core/device/arguments.h are part of it.

#include <cstdint>

namespace tidepool::cuda {

// A number of the text of all headers that both sides have to agree on (core/cuda/CMakeLists.txt); a build by
// scripts/cuda-test compiles both sides at once and needs none.
#ifdef TIDEPOOL_CUDA_INTERFACE
inline constexpr int kAbi = TIDEPOOL_CUDA_INTERFACE;
#else
inline constexpr int kAbi = 0;
#endif

// A GPU, as its driver describes it.
struct GpuFacts {
  char name[256];
  int32_t capability;  // 10 major + minor
  int64_t free_bytes;  // beside a context of this process, which asking makes
  int64_t total_bytes;
};

extern "C" {
using AbiFunction = int();
using ErrorFunction = const char*(int code);               // what a cudaError_t says
using DeviceCountFunction = int(int* count);               // 0 or a cudaError_t
using GpuFactsFunction = int(int index, GpuFacts* facts);  // 0 or a cudaError_t
using OldestFunction = int();  // the oldest compute capability that the kernels were built for
// The two below write a message of at most error_bytes - 1 characters on failure and return non-zero.
// batch_invariant: 0 or 1. device (out): std::unique_ptr<device::Device>*.
using DeviceFunction = int(int index, int batch_invariant, void* device, char* error, int64_t error_bytes);
// rendezvous: const std::shared_ptr<comm::Rendezvous>*, of the ranks.
// sum (out): std::unique_ptr<comm::DeviceSum>*, of memory of GPU `index`.
using NcclSumFunction = int(int index, const void* rendezvous, int rank, int size, int64_t timeout_ms,
                            void* sum, char* error, int64_t error_bytes);
}

}  // namespace tidepool::cuda
