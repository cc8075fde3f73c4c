// What a launch needs to know of its device, and what went wrong with one, in CUDA's words.
#include "core/cuda/device_code.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {

std::string ErrorText(int code) { return LaunchError(code); }

#ifndef TIDEPOOL_CUDA_EMULATION
namespace {
__global__ void ProbeKernel() {}  // built like all others
}  // namespace

bool StartsEarly() {
  static thread_local int known_device = -1;
  static thread_local bool known = false;
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (device != known_device) {
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
      return false;
    known_device = device;
    // Code that a newer GPU made of older PTX has no wait in it.
    cudaFuncAttributes built = {};
    if (cudaFuncGetAttributes(&built, ProbeKernel) != cudaSuccess) return false;
    known = major >= 9 && built.ptxVersion >= 90;
  }
  return known;
}
#endif

}  // namespace tidepool::cuda
