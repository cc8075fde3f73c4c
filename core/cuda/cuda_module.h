#pragma once
// libtidepool_cuda.so: GPUs as devices and sums over them by NCCL, loaded at run time where a GPU is, so that
// one build of tidepool-worker runs on machines with and without one and never needs CUDA libraries on the
// latter. No CUDA or LibTorch header is needed to use it.
//
// Functions may be called from any thread.

#include <chrono>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/cuda/abi.h"
#include "core/device/device.h"

namespace tidepool::cuda {

// Looked up by Load(); null where the module was built without them (device and nccl_sum only).
struct Entry {
  ErrorFunction* error = nullptr;
  GpuFactsFunction* gpu_facts = nullptr;
  OldestFunction* oldest = nullptr;
  DeviceFunction* device = nullptr;
  NcclSumFunction* nccl_sum = nullptr;
};

struct Gpu {
  std::string name;
  int capability = 0;      // compute capability, 10 major + minor
  int64_t free_bytes = 0;  // beside a context of this process
  int64_t total_bytes = 0;
};
std::string CapabilityText(int capability);  // "9.0"

class CudaModule {
 public:
  // kNotFound: no such file. kFailedPrecondition: no NVIDIA driver, no GPU, a library that the module needs
  // is missing, or it was built from other sources. A machine without a driver is told so before the
  // module is touched. A loaded module stays for the life of the process: CUDA code cannot be unloaded.
  static StatusOr<CudaModule> Load(const std::string& path);
  // libtidepool_cuda.so from beside the program that runs.
  static StatusOr<CudaModule> LoadBesideProgram();

  [[nodiscard]] int device_count() const { return device_count_; }
  [[nodiscard]] bool has_nccl() const { return entry_.nccl_sum != nullptr; }

  // kInternal: with CUDA's message.  requires index in [0, device_count())
  [[nodiscard]] StatusOr<Gpu> Describe(int index) const;
  // Whether this module makes a device of such a GPU. kUnimplemented: it was built without LibTorch's CUDA
  // part. kFailedPrecondition: the GPU is older than what the kernels were built for.
  [[nodiscard]] Status CheckUsable(const Gpu& gpu) const;

  // GPU `index`; `batch_invariant`: Device::batch_invariant. kUnimplemented: the module was built without
  // LibTorch's CUDA part; kInternal: with LibTorch's message.
  [[nodiscard]] StatusOr<std::unique_ptr<device::Device>> MakeDevice(int index,
                                                                     bool batch_invariant = false) const;

  // Meets the other ranks and sums memory of GPU `index` by NCCL. kUnimplemented: the
  // module was built without it; kInternal: with LibTorch's message.
  [[nodiscard]] StatusOr<std::unique_ptr<comm::DeviceSum>> MakeNcclSum(
      int index, const std::shared_ptr<comm::Rendezvous>& rendezvous, int rank, int size,
      std::chrono::milliseconds timeout) const;

 private:
  CudaModule(const Entry& entry, int device_count) : entry_(entry), device_count_(device_count) {}
  Entry entry_;
  int device_count_ = 0;
};

}  // namespace tidepool::cuda
