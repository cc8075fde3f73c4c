// What a launch needs to know of its device, and what went wrong with one, in CUDA's words.
#include <map>
#include <mutex>
#include <utility>

#include "core/cuda/device_code.h"
#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {

std::string ErrorText(int code) { return LaunchError(code); }

#ifndef TIDEPOOL_CUDA_EMULATION
namespace {
__global__ void ProbeKernel() {}  // built like all others

thread_local std::string refused;  // why the last launch was
}  // namespace

std::string LaunchError(int code) {
  const auto error = static_cast<cudaError_t>(code);
  return error == cudaErrorInvalidConfiguration && !refused.empty() ? refused : cudaGetErrorString(error);
}

int SharedMax() {
  static thread_local int known_device = -1, known = 0;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (device != known_device) {
    if (cudaDeviceGetAttribute(&known, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
      return 0;
    known_device = device;
  }
  return known;
}

int Multiprocessors() {
  static thread_local int known_device = -1, known = 0;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (device != known_device) {
    if (cudaDeviceGetAttribute(&known, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
    known_device = device;
  }
  return known;
}

int AllowShared(const void* kernel, const Grid& grid) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> allowed;  // by device and kernel, bytes
  int device = 0;
  if (const cudaError_t code = cudaGetDevice(&device); code != cudaSuccess) return static_cast<int>(code);
  const std::lock_guard lock(mutex);
  const auto [at, added] = allowed.try_emplace({device, kernel}, 0);
  if (added) {
    cudaFuncAttributes built = {};
    cudaError_t code = cudaFuncGetAttributes(&built, kernel);
    const int most = SharedMax() - static_cast<int>(built.sharedSizeBytes);
    if (code == cudaSuccess)
      code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    if (code != cudaSuccess) {
      allowed.erase(at);
      return static_cast<int>(code);
    }
    at->second = most;
  }
  refused.clear();
  if (grid.shared_bytes <= at->second) return 0;
  refused = std::string("kernel ") + grid.name + " needs " + std::to_string(grid.shared_bytes) +
            " bytes of shared memory beside what it declares, and a block of this GPU has " +
            std::to_string(at->second);
  return static_cast<int>(cudaErrorInvalidConfiguration);
}

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
