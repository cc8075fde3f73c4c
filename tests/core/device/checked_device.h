#pragma once
// A device that finds every place where the host touches device memory, for tests.
//
// It maps its memory twice: the address that the host is given can be neither read nor written, and kernels,
// which are the CPU's, get another one. Each array of a kernel is looked up: it must lie inside one
// allocation that is still there. An allocation ends within 64 bytes of a page that nobody may touch.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/device/cpu/cpu_device.h"

namespace tidepool::device {

class CheckedDevice : public Device {
 public:
  using Device::Upload;

  [[nodiscard]] std::string name() const override { return "checked " + cpu_.name(); }
  [[nodiscard]] bool host_memory() const override { return false; }
  [[nodiscard]] bool batch_invariant(DType dtype) const override { return cpu_.batch_invariant(dtype); }
  [[nodiscard]] bool sums_in_tiles() const override { return cpu_.sums_in_tiles(); }
  [[nodiscard]] bool lays_out(int64_t rows, int64_t n, int64_t k, DType dtype) const override {
    return cpu_.lays_out(rows, n, k, dtype);
  }
  void LayOut(const View& matrices, void* out) override {
    View from = matrices;
    from.data = Alias(matrices.data, matrices.bytes(), "LayOut");
    cpu_.LayOut(from, Alias(out, matrices.bytes(), "LayOut"));
  }
  StatusOr<std::shared_ptr<Buffer>> Allocate(int64_t bytes) override;
  void Upload(void* to, const void* from_host, int64_t bytes) override;
  void Download(void* to_host, const void* from, int64_t bytes) override;
  void Copy(void* to, const void* from, int64_t bytes) override;
  void Zero(void* to, int64_t bytes) override;
  void Synchronize() override {}
  void ReleaseScratch() override { cpu_.ReleaseScratch(); }
  [[nodiscard]] int64_t scratch_bytes() const override { return cpu_.scratch_bytes(); }
  [[nodiscard]] int64_t held_bytes() const;  // of all buffers
  std::unique_ptr<AttentionWork> PlanAttention(const RowRunsOfHost& keys, const HeadShape& shape) override {
    return cpu_.PlanAttention(keys, shape);
  }
  std::unique_ptr<AttentionWork> PlanAttentionBackward(const RowRunsOfHost& keys,
                                                       std::span<const std::pair<int64_t, int64_t>> ranges,
                                                       const HeadShape& shape) override {
    return cpu_.PlanAttentionBackward(keys, ranges, shape);
  }

#define TIDEPOOL_TYPED(Kernel)                         \
  void Kernel(const Kernel##Args<float>& a) override { \
    Run(#Kernel, a, [&](auto& b) { cpu_.Kernel(b); }); \
  }                                                    \
  void Kernel(const Kernel##Args<BF16>& a) override {  \
    Run(#Kernel, a, [&](auto& b) { cpu_.Kernel(b); }); \
  }
#define TIDEPOOL_PLAIN(Kernel)                         \
  void Kernel(const Kernel##Args& a) override {        \
    Run(#Kernel, a, [&](auto& b) { cpu_.Kernel(b); }); \
  }
  TIDEPOOL_TYPED_KERNELS(TIDEPOOL_TYPED)
  TIDEPOOL_PLAIN_KERNELS(TIDEPOOL_PLAIN)
#undef TIDEPOOL_TYPED
#undef TIDEPOOL_PLAIN

 private:
  struct Live {
    std::mutex mu;  // threads may read beside one that frees
    std::map<const std::byte*, std::pair<int64_t, std::byte*>> by_address;  // bytes, where kernels find them
  };
  class Mapped;

  // Replaces the addresses of the host by those of the kernels.
  struct Aliases {
    const CheckedDevice& device;
    const char* kernel;
    int field = 0;
    template <typename T>
    void In(T*& p, int64_t n) {
      ++field;
      if (n > 0) p = device.Alias(p, n * static_cast<int64_t>(sizeof(T)), kernel, field);
    }
    template <typename T>
    void Out(T*& p, int64_t n) {
      In(p, n);
    }
    template <typename T>
    void InOut(T*& p, int64_t n) {
      In(p, n);
    }
    template <typename T>
    void MaybeIn(T*& p, int64_t n) {
      if (p != nullptr) return In(p, n);
      ++field;
    }
    template <typename T>
    void MaybeOut(T*& p, int64_t n) {
      MaybeIn(p, n);
    }
    template <typename T>
    void MaybeInOut(T*& p, int64_t n) {
      MaybeIn(p, n);
    }
  };
  template <typename Args, typename Kernel>
  void Run(const char* name, Args args, const Kernel& kernel) {
    Aliases aliases{*this, name};
    args.Fields(aliases);
    kernel(args);
  }

  std::byte* Find(const void* p, int64_t bytes, const char* kernel, int field) const;
  template <typename T>
  T* Alias(T* p, int64_t bytes, const char* kernel, int field = 0) const {
    return reinterpret_cast<T*>(Find(p, bytes, kernel, field));
  }

  CpuDevice cpu_;
  std::shared_ptr<Live> live_ = std::make_shared<Live>();  // buffers may outlive the device
};

}  // namespace tidepool::device
