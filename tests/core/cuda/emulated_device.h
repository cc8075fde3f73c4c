#pragma once
// CudaDevice on the CPU: its own kernels under the emulation, what is LibTorch's on the host's memory.
// Accesses of kernels are checked as the emulation does it, but for reads of what nobody wrote: device memory
// is zeroed.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "core/cuda/cuda_device.h"

namespace tidepool::cuda {

class EmulatedCudaDevice : public CudaDevice {
 public:
  using device::Device::Upload;

  // memory_bytes: what it has in all; gives_bytes: what it gives of them, fewer where they lie scattered.
  explicit EmulatedCudaDevice(CudaDeviceOptions options = {}, int64_t memory_bytes = int64_t{1} << 40,
                              int64_t gives_bytes = int64_t{1} << 40)
      : CudaDevice(c10::kCPU, options), memory_bytes_(memory_bytes), gives_bytes_(gives_bytes) {}
  [[nodiscard]] std::string name() const override { return "emulated cuda"; }
  // Kernels find what Allocate gave alone, as on a GPU.
  [[nodiscard]] bool host_memory() const override { return false; }
  // A graph is a list of launches with their arguments as they were.
  [[nodiscard]] bool has_graphs() const override { return true; }
  StatusOr<std::shared_ptr<device::Buffer>> Allocate(int64_t bytes) override;
  StatusOr<std::shared_ptr<device::Buffer>> AllocateUnset(int64_t bytes) override { return Allocate(bytes); }
  void Upload(void* to, const void* from_host, int64_t bytes) override;
  void Download(void* to_host, const void* from, int64_t bytes) override;
  void Copy(void* to, const void* from, int64_t bytes) override;
  void Zero(void* to, int64_t bytes) override;
  void Synchronize() override;
  [[nodiscard]] std::optional<int64_t> free_bytes() override { return memory_bytes_ - *held_; }

  // What a product writes.
  struct Output {
    template <typename Args>
    explicit Output(Args a) {
      a.Fields(*this);
    }
    template <typename T>
    void In(const T*, int64_t) {}
    template <typename T>
    void Out(T* p, int64_t n) {
      begin = p, bytes = n * static_cast<int64_t>(sizeof(T));
    }
    template <typename T>
    void InOut(T* p, int64_t n) {
      Out(p, n);
    }
    const void* begin = nullptr;
    int64_t bytes = 0;
  };
#define TIDEPOOL_LIBTORCHS(Kernel)                              \
  void Kernel(const device::Kernel##Args<float>& a) override {  \
    LaunchGathered();                                           \
    RunOrKeep([this, a] { CudaDevice::Kernel(a); }, Output(a)); \
  }                                                             \
  void Kernel(const device::Kernel##Args<BF16>& a) override {   \
    LaunchGathered();                                           \
    RunOrKeep([this, a] { CudaDevice::Kernel(a); }, Output(a)); \
  }
  void Multiply(const device::MultiplyArgs<BF16>& a) override {
    if (!Gather({.multiply = a})) RunOrKeep([this, a] { CudaDevice::Multiply(a); }, Output(a));
  }
  void Multiply(const device::MultiplyArgs<float>& a) override {
    LaunchGathered();
    RunOrKeep([this, a] { CudaDevice::Multiply(a); }, Output(a));
  }
  TIDEPOOL_LIBTORCHS(MultiplyBack)
  TIDEPOOL_LIBTORCHS(MultiplyBackWeight)
#undef TIDEPOOL_LIBTORCHS

 protected:
  std::unique_ptr<device::Recording> NewRecording() override;

 private:
  class LaunchRecorder;
  static void RunOrKeep(std::function<void()> kernel, Output output);

  const int64_t memory_bytes_, gives_bytes_;
  // Shared with buffers, which may outlive the device. Atomic: they are freed beside it.
  std::shared_ptr<std::atomic<int64_t>> held_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace tidepool::cuda
