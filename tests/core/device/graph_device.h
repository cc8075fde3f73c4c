#pragma once
// The checked device with graphs, for tests: what a graph bakes in stays as it was when it was recorded, and
// what is called while it is recorded has to be a kernel.

#include <map>
#include <memory>
#include <vector>

#include "tests/core/device/checked_device.h"

namespace tidepool::device {

class GraphDevice : public CheckedDevice {
 public:
  using Device::Upload;

  [[nodiscard]] bool has_graphs() const override { return true; }
  // A graph would go on with what was laid out when it was recorded.
  [[nodiscard]] bool lays_out(int64_t, int64_t, int64_t, DType) const override { return false; }
  // The CPU's is its threads', and no graph works in it.
  [[nodiscard]] int64_t scratch_bytes() const override { return 0; }
  [[nodiscard]] int64_t scratch_moves() const override { return moves; }
  int64_t moves = 0;
  bool no_memory_for_graphs = false;
  std::unique_ptr<GraphAttention> PlanGraphAttention(const RowRunsOfHost& keys,
                                                     const HeadShape& shape) override;

  StatusOr<std::shared_ptr<Buffer>> Allocate(int64_t bytes) override;
  void Upload(void* to, const void* from_host, int64_t bytes) override;
  void Download(void* to_host, const void* from, int64_t bytes) override;
  void Copy(void* to, const void* from, int64_t bytes) override;
  void Zero(void* to, int64_t bytes) override;
  void Synchronize() override;

#define TIDEPOOL_TYPED(Kernel)                                        \
  void Kernel(const Kernel##Args<float>& a) override {                \
    RunOrKeep([this, a] { CheckedDevice::Kernel(WithDivision(a)); }); \
  }                                                                   \
  void Kernel(const Kernel##Args<BF16>& a) override {                 \
    RunOrKeep([this, a] { CheckedDevice::Kernel(WithDivision(a)); }); \
  }
#define TIDEPOOL_PLAIN(Kernel)                          \
  void Kernel(const Kernel##Args& a) override {         \
    RunOrKeep([this, a] { CheckedDevice::Kernel(a); }); \
  }
  TIDEPOOL_TYPED_KERNELS(TIDEPOOL_TYPED)
  TIDEPOOL_PLAIN_KERNELS(TIDEPOOL_PLAIN)
#undef TIDEPOOL_TYPED
#undef TIDEPOOL_PLAIN

 protected:
  std::unique_ptr<Recording> NewRecording() override;

 private:
  using Kernels = std::vector<std::function<void()>>;
  class Recorded;
  class Recorder;
  class Attended;
  struct Divided;

  template <typename Args>
  Args WithDivision(const Args& a) {
    return a;
  }
  // Whose division stands in device memory at this moment.
  template <typename T>
  AttentionArgs<T> WithDivision(AttentionArgs<T> a) {
    a.work = Now(a.work);
    return a;
  }
  const AttentionWork* Now(const AttentionWork* work);
  template <typename F>
  void RunOrKeep(F kernel) {
    if (recording_ == nullptr) return kernel();
    recording_->push_back(kernel);
  }
  void CheckNotRecording(const char* call) const;

  Kernels* recording_ = nullptr;
};

}  // namespace tidepool::device
