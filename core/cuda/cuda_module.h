#pragma once
// libtidepool_cuda.so: GPUs as devices and the NCCL process group, loaded at run time where a GPU is, so that
// one build of tidepool-worker runs on machines with and without one and never needs CUDA libraries on the
// latter. No CUDA or LibTorch header is needed to use it.
//
// Functions may be called from any thread.

#include <chrono>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/cuda/abi.h"
#include "core/device/device.h"

namespace tidepool::cuda {

// Looked up by Load(); null where the module was built without them (device and nccl_group only).
struct Entry {
  ErrorFunction* error = nullptr;
  DeviceFunction* device = nullptr;
  NcclGroupFunction* nccl_group = nullptr;
};

class CudaModule {
 public:
  // kNotFound: no such file. kFailedPrecondition: no NVIDIA driver, no GPU, a library that the module needs
  // is missing, or it was built from other sources. A machine without a driver is told so before the
  // module is touched. A loaded module stays for the life of the process: CUDA code cannot be unloaded.
  static StatusOr<CudaModule> Load(const std::string& path);

  [[nodiscard]] int device_count() const { return device_count_; }
  [[nodiscard]] bool has_nccl() const { return entry_.nccl_group != nullptr; }

  // GPU `index`. kUnimplemented: the module was built without LibTorch's CUDA part; kInternal: with
  // LibTorch's message.
  [[nodiscard]] StatusOr<std::unique_ptr<device::Device>> MakeDevice(int index) const;

  // c10d's NCCL backend for the calling thread's device. `store` is a const c10::intrusive_ptr<c10d::Store>*,
  // `backend` a c10::intrusive_ptr<c10d::Backend>* that is set. kUnimplemented: the module was built without
  // NCCL; kInternal: with LibTorch's message.
  Status MakeNcclGroup(const void* store, int rank, int size, std::chrono::milliseconds timeout,
                       void* backend) const;

 private:
  CudaModule(const Entry& entry, int device_count) : entry_(entry), device_count_(device_count) {}
  Entry entry_;
  int device_count_ = 0;
};

}  // namespace tidepool::cuda
