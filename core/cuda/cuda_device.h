#pragma once
// A GPU: memory, copies, products of many rows and gradients of products are LibTorch's, every other kernel
// ours (kernels/launch.h).
// cuBLAS, which LibTorch's products are, takes another algorithm for another number of rows, and attention
// has two passes that round apart. A device that is asked for a row with the same bits in every batch takes
// our product, which adds up in one order, and decodes all rows: slower.
//
// Kernels go to the stream that LibTorch's operations use, so the two run in the order of their calls. Of the
// CUDA module, as it needs LibTorch's CUDA part where it runs; nothing of CUDA to compile. Tests
// run it, and whole jobs on it, on the CPU over emulated kernels (tests/core/cuda/emulation); both ran on
// one H100.

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/kernels/launch.h"
#include "core/device/torch_device.h"

namespace tidepool::cuda {

struct CudaDeviceOptions {
  bool batch_invariant = false;  // a row has the same bits in every batch
};

class CudaDevice : public device::TorchDevice {
 public:
  explicit CudaDevice(c10::Device device,
                      CudaDeviceOptions options = {});  // requires an index, but of the CPU
  ~CudaDevice() override;
  using device::Device::Upload;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] bool batch_invariant(DType) const override { return options_.batch_invariant; }
  void ReleaseScratch() override;
  [[nodiscard]] int64_t scratch_bytes() const override;
  [[nodiscard]] int64_t scratch_moves() const override { return scratch_.moves; }
  std::unique_ptr<device::AttentionWork> PlanAttention(const device::RowRunsOfHost& keys,
                                                       const device::HeadShape& shape) override;
  std::unique_ptr<device::GraphAttention> PlanGraphAttention(const device::RowRunsOfHost& keys,
                                                             const device::HeadShape& shape) override;
  std::unique_ptr<device::AttentionWork> PlanAttentionBackward(
      const device::RowRunsOfHost& keys, std::span<const std::pair<int64_t, int64_t>> ranges,
      const device::HeadShape& shape) override;

#define TIDEPOOL_TYPED(Kernel)                              \
  void Kernel(const device::Kernel##Args<float>&) override; \
  void Kernel(const device::Kernel##Args<BF16>&) override;
#define TIDEPOOL_PLAIN(Kernel) void Kernel(const device::Kernel##Args&) override;
  TIDEPOOL_TYPED_KERNELS(TIDEPOOL_TYPED)
  TIDEPOOL_PLAIN_KERNELS(TIDEPOOL_PLAIN)
#undef TIDEPOOL_TYPED
#undef TIDEPOOL_PLAIN
  using TorchDevice::FusedMultiply;
  using TorchDevice::RotaryAttention;
  void FusedMultiply(const device::FusedMultiplyArgs<BF16>&) override;
  void RotaryAttention(const device::RotaryArgs<BF16>&, const device::AttentionArgs<BF16>&) override;

 protected:
  [[nodiscard]] c10::Device gpu() const { return device_; }
  // From here on products of few rows that follow each other become one kernel (kernels/product_chain.h),
  // which is launched before another one is. For what is recorded: kernels alone,
  // so nobody looks at a result in between.
  void GatherProducts() { gathering_ = true; }
  void LaunchGathered();
  void GatherNoMore() {  // what was gathered and not launched is dropped
    gathered_.clear();
    gathering_ = false;
  }
  // Whether it is gathered. If not, those before it have been launched.
  bool Gather(const device::FusedMultiplyArgs<BF16>& a);

 private:
  // What kernels work in, for one call at a time.
  struct Scratch {
    std::shared_ptr<device::Buffer> memory;
    int64_t moves = 0;
    void Drop() {
      if (memory != nullptr) ++moves;
      memory = nullptr;
    }
  };
  class DeviceLauncher;
  // Runs launch(launcher); a launch that CUDA refuses is a bug, or leaves the device unusable.
  template <typename F>
  void Run(const char* kernel, F launch);
  void MultiplyNow(const device::FusedMultiplyArgs<BF16>& a);
  template <typename Args>
  bool OfAPart(const Args& a);
  template <typename Args>
  bool MultiplyFewRows(const Args& a);  // false: it is none, or another's

  const c10::Device device_;
  const CudaDeviceOptions options_;
  Scratch scratch_;
  std::shared_ptr<device::Buffer> meetings_;  // Launcher::Meetings
  bool gathering_ = false;
  std::vector<device::FusedMultiplyArgs<BF16>> gathered_;
  DecodePlanner planner_;
};

}  // namespace tidepool::cuda
