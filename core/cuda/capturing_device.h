#pragma once
// CudaDevice with CUDA graphs, as LibTorch captures them: what its products allocate on the way stays the
// graphs' own, in one pool. Part of the module only; it ran on an H100. Tests without a GPU have graphs of
// the emulation (tests/core/cuda/emulated_device.h).

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>

#include "core/cuda/cuda_device.h"

namespace tidepool::cuda {

class CapturingDevice : public CudaDevice {
 public:
  using CudaDevice::CudaDevice;
  [[nodiscard]] bool has_graphs() const override { return true; }
  // To ask for them the GPU has to be waited for, which no capture may: nothing while one goes on.
  [[nodiscard]] std::optional<int64_t> free_bytes() override;

 protected:
  std::unique_ptr<device::Recording> NewRecording() override;

 private:
  class Capture;

  // What kernels are captured on. One for all graphs: cuBLAS keeps memory for each stream.
  std::unique_ptr<c10::cuda::CUDAStream> stream_;
  // Of all graphs that are alive, which run one after the other: each pool is 2 MiB at least. LibTorch gives
  // up the pool of a graph that was the last one, and refuses its number from then on.
  std::weak_ptr<const at::cuda::MempoolId_t> pool_;
  bool capturing_ = false;
};

}  // namespace tidepool::cuda
