#pragma once
// The CPU as a device: kernels of the best instruction set over whole arrays, by at::get_num_threads()
// threads. Its memory is the host's.

#include <memory>
#include <string>
#include <vector>

#include "core/device/cpu/kernels.h"
#include "core/device/device.h"

namespace tidepool::device {

class CpuDevice : public Device {
 public:
  CpuDevice();
  ~CpuDevice() override;
  using Device::Upload;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] bool host_memory() const override { return true; }
  [[nodiscard]] bool batch_invariant(DType) const override { return true; }
  [[nodiscard]] bool sums_in_tiles() const override { return true; }
  [[nodiscard]] bool lays_out(int64_t rows, int64_t n, int64_t k, DType) const override;
  [[nodiscard]] bool reads_blocks() const override { return true; }
  void LayOut(const View& matrices, void* out) override;
  StatusOr<std::shared_ptr<Buffer>> Allocate(int64_t bytes) override;
  void Upload(void* to, const void* from_host, int64_t bytes) override;
  void Download(void* to_host, const void* from, int64_t bytes) override;
  void Copy(void* to, const void* from, int64_t bytes) override;
  void Zero(void* to, int64_t bytes) override;
  void Synchronize() override {}
  void ReleaseScratch() override;
  [[nodiscard]] int64_t scratch_bytes() const override;
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
  using Device::FusedMultiply;
  void FusedMultiply(const FusedMultiplyArgs<BF16>&) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::device
