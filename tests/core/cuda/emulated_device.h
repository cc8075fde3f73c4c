#pragma once
// CudaDevice on the CPU: its own kernels under the emulation, what is LibTorch's on the host's memory.
// Accesses of kernels are checked as the emulation does it, but for reads of what nobody wrote: device memory
// is zeroed.

#include "core/cuda/cuda_device.h"

namespace tidepool::cuda {

class EmulatedCudaDevice : public CudaDevice {
 public:
  EmulatedCudaDevice() : CudaDevice(c10::kCPU) {}
  [[nodiscard]] std::string name() const override { return "emulated cuda"; }
  // Kernels find what Allocate gave alone, as on a GPU.
  [[nodiscard]] bool host_memory() const override { return false; }
  void Synchronize() override {}
  StatusOr<std::shared_ptr<device::Buffer>> Allocate(int64_t bytes) override;
};

}  // namespace tidepool::cuda
