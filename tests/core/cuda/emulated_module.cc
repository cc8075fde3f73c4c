// A stand-in for libtidepool_cuda.so whose GPUs are emulated on the CPU (emulated_device.h): so whole jobs go
// through the loader, the workers and the device as with the module itself. For tests only.
//   TIDEPOOL_EMULATED_GPUS        how many there are; 1
//   TIDEPOOL_EMULATED_CAPABILITY  compute capability, 10 major + minor; 80
//   TIDEPOOL_EMULATED_MEMORY      bytes of each; 1 GiB
//   TIDEPOOL_EMULATED_GIVES       of them, what a process gets; all
//   TIDEPOOL_EMULATED_ABI         what it was built for; as the program

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "core/comm/collective.h"
#include "core/cuda/abi.h"
#include "core/cuda/module_error.h"
#include "tests/core/cuda/emulated_device.h"

#define TP_EXPORT extern "C" __attribute__((visibility("default")))

namespace tidepool::cuda {
namespace {

int64_t Setting(const char* name, int64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoll(text, nullptr, 10);
}
int64_t Memory() { return Setting("TIDEPOOL_EMULATED_MEMORY", int64_t{1} << 30); }

// "GPU" memory is the host's, so Gloo can add it up.
class EmulatedSum : public comm::DeviceSum {
 public:
  explicit EmulatedSum(std::unique_ptr<comm::Collective> group) : group_(std::move(group)) {}
  Status AllReduceSum(float* values, int64_t n, const std::string& tag) override {
    std::fprintf(stderr, "emulated all_reduce of %lld elements\n", static_cast<long long>(n));
    return group_->AllReduceSum(std::span(values, static_cast<size_t>(n)), tag);
  }

 private:
  std::unique_ptr<comm::Collective> group_;
};

}  // namespace

TP_EXPORT int tidepool_cuda_abi() { return static_cast<int>(Setting("TIDEPOOL_EMULATED_ABI", kAbi)); }
TP_EXPORT const char* tidepool_cuda_error(int) { return "an emulated error"; }
TP_EXPORT int tidepool_cuda_device_count(int* count) {
  *count = static_cast<int>(Setting("TIDEPOOL_EMULATED_GPUS", 1));
  return 0;
}
TP_EXPORT int tidepool_cuda_oldest() { return 80; }
TP_EXPORT int tidepool_cuda_gpu_facts(int, GpuFacts* facts) {
  *facts = {.name = "Emulated GPU",
            .capability = static_cast<int32_t>(Setting("TIDEPOOL_EMULATED_CAPABILITY", 80)),
            .free_bytes = Memory(),
            .total_bytes = Memory()};
  return 0;
}
TP_EXPORT int tidepool_cuda_device(int, int batch_invariant, void* device, char*, int64_t) {
  *static_cast<std::unique_ptr<device::Device>*>(device) =
      std::make_unique<EmulatedCudaDevice>(CudaDeviceOptions{.batch_invariant = batch_invariant != 0},
                                           Memory(), Setting("TIDEPOOL_EMULATED_GIVES", Memory()));
  return 0;
}
TP_EXPORT int tidepool_cuda_nccl_sum(int, const void* rendezvous, int rank, int size, int64_t timeout_ms,
                                     void* sum, char* error, int64_t error_bytes) {
  auto group =
      comm::MakeGroup({.rendezvous = *static_cast<const std::shared_ptr<comm::Rendezvous>*>(rendezvous),
                       .name = "nccl",
                       .rank = rank,
                       .size = size,
                       .timeout_s = static_cast<double>(timeout_ms) / 1000});
  if (!group.ok()) return Fail(group.status().message(), error, error_bytes);
  *static_cast<std::unique_ptr<comm::DeviceSum>*>(sum) = std::make_unique<EmulatedSum>(std::move(*group));
  return 0;
}

}  // namespace tidepool::cuda
