// c10d's NCCL backend, made inside the module so that no other file needs libtorch_cuda or nccl.h.
//
// The wheel leaves nccl.h out, and ProcessGroupNCCL::Options holds an ncclConfig_t by value: a header of
// another NCCL than the one that LibTorch was built with would give the class another layout. So the
// header's version is compared with LibTorch's before anything is made.

#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>

#include <chrono>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "core/cuda/module_error.h"

namespace tidepool::cuda {

extern "C" __attribute__((visibility("default"))) int tidepool_cuda_nccl_group(const void* store, int rank,
                                                                               int size, int64_t timeout_ms,
                                                                               void* backend, char* error,
                                                                               int64_t error_bytes) {
  try {
    const uint64_t packed = torch::cuda::nccl::version();  // major << 32 | minor << 16 | patch
    const uint64_t major = packed >> 32;
    const uint64_t minor = (packed >> 16) & 0xFFFF;
    if (major != NCCL_MAJOR || minor != NCCL_MINOR) {
      return Fail("LibTorch uses NCCL " + std::to_string(major) + "." + std::to_string(minor) +
                      ", but libtidepool_cuda.so was compiled with the nccl.h of " +
                      std::to_string(NCCL_MAJOR) + "." + std::to_string(NCCL_MINOR) +
                      "; rebuild it with the matching header",
                  error, error_bytes);
    }
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(timeout_ms);
    c10::intrusive_ptr<c10d::Backend> group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        *static_cast<const c10::intrusive_ptr<c10d::Store>*>(store), rank, size, options);
    *static_cast<c10::intrusive_ptr<c10d::Backend>*>(backend) = std::move(group);
    return 0;
  } catch (const std::exception& e) {
    return Fail(e.what(), error, error_bytes);
  }
}

}  // namespace tidepool::cuda
