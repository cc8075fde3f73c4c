#pragma once
// The GPUs of this machine, for a process that computes: libtidepool_cuda.so is loaded from beside the
// program, which takes LibTorch's CUDA libraries with it. Programs without tensors ask `tidepool-worker gpus`
// instead (workers/controller/found_gpus.h).

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/choices.h"
#include "core/base/status.h"
#include "core/cuda/cuda_module.h"
#include "workers/device/model_reader.h"

namespace tidepool::workers {

// What `tidepool-worker gpus` prints: FoundGpus as one line of JSON. Makes a context on every GPU.
std::string DescribeGpus();

// What computes on a slot.
struct SlotDevice {
  std::shared_ptr<device::Device> gpu = nullptr;  // null: the CPU
  DeviceMaker make = MakeCpuDevice;               // on a GPU every role gets this one
  // Sums over the GPUs of several slots; null: there is none, and sums go through the host.
  std::function<StatusOr<std::unique_ptr<comm::DeviceSum>>(
      const std::shared_ptr<comm::Rendezvous>& rendezvous, int rank, int size,
      std::chrono::milliseconds timeout)>
      make_sum = nullptr;
};
// kCuda: GPU `gpu` of those that the driver shows; `batch_invariant`: a row has the same bits in every batch,
// and sums over GPUs go through the host, in one order. Errors of CudaModule; kFailedPrecondition: there are
// not so many.
StatusOr<SlotDevice> DeviceOfSlot(DeviceKind kind, int64_t gpu, bool batch_invariant);

}  // namespace tidepool::workers
