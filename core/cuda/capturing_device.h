#pragma once
// CudaDevice with CUDA graphs, as LibTorch captures them: what its products allocate on the way stays the
// graph's own. Part of the module only; it ran on an H100. Tests without a GPU have graphs of the
// emulation (tests/core/cuda/emulated_device.h).

#include <c10/cuda/CUDAStream.h>

#include <memory>

#include "core/cuda/cuda_device.h"

namespace tidepool::cuda {

class CapturingDevice : public CudaDevice {
 public:
  using CudaDevice::CudaDevice;
  [[nodiscard]] bool has_graphs() const override { return true; }
  std::unique_ptr<device::Graph> Record(const std::function<void()>& kernels) override;

 private:
  // What kernels are captured on. One for all graphs: cuBLAS keeps memory for each stream.
  std::unique_ptr<c10::cuda::CUDAStream> stream_;
};

}  // namespace tidepool::cuda
