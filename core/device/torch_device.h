#pragma once
// A device of LibTorch's: every kernel as plain tensor operations in float32, results rounded once. Written
// to be right rather than fast, as what other devices are compared with. CudaDevice (core/cuda) builds on it,
// and takes its products of bfloat16 as they are.
//
// Whatever a kernel computes or looks up stays on the device, except where the experts of a grouped product
// begin.

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <utility>

#include "core/device/device.h"

namespace tidepool::device {

// What at::mm gets of bfloat16. kNarrow: the values themselves, which tensor cores multiply, adding up in
// float32; of the CPU that is another order of additions.
enum class ProductOperands { kWide, kNarrow };

class TorchDevice : public Device {
 public:
  // requires an index, but of the CPU
  explicit TorchDevice(c10::Device device, ProductOperands operands = ProductOperands::kWide);
  ~TorchDevice() override;
  using Device::Upload;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] bool host_memory() const override;
  [[nodiscard]] bool batch_invariant(DType) const override { return false; }  // at::mm promises nothing
  StatusOr<std::shared_ptr<Buffer>> Allocate(int64_t bytes) override;
  StatusOr<std::shared_ptr<Buffer>> AllocateUnset(int64_t bytes) override;
  void Upload(void* to, const void* from_host, int64_t bytes) override;
  void Download(void* to_host, const void* from, int64_t bytes) override;
  void Copy(void* to, const void* from, int64_t bytes) override;
  void Zero(void* to, int64_t bytes) override;
  void Synchronize() override;
  void ReleaseScratch() override {}  // what kernels need goes back to LibTorch's allocator with each call
  [[nodiscard]] int64_t scratch_bytes() const override { return 0; }
  [[nodiscard]] std::optional<int64_t> free_bytes() override;
  std::unique_ptr<AttentionWork> PlanAttention(const RowRunsOfHost& keys, const HeadShape& shape) override;
  std::unique_ptr<AttentionWork> PlanAttentionBackward(const RowRunsOfHost& keys,
                                                       std::span<const std::pair<int64_t, int64_t>> ranges,
                                                       const HeadShape& shape) override;

#define TIDEPOOL_TYPED(Kernel)                      \
  void Kernel(const Kernel##Args<float>&) override; \
  void Kernel(const Kernel##Args<BF16>&) override;
#define TIDEPOOL_PLAIN(Kernel) void Kernel(const Kernel##Args&) override;
  TIDEPOOL_TYPED_KERNELS(TIDEPOOL_TYPED)
  TIDEPOOL_PLAIN_KERNELS(TIDEPOOL_PLAIN)
#undef TIDEPOOL_TYPED
#undef TIDEPOOL_PLAIN

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::device
