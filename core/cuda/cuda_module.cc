#include "core/cuda/cuda_module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace tidepool::cuda {
namespace {

template <typename F>
Status Find(void* library, const std::string& path, const char* name, F** function) {
  *function = reinterpret_cast<F*>(dlsym(library, name));
  if (*function != nullptr) return OkStatus();
  return FailedPrecondition(path + ": has no function " + name +
                            "; rebuild it from the sources of this program");
}

}  // namespace

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      free_(other.free_) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(free_, other.free_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  // An error here has been reported by the call that caused it: after it every call of CUDA fails.
  if (data_ != nullptr) free_(data_);
}

StatusOr<CudaModule> CudaModule::Load(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0) {
    return NotFound(path + ": no such module; build it on a machine with nvcc (target tidepool_cuda_module)");
  }
  // The driver stays loaded, as the module's run time wants it anyway.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return FailedPrecondition(
        "this machine has no NVIDIA driver (libcuda.so.1 cannot be loaded); use cluster.device: cpu");
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return FailedPrecondition(path + ": cannot be loaded: " + (why == nullptr ? "no reason given" : why));
  }
  AbiFunction* abi = nullptr;
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_abi", &abi));
  if (const int found = abi(); found != kAbi) {
    return FailedPrecondition(path + ": speaks interface " + std::to_string(found) + ", expected " +
                              std::to_string(kAbi) + "; rebuild it from the sources of this program");
  }
  Entry entry;
  DeviceCountFunction* device_count = nullptr;
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_error", &entry.error));
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_device_count", &device_count));
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_token_logprob", &entry.token_logprob));
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_launches", &entry.launches));
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_allocate", &entry.allocate));
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_free", &entry.free));
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_copy", &entry.copy));
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_synchronize", &entry.synchronize));
  entry.nccl_group = reinterpret_cast<NcclGroupFunction*>(dlsym(library, "tidepool_cuda_nccl_group"));
  int count = 0;
  if (const int code = device_count(&count); code != 0 || count == 0) {
    return FailedPrecondition(std::string("the NVIDIA driver shows no GPU") +
                              (code == 0 ? std::string() : std::string(" (") + entry.error(code) + ")") +
                              "; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use cluster.device: cpu");
  }
  return CudaModule(entry, count);
}

Status CudaModule::Check(int code, const std::string& what) const {
  if (code == 0) return OkStatus();
  return Internal(what + ": CUDA error " + std::to_string(code) + " (" + entry_.error(code) + ")");
}

Status CudaModule::TokenLogProb(const TokenLogProbArgs& args, void* stream) const {
  return Check(entry_.token_logprob(&args, stream), "token_logprob");
}

StatusOr<DeviceMemory> CudaModule::Allocate(int64_t bytes) const {
  void* data = nullptr;
  if (const int code = entry_.allocate(&data, bytes); code != 0) {
    return ResourceExhausted(std::to_string(bytes) + " bytes of device memory: " + entry_.error(code));
  }
  return DeviceMemory(data, bytes, entry_.free);
}

Status CudaModule::Copy(void* to, const void* from, int64_t bytes) const {
  return Check(entry_.copy(to, from, bytes), "copy of " + std::to_string(bytes) + " bytes");
}

Status CudaModule::Synchronize(void* stream) const {
  return Check(entry_.synchronize(stream), "synchronize");
}

Status CudaModule::MakeNcclGroup(const void* store, int rank, int size, std::chrono::milliseconds timeout,
                                 void* backend) const {
  if (!has_nccl()) {
    return Unimplemented(
        "libtidepool_cuda.so was built without NCCL; build it with a LibTorch that has libtorch_cuda.so and "
        "with nccl.h");
  }
  std::array<char, 1024> error{};
  if (entry_.nccl_group(store, rank, size, timeout.count(), backend, error.data(),
                        static_cast<int64_t>(error.size())) == 0) {
    return OkStatus();
  }
  return Internal("NCCL process group, rank " + std::to_string(rank) + " of " + std::to_string(size) + ": " +
                  error.data());
}

}  // namespace tidepool::cuda
