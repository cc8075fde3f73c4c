#pragma once
// Device memory for tests of kernels: of the emulation, or (scripts/cuda-test, on a machine with a GPU) of
// CUDA. The same tests run on both.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/kernels/launch.h"
#include "core/device/cpu/kernels.h"
#include "tests/core/cuda/test_framework.h"
#include "tests/core/fuzz_seeds.h"
#ifdef TIDEPOOL_CUDA_EMULATION
#include "core/cuda/device_code.h"
#else
#include <cuda_runtime_api.h>
#endif

namespace tidepool::cuda {

// Why there is no device; empty where there is one.
#ifdef TIDEPOOL_CUDA_EMULATION
inline std::string WhyNoDevice() { return ""; }
inline std::string DeviceError(int code) {
  emulation::Synchronize();
  return code == 0 ? "" : ErrorText(code);
}
inline void NewOrder(uint64_t seed) { emulation::Seed(seed); }
// While it lives, blocks have the shared memory of sm_86 and sm_89.
struct SmallGpu {
  SmallGpu() { emulation::SetSharedMax(99 * 1024); }
  ~SmallGpu() { emulation::SetSharedMax(163 * 1024); }
  SmallGpu(const SmallGpu&) = delete;
  SmallGpu& operator=(const SmallGpu&) = delete;
};
// While it lives, the device has n multiprocessors; else one.
struct GpuOf {
  explicit GpuOf(int n) { emulation::SetMultiprocessors(n); }
  ~GpuOf() { emulation::SetMultiprocessors(1); }
  GpuOf(const GpuOf&) = delete;
  GpuOf& operator=(const GpuOf&) = delete;
};
#else
inline std::string WhyNoDevice() {
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) return ErrorText(code);
  return count == 0 ? "the NVIDIA driver shows no GPU" : "";
}
inline std::string DeviceError(int code) {
  if (code == 0) code = cudaDeviceSynchronize();  // waits: for kernels of bounded work; a test has a limit
  return code == 0 ? "" : ErrorText(code);
}
inline void NewOrder(uint64_t) {}
struct SmallGpu {};  // the GPU is what it is
struct GpuOf {
  explicit GpuOf(int) {}
};
#endif
#define TP_NEEDS_DEVICE() \
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why

inline void ExpectOk(int code, const std::string& what) {
  const std::string error = DeviceError(code);
  EXPECT_TRUE(error.empty()) << what << ": " << error;
}

// An array of the device, aligned as cudaMalloc does it. It stands for what the kernel before writes, which
// one that starts early has to wait for, until it is settled.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(static_cast<int64_t>(values.size()), true) {
    Write(values);
  }
  explicit DeviceArray(int64_t n) : DeviceArray(n, false) {  // NaN or -1 all over
    std::vector<T> ones(static_cast<size_t>(n));
    std::memset(static_cast<void*>(ones.data()), 0xFF, ones.size() * sizeof(T));
    Write(ones);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
#ifdef TIDEPOOL_CUDA_EMULATION
  ~DeviceArray() {
    if (data_ == nullptr) return;
    emulation::RemoveMemory(data_);
    std::free(data_);
  }
  void Write(const std::vector<T>& v) {
    if (n_ > 0) std::memcpy(static_cast<void*>(data_), v.data(), static_cast<size_t>(n_) * sizeof(T));
  }
  std::vector<T> Read() const { return std::vector<T>(data_, data_ + n_); }
#else
  ~DeviceArray() { cudaFree(data_); }
  void Write(const std::vector<T>& v) {
    if (n_ > 0) cudaMemcpy(data_, v.data(), v.size() * sizeof(T), cudaMemcpyDefault);
  }
  std::vector<T> Read() const {
    std::vector<T> v(static_cast<size_t>(n_));
    if (n_ > 0) cudaMemcpy(v.data(), data_, v.size() * sizeof(T), cudaMemcpyDefault);
    return v;
  }
#endif
  T* data() const { return data_; }
#ifdef TIDEPOOL_CUDA_EMULATION
  void Settle() const { emulation::Settle(data_); }
#else
  void Settle() const {}
#endif

 private:
  DeviceArray(int64_t n, bool written) : n_(n) {
    if (n == 0) return;
#ifdef TIDEPOOL_CUDA_EMULATION
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    data_ = static_cast<T*>(std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256)));
    emulation::AddMemory(data_, bytes, static_cast<int>(sizeof(T)), written, /*settled=*/false);
#else
    void* data = nullptr;
    ExpectOk(cudaMalloc(&data, static_cast<size_t>(n) * sizeof(T)), "memory of a test");
    data_ = static_cast<T*>(data);
#endif
  }
  int64_t n_ = 0;
  T* data_ = nullptr;
};

// Scratch is new each time, so that no kernel reads what another one left there.
class TestLauncher : public Launcher {
 public:
  [[nodiscard]] Stream stream() override { return nullptr; }
  void* Scratch(int64_t bytes) override {
    scratch_ = std::make_unique<DeviceArray<float>>((bytes + 3) / 4);
    return scratch_->data();
  }
  uint64_t* Meetings() override { return meetings_.data(); }

 private:
  std::unique_ptr<DeviceArray<float>> scratch_;
  DeviceArray<uint64_t> meetings_{std::vector<uint64_t>{0, 0}};
};
// Runs a kernel, which has to succeed.
template <typename F>
void RunKernel(const std::string& what, F kernel) {
  TestLauncher launcher;
  ExpectOk(kernel(launcher), what);
}

// A small generator of its own, so that these tests need no other folder (splitmix64).
class FuzzRng {
 public:
  explicit FuzzRng(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  float Uniform() { return static_cast<float>(Next() >> 40) * 0x1.0p-24F; }  // [0, 1)
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  int64_t OneOf(const std::vector<int64_t>& of) {
    return of[static_cast<size_t>(Below(static_cast<int64_t>(of.size())))];
  }

 private:
  uint64_t state_;
};

inline void RoundTo(float v, float* out) { *out = v; }
inline void RoundTo(float v, BF16* out) {
  const auto u = std::bit_cast<uint32_t>(v);
  out->bits = v != v ? uint16_t{0x7FC0} : static_cast<uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}
inline float AsFloat(float v) { return v; }
inline float AsFloat(BF16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }
// n numbers in [-scale, scale).
template <typename T>
std::vector<T> RandomValues(FuzzRng& rng, int64_t n, float scale = 1.0F) {
  std::vector<T> out(static_cast<size_t>(n));
  for (T& v : out) RoundTo((2 * rng.Uniform() - 1) * scale, &v);
  return out;
}

// |got - want| <= absolute + relative |want| for every element; NaN only where NaN is wanted.
template <typename T>
void ExpectNear(const std::vector<T>& got, const std::vector<T>& want, float absolute, float relative,
                const std::string& what) {
  EXPECT_EQ(got.size(), want.size()) << what;
  float worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < got.size() && i < want.size(); ++i) {
    const float a = AsFloat(got[i]), b = AsFloat(want[i]);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const float off = std::abs(a - b) / (absolute + relative * std::abs(b));
    if (!std::isnan(worst) && !(off <= worst)) {  // a NaN is the worst, whatever follows
      worst = off;
      at = i;
    }
  }
  EXPECT_TRUE(worst <= 1.0F) << what << ": element " << at << " is " << AsFloat(got[at]) << ", the CPU has "
                             << AsFloat(want[at]);
}
// What a result in T may differ by: float32 sums in another order, and one more rounding of T.
template <typename T>
constexpr float Relative() {
  return std::is_same_v<T, float> ? 2e-5F : 1.0F / 128;
}
template <typename T>
constexpr const char* TypeName() {
  return std::is_same_v<T, float> ? "float32" : "bfloat16";
}

using Bytes = std::vector<unsigned char>;
template <typename... T>
Bytes BytesOf(const std::vector<T>&... values) {
  Bytes out;
  const auto append = [&](const void* from, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(from);
    out.insert(out.end(), p, p + bytes);
  };
  (append(values.data(), values.size() * sizeof(T)), ...);
  return out;
}
// Orders of threads that each case is run in.
constexpr int kOrders = 3;
// run() launches and returns the bytes of all its outputs: the same in every order of threads, and on a GPU
// with less shared memory, which the last order is for.
template <typename F>
void SameInEveryOrder(uint64_t seed, const std::string& what, F run) {
  Bytes first;
  for (int order = 0; order < kOrders; ++order) {
    NewOrder(seed * 1000 + static_cast<uint64_t>(order));
    const std::optional<SmallGpu> small =
        order == kOrders - 1 ? std::optional<SmallGpu>(std::in_place) : std::nullopt;
    const Bytes now = run();
    if (order == 0) {
      first = now;
    } else {
      EXPECT_TRUE(now == first) << what << ": another result in another order of threads, or in less memory";
    }
  }
}

}  // namespace tidepool::cuda
