#pragma once
// libtidepool_cuda.so: kernels and the NCCL process group, loaded at run time where a GPU is, so that one
// build of tidepool-worker runs on machines with and without one and never needs CUDA libraries on the
// latter. No CUDA or LibTorch header is needed to use it.
//
// Functions may be called from any thread; they act on the calling thread's current device.

#include <chrono>
#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/cuda/abi.h"

namespace tidepool::cuda {

// Looked up by Load(); empty where the module has none (nccl_group only).
struct Entry {
  ErrorFunction* error = nullptr;
  TokenLogProbFunction* token_logprob = nullptr;
  LaunchesFunction* launches = nullptr;
  AllocateFunction* allocate = nullptr;
  FreeFunction* free = nullptr;
  CopyFunction* copy = nullptr;
  SynchronizeFunction* synchronize = nullptr;
  NcclGroupFunction* nccl_group = nullptr;
};

// Device memory; freed with the object.
class DeviceMemory {
 public:
  DeviceMemory(void* data, int64_t bytes, FreeFunction* free) : data_(data), bytes_(bytes), free_(free) {}
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  FreeFunction* free_ = nullptr;
};

class CudaModule {
 public:
  // kNotFound: no such file. kFailedPrecondition: no NVIDIA driver, no GPU, a library that the module needs
  // is missing, or it was built from other sources. A machine without a driver is told so before the
  // module is touched. A loaded module stays for the life of the process: CUDA code cannot be unloaded.
  static StatusOr<CudaModule> Load(const std::string& path);

  [[nodiscard]] int device_count() const { return device_count_; }
  [[nodiscard]] bool has_nccl() const { return entry_.nccl_group != nullptr; }

  // Asynchronous on `stream` (a cudaStream_t; null: the default one). kInternal with CUDA's message.
  Status TokenLogProb(const TokenLogProbArgs& args, void* stream = nullptr) const;

  // The table of all kernels, a Launches<T> (core/cuda/kernels/launch.h) of the type.
  [[nodiscard]] const void* Kernels(ElementType type) const {
    return entry_.launches(static_cast<int>(type));
  }

  StatusOr<DeviceMemory> Allocate(int64_t bytes) const;  // kResourceExhausted
  Status Copy(void* to, const void* from, int64_t bytes) const;
  Status Synchronize(void* stream = nullptr) const;

  // c10d's NCCL backend for the calling thread's device. `store` is a const c10::intrusive_ptr<c10d::Store>*,
  // `backend` a c10::intrusive_ptr<c10d::Backend>* that is set. kUnimplemented: the module was built without
  // NCCL; kInternal: with LibTorch's message.
  Status MakeNcclGroup(const void* store, int rank, int size, std::chrono::milliseconds timeout,
                       void* backend) const;

 private:
  CudaModule(const Entry& entry, int device_count) : entry_(entry), device_count_(device_count) {}
  [[nodiscard]] Status Check(int code, const std::string& what) const;
  Entry entry_;
  int device_count_ = 0;
};

}  // namespace tidepool::cuda
