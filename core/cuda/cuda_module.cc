#include "core/cuda/cuda_module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <utility>

#include "core/base/check.h"

namespace tidepool::cuda {
namespace {

template <typename F>
Status Find(void* library, const std::string& path, const char* name, F** function) {
  *function = reinterpret_cast<F*>(dlsym(library, name));
  if (*function != nullptr) return OkStatus();
  return FailedPrecondition(path + ": has no function " + name +
                            "; rebuild it from the sources of this program");
}

// Runs a function of the module that writes a message where it fails.
template <typename F>
Status Call(const std::string& what, F call) {
  std::array<char, 1024> error{};
  if (call(error.data(), static_cast<int64_t>(error.size())) == 0) return OkStatus();
  return Internal(what + ": " + error.data());
}

constexpr const char* kNoTorch =
    "libtidepool_cuda.so was built without LibTorch's CUDA part; build it with a LibTorch that has "
    "libtorch_cuda.so";

}  // namespace

std::string CapabilityText(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

StatusOr<CudaModule> CudaModule::Load(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0) {
    return NotFound(path +
                    ": no such module; build it on a machine with nvcc (target tidepool_cuda_module), or use "
                    "cluster.device: cpu");
  }
  // The driver stays loaded, as the module's run time wants it anyway.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* why = dlerror();
    return FailedPrecondition(std::string("this machine has no NVIDIA driver that can be used (") +
                              (why == nullptr ? "libcuda.so.1 cannot be loaded" : why) +
                              "); use cluster.device: cpu");
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return FailedPrecondition(path + ": cannot be loaded: " + (why == nullptr ? "no reason given" : why) +
                              "; a library that is not there is one of CUDA's: scripts/setup installs them, "
                              "LD_LIBRARY_PATH may name their folder; or use cluster.device: cpu");
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
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_gpu_facts", &entry.gpu_facts));
  TP_RETURN_IF_ERROR(Find(library, path, "tidepool_cuda_oldest", &entry.oldest));
  entry.device = reinterpret_cast<DeviceFunction*>(dlsym(library, "tidepool_cuda_device"));
  entry.nccl_sum = reinterpret_cast<NcclSumFunction*>(dlsym(library, "tidepool_cuda_nccl_sum"));
  int count = 0;
  if (const int code = device_count(&count); code != 0 || count == 0) {
    return FailedPrecondition(
        std::string("the NVIDIA driver shows no GPU") +
        (code == 0 ? std::string() : std::string(" (") + entry.error(code) + ")") +
        "; CUDA 13 needs a driver of 580 or newer; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use "
        "cluster.device: cpu");
  }
  return CudaModule(entry, count);
}

StatusOr<CudaModule> CudaModule::LoadBesideProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return Load((self.parent_path() / "libtidepool_cuda.so").string());
}

StatusOr<Gpu> CudaModule::Describe(int index) const {
  TP_CHECK(index >= 0 && index < device_count_) << "GPU " << index << " of " << device_count_;
  GpuFacts facts{};
  if (const int code = entry_.gpu_facts(index, &facts); code != 0)
    return Internal("GPU " + std::to_string(index) + ": " + entry_.error(code));
  return Gpu{facts.name, facts.capability, facts.free_bytes, facts.total_bytes};
}

Status CudaModule::CheckUsable(const Gpu& gpu) const {
  if (entry_.device == nullptr) return Unimplemented(kNoTorch);
  if (const int oldest = entry_.oldest(); gpu.capability < oldest) {
    return FailedPrecondition("has compute capability " + CapabilityText(gpu.capability) +
                              ", and the kernels need " + CapabilityText(oldest) +
                              " or newer; take another GPU, or use cluster.device: cpu");
  }
  return OkStatus();
}

StatusOr<std::unique_ptr<device::Device>> CudaModule::MakeDevice(int index, bool batch_invariant) const {
  if (entry_.device == nullptr) return Unimplemented(kNoTorch);
  std::unique_ptr<device::Device> made;
  TP_RETURN_IF_ERROR(Call("GPU " + std::to_string(index), [&](char* error, int64_t bytes) {
    return entry_.device(index, batch_invariant ? 1 : 0, &made, error, bytes);
  }));
  return made;
}

StatusOr<std::unique_ptr<comm::DeviceSum>> CudaModule::MakeNcclSum(
    int index, const std::shared_ptr<comm::Rendezvous>& rendezvous, int rank, int size,
    std::chrono::milliseconds timeout) const {
  if (!has_nccl()) {
    return Unimplemented(
        "libtidepool_cuda.so was built without NCCL; build it with a LibTorch that has libtorch_cuda.so and "
        "with nccl.h");
  }
  std::unique_ptr<comm::DeviceSum> made;
  TP_RETURN_IF_ERROR(Call("NCCL group, rank " + std::to_string(rank) + " of " + std::to_string(size),
                          [&](char* error, int64_t bytes) {
                            return entry_.nccl_sum(index, &rendezvous, rank, size, timeout.count(), &made,
                                                   error, bytes);
                          }));
  return made;
}

}  // namespace tidepool::cuda
