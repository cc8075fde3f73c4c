#pragma once
// A device whose kernels are timed one by one, for the parts of a step.
//
// While it times, a kernel runs several times in a row between two waits, so that a small one's time is not
// the wait's. Kernels that work in place then compute something else: what a timed step returns is of no use.
// It has no graphs, which would hide the kernels.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/device/device.h"

namespace tidepool::bench {

template <typename Args>
constexpr bool kIsProduct = false;
template <typename T>
constexpr bool kIsProduct<device::MultiplyArgs<T>> = true;
template <typename T>
constexpr bool kIsProduct<device::MultiplyBackArgs<T>> = true;
template <typename T>
constexpr bool kIsProduct<device::MultiplyBackWeightArgs<T>> = true;

class TimedDevice : public device::Device {
  using BF16 = device::BF16;  // the list of kernels names it

 public:
  using Device::Upload;
  // repeats: of a kernel that takes less than half a millisecond; a longer one runs once more.
  TimedDevice(std::shared_ptr<device::Device> of, int repeats) : of_(std::move(of)), repeats_(repeats) {}

  void Start() { timing_ = true; }
  // A line for each kind of kernel, and product of a matrix, by falling time: launches, time of one and of
  // all. In microseconds, with what a launch of next to nothing takes.
  void Print(const std::string& what);

  [[nodiscard]] std::string name() const override { return of_->name(); }
  [[nodiscard]] bool host_memory() const override { return of_->host_memory(); }
  [[nodiscard]] bool batch_invariant(DType dtype) const override { return of_->batch_invariant(dtype); }
  StatusOr<std::shared_ptr<device::Buffer>> Allocate(int64_t bytes) override { return of_->Allocate(bytes); }
  StatusOr<std::shared_ptr<device::Buffer>> AllocateUnset(int64_t bytes) override {
    return of_->AllocateUnset(bytes);
  }
  void Upload(void* to, const void* from_host, int64_t bytes) override {
    Time("copies up", 1, [&] { of_->Upload(to, from_host, bytes); });
  }
  void Download(void* to_host, const void* from, int64_t bytes) override {
    Time("copies down", 1, [&] { of_->Download(to_host, from, bytes); });
  }
  void Copy(void* to, const void* from, int64_t bytes) override { of_->Copy(to, from, bytes); }
  void Zero(void* to, int64_t bytes) override {
    Time("zeros", repeats_, [&] { of_->Zero(to, bytes); });
  }
  void Synchronize() override { of_->Synchronize(); }
  void ReleaseScratch() override { of_->ReleaseScratch(); }
  [[nodiscard]] int64_t scratch_bytes() const override { return of_->scratch_bytes(); }
  [[nodiscard]] std::optional<int64_t> free_bytes() override { return of_->free_bytes(); }
  [[nodiscard]] bool sums_in_tiles() const override { return of_->sums_in_tiles(); }
  [[nodiscard]] bool lays_out(int64_t rows, int64_t n, int64_t k, DType dtype) const override {
    return of_->lays_out(rows, n, k, dtype);
  }
  void LayOut(const device::View& matrices, void* out) override { of_->LayOut(matrices, out); }
  std::unique_ptr<device::AttentionWork> PlanAttention(const device::RowRunsOfHost& keys,
                                                       const device::HeadShape& shape) override {
    return of_->PlanAttention(keys, shape);
  }
  std::unique_ptr<device::AttentionWork> PlanAttentionBackward(
      const device::RowRunsOfHost& keys, std::span<const std::pair<int64_t, int64_t>> ranges,
      const device::HeadShape& shape) override {
    return of_->PlanAttentionBackward(keys, ranges, shape);
  }

#define TIDEPOOL_KERNEL(Kernel, Args)                                              \
  void Kernel(const device::Args& a) override {                                    \
    Time(                                                                          \
        #Kernel + OfMatrix(a), repeats_, [&] { of_->Kernel(a); }, MatrixBytes(a)); \
  }
  TIDEPOOL_EVERY_KERNEL
#undef TIDEPOOL_KERNEL
  using Device::FusedMultiply;
  void FusedMultiply(const device::FusedMultiplyArgs<BF16>& a) override {
    Time(
        "FusedMultiply" + OfMatrix(a.multiply), repeats_, [&] { of_->FusedMultiply(a); },
        MatrixBytes(a.multiply));
  }
  using Device::RotaryAttention;
  void RotaryAttention(const device::RotaryArgs<BF16>& turn, const device::AttentionArgs<BF16>& a) override {
    Time("RotaryAttention", repeats_, [&] { of_->RotaryAttention(turn, a); });
  }

 private:
  struct Part {
    int64_t launches = 0, bytes = 0;  // bytes: of a product's matrix
    double seconds = 0;
  };
  template <typename Args>
  static std::string OfMatrix(const Args& a) {
    if constexpr (kIsProduct<Args>) return " " + std::to_string(a.n) + " x " + std::to_string(a.k);
    return "";
  }
  template <typename Args>
  static int64_t MatrixBytes(const Args& a) {
    if constexpr (kIsProduct<Args> && requires { a.w; })
      return a.n * a.k * static_cast<int64_t>(sizeof(*a.w));
    if constexpr (kIsProduct<Args> && requires { a.dw; })
      return a.n * a.k * static_cast<int64_t>(sizeof(*a.dw));
    return 0;
  }

  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  template <typename F>
  double Seconds(int times, F kernel) {
    of_->Synchronize();
    const double from = Now();
    for (int i = 0; i < times; ++i) kernel();
    of_->Synchronize();
    return (Now() - from) / times;
  }
  template <typename F>
  void Time(const std::string& what, int repeats, F kernel, int64_t bytes = 0) {
    if (!timing_) return kernel();
    double one = Seconds(1, kernel);
    if (repeats > 1) one = Seconds(one < 5e-4 ? repeats : 1, kernel);
    Part& part = parts_[what];
    ++part.launches;
    part.seconds += one;
    part.bytes += bytes;
  }

  const std::shared_ptr<device::Device> of_;
  const int repeats_;
  bool timing_ = false;
  std::map<std::string, Part> parts_;
};

}  // namespace tidepool::bench
