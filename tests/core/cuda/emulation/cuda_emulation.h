#pragma once
// CUDA as far as our kernels use it, as plain C++ on one CPU thread, for checking them without a GPU.
//
// core/cuda/device_code.h includes this in the place of CUDA's headers. A launch runs its blocks one after
// another in a random order, and the threads of a block as fibers: one runs until it waits, or is put aside
// at a random access, then a random other one goes on. The seed decides; a kernel that is right has the same
// bits for every seed. Each of these ends the launch with a message that names kernel, line, block and
// thread:
//
//   - an access outside its array or off its alignment, or device memory that no test handed in
//   - a read of what nobody wrote (shared memory starts as NaN, and so do outputs)
//   - two accesses of one place by two threads of a block, one of them a write, without a barrier between
//   them
//     (__syncthreads, or __syncwarp within a warp), or by two blocks of a launch
//   - a barrier or a shuffle that some threads never reach, or reach at another line
//   - a read of an asynchronous copy before it was waited for
//   - of a kernel that starts early, before it waits: a write, and a read of what a kernel that may still run
//     has written; and that no block of it waits
//   - more shared memory than a block of the device may have
//
// What it cannot show: speed, registers, rounding of the device's own exp and log, the order in which mma
// adds (taken from left to right here), and whether the PTX behind the inlines of device_code.h is what it
// says. Thread-safe: launches of several threads take turns.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__
#define __maxnreg__(...)

namespace tidepool::cuda::emulation {

// ---- for tests

void Seed(uint64_t seed);
// What was wrong with the last launch of this thread; empty if nothing was.
const std::string& Error();
// Device memory: [begin, begin + bytes) in elements of `unit` bytes; read only where `written` or a kernel
// wrote. not `settled`: what the host wrote there stands for what the kernel before writes.
void AddMemory(void* begin, int64_t bytes, int unit, bool written, bool settled);
void RemoveMemory(const void* begin);
void Settle(const void* begin);
// All that this thread launched has ended: the host has waited, or the stream did something else.
void Synchronize();
// Did that, and wrote here: a kernel of someone else.
void Wrote(const void* begin, int64_t bytes);
// Shared memory that a block may have, bytes: 163 KiB as on sm_80 until it is set. Of all threads.
void SetSharedMax(int bytes);
// Multiprocessors of the device, 1 until it is set: blocks run one after the other, so more than one cannot
// meet. Of all threads.
void SetMultiprocessors(int n);
// Launches of this thread go there instead of being run; null: they are run. Each gives 0 or a cudaError_t.
using Launches = std::vector<std::function<int()>>;
void RecordInto(Launches* launches);
Launches* Recording();
struct Counts {
  int64_t launches = 0, blocks = 0, accesses = 0, switches = 0;
};
const Counts& Totals();

// ---- for kernels

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct Cell;  // who touched a place last
struct Region {
  char* begin = nullptr;
  char* end = nullptr;
  Cell* cells = nullptr;  // one each `unit` bytes from begin on
  int unit = 4;
  bool shared = false;
  const char* name = "device memory";
  bool settled = true;
};
struct Place {
  const char* file;
  int line;
};

enum class Access { kRead, kWrite, kAtomic };
void Check(const Region* region, const void* at, int64_t bytes, Access access, Place place);
void CheckAligned(const void* at, int64_t bytes, Place place);
Region* FindMemory(const void* p);
Region* DeclareShared(const char* name, int line, int64_t bytes);
Region* DynamicShared(int64_t offset, int64_t bytes, Place place);
Dim3 ThreadIdx();
Dim3 BlockIdx();
Dim3 BlockDim();
Dim3 GridDim();
int Lane();

// All lanes of `mask` hand in up to 64 bytes and get the bytes of all 32 lanes, 64 apart.
const char* Exchange(const char* what, unsigned mask, const void* mine, int64_t bytes, Place place);
void SyncThreads(Place place);
bool SyncThreadsOr(bool value, Place place);
void SyncWarp(unsigned mask, Place place);
void CopyAsync(const Region* to_region, void* to, const Region* from_region, const void* from, bool there,
               Place place);
void CommitCopies();
void WaitCopies(int left);
void WaitForKernelBefore();

// An index that knows the line it was written in.
struct Index {
  int64_t value;
  Place place;
  template <typename I>
  requires std::is_integral_v<I>
  // NOLINTNEXTLINE(google-explicit-constructor): x[i] is what kernels write
  Index(I i, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : value(static_cast<int64_t>(i)), place{file, line} {}
};

template <typename T>
class Ref {
 public:
  Ref(T* at, const Region* region, Place place) : at_(at), region_(region), place_(place) {}
  Ref(const Ref&) = default;
  operator T() const {  // NOLINT(google-explicit-constructor): stands for a T&
    Check(region_, at_, sizeof(T), Access::kRead, place_);
    return *at_;
  }
  const Ref& operator=(const T& v) const {
    Check(region_, at_, sizeof(T), Access::kWrite, place_);
    *at_ = v;
    return *this;
  }
  const Ref& operator=(const Ref& v) const { return *this = static_cast<T>(v); }
  const Ref& operator+=(const T& v) const { return *this = static_cast<T>(*this) + v; }
  const Ref& operator*=(const T& v) const { return *this = static_cast<T>(*this) * v; }

 private:
  T* at_;
  const Region* region_;
  Place place_;
};

template <typename T>
class Pointer {
 public:
  Pointer() = default;
  Pointer(T* at, const Region* region) : at_(at), region_(region) {}
  template <typename U>
  requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
      Pointer(Pointer<U> other)  // NOLINT(google-explicit-constructor): as U* becomes const U*
      : at_(other.at()), region_(other.region()) {}
  Pointer operator+(int64_t n) const { return {at_ + n, region_}; }
  auto operator[](Index i) const {
    if constexpr (std::is_const_v<T>) {
      Check(region_, at_ + i.value, sizeof(T), Access::kRead, i.place);
      return std::remove_const_t<T>(at_[i.value]);
    } else {
      return Ref<T>(at_ + i.value, region_, i.place);
    }
  }
  T* at() const { return at_; }
  const Region* region() const { return region_; }

 private:
  T* at_ = nullptr;
  const Region* region_ = nullptr;
};

int Run(const Grid& grid, void (*body)(void*), void* context);

}  // namespace tidepool::cuda::emulation

#define threadIdx (::tidepool::cuda::emulation::ThreadIdx())
#define blockIdx (::tidepool::cuda::emulation::BlockIdx())
#define blockDim (::tidepool::cuda::emulation::BlockDim())
#define gridDim (::tidepool::cuda::emulation::GridDim())
#define TP_HERE \
  ::tidepool::cuda::emulation::Place { file, line }
#define TP_WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define TP_SHARED(T, name, count)                                                            \
  const ::tidepool::cuda::emulation::Region* const name##_region =                           \
      ::tidepool::cuda::emulation::DeclareShared(#name, __LINE__,                            \
                                                 static_cast<int64_t>(sizeof(T)) * (count)); \
  const ::tidepool::cuda::Shared<T> name(reinterpret_cast<T*>(name##_region->begin), name##_region)
#define TP_DYNAMIC_SHARED(name) constexpr int name = 0

enum { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorLaunchFailure = 719 };

inline float __uint_as_float(uint32_t v) { return std::bit_cast<float>(v); }
inline uint32_t __float_as_uint(float v) { return std::bit_cast<uint32_t>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline float __fmul_rn(float a, float b) { return a * b; }  // compiled with -ffp-contract=off
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __expf(float v) { return std::exp(v); }
inline float rsqrtf(float v) { return 1.0F / std::sqrt(v); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __ffs(unsigned v) { return v == 0 ? 0 : std::countr_zero(v) + 1; }
inline int __popcll(uint64_t v) { return std::popcount(v); }
using std::isfinite;
using std::isnan;

inline void __syncthreads(TP_WHERE) { tidepool::cuda::emulation::SyncThreads(TP_HERE); }
inline int __syncthreads_or(int v, TP_WHERE) {
  return tidepool::cuda::emulation::SyncThreadsOr(v != 0, TP_HERE) ? 1 : 0;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU, TP_WHERE) {
  tidepool::cuda::emulation::SyncWarp(mask, TP_HERE);
}
namespace tidepool::cuda::emulation {
template <typename T>
T Shuffle(const char* what, unsigned mask, T v, int from, Place place) {
  const char* all = Exchange(what, mask, &v, sizeof(T), place);
  const int lane = from < 0 || from > 31 ? Lane() : from;
  T out;
  std::memcpy(&out, all + 64 * lane, sizeof(T));
  return out;
}
}  // namespace tidepool::cuda::emulation
template <typename T>
T __shfl_sync(unsigned mask, T v, int from, int width = 32, TP_WHERE) {
  const int base = tidepool::cuda::emulation::Lane() / width * width;
  return tidepool::cuda::emulation::Shuffle("__shfl_sync", mask, v, base + from % width, TP_HERE);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, TP_WHERE) {
  return tidepool::cuda::emulation::Shuffle("__shfl_xor_sync", mask, v,
                                            tidepool::cuda::emulation::Lane() ^ bits, TP_HERE);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, TP_WHERE) {
  const int lane = tidepool::cuda::emulation::Lane(), from = lane - static_cast<int>(by);
  return tidepool::cuda::emulation::Shuffle("__shfl_up_sync", mask, v,
                                            from < lane / width * width ? lane : from, TP_HERE);
}
inline unsigned __ballot_sync(unsigned mask, int v, TP_WHERE) {
  const char* all = tidepool::cuda::emulation::Exchange("__ballot_sync", mask, &v, sizeof(v), TP_HERE);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) {
    int one = 0;
    std::memcpy(&one, all + 64 * lane, sizeof(one));
    if ((mask >> lane & 1U) != 0 && one != 0) bits |= 1U << lane;
  }
  return bits;
}
inline int __any_sync(unsigned mask, int v, TP_WHERE) {
  return __ballot_sync(mask, v, file, line) != 0 ? 1 : 0;
}

namespace tidepool::cuda {

template <typename T>
using Global = emulation::Pointer<T>;
template <typename T>
using Shared = emulation::Pointer<T>;

template <typename T>
Global<T> View(T* p) {
  return {p, p == nullptr ? nullptr : emulation::FindMemory(p)};
}
template <typename T>
Shared<T> Carve(int, int64_t offset, int64_t count, TP_WHERE) {
  const emulation::Region* r =
      emulation::DynamicShared(offset, count * static_cast<int64_t>(sizeof(T)), TP_HERE);
  return {reinterpret_cast<T*>(r->begin), r};
}

inline float Widen(float v) { return v; }
inline float Widen(BF16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }
inline void Narrow(float v, float* out) { *out = v; }
inline void Narrow(float v, BF16* out) {
  const auto u = std::bit_cast<uint32_t>(v);
  out->bits = v != v ? uint16_t{0x7FFF} : static_cast<uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}
inline uint32_t NarrowTwo(float low, float high) {
  BF16 a, b;
  Narrow(low, &a);
  Narrow(high, &b);
  return static_cast<uint32_t>(a.bits) | static_cast<uint32_t>(b.bits) << 16;
}

inline float Exp2(float v) { return std::exp2(v); }

template <typename T>
float Get(emulation::Pointer<T> x, int64_t i, TP_WHERE) {
  emulation::Check(x.region(), x.at() + i, sizeof(T), emulation::Access::kRead, TP_HERE);
  return Widen(x.at()[i]);
}
template <typename T>
void Put(emulation::Pointer<T> x, int64_t i, float v, TP_WHERE) {
  emulation::Check(x.region(), x.at() + i, sizeof(T), emulation::Access::kWrite, TP_HERE);
  Narrow(v, x.at() + i);
}
template <typename T>
void Get8(emulation::Pointer<T> x, int64_t i, float (&out)[8], TP_WHERE) {
  emulation::CheckAligned(x.at() + i, 16, TP_HERE);
  emulation::Check(x.region(), x.at() + i, 8 * sizeof(T), emulation::Access::kRead, TP_HERE);
  for (int j = 0; j < 8; ++j) out[j] = Widen(x.at()[i + j]);
}
template <typename T>
void Put8(emulation::Pointer<T> x, int64_t i, const float (&v)[8], TP_WHERE) {
  emulation::CheckAligned(x.at() + i, 16, TP_HERE);
  emulation::Check(x.region(), x.at() + i, 8 * sizeof(T), emulation::Access::kWrite, TP_HERE);
  for (int j = 0; j < 8; ++j) Narrow(v[j], x.at() + i + j);
}
template <typename T>
void GetWords4(emulation::Pointer<T> x, int64_t i, uint32_t (&out)[4], TP_WHERE) {
  emulation::CheckAligned(x.at() + i, 16, TP_HERE);
  emulation::Check(x.region(), x.at() + i, 16, emulation::Access::kRead, TP_HERE);
  std::memcpy(out, x.at() + i, 16);
}
template <typename T>
void GetWords4Fresh(emulation::Pointer<T> x, int64_t i, uint32_t (&out)[4], TP_WHERE) {
  GetWords4(x, i, out, file, line);
}
template <typename T>
void PutWords4(emulation::Pointer<T> x, int64_t i, const uint32_t (&v)[4], TP_WHERE) {
  emulation::CheckAligned(x.at() + i, 16, TP_HERE);
  emulation::Check(x.region(), x.at() + i, 16, emulation::Access::kWrite, TP_HERE);
  std::memcpy(static_cast<void*>(x.at() + i), v, 16);
}
template <typename T>
void Get2(emulation::Pointer<T> x, int64_t i, float (&out)[2], TP_WHERE) {
  emulation::CheckAligned(x.at() + i, 2 * sizeof(T), TP_HERE);
  emulation::Check(x.region(), x.at() + i, 2 * sizeof(T), emulation::Access::kRead, TP_HERE);
  out[0] = Widen(x.at()[i]), out[1] = Widen(x.at()[i + 1]);
}
template <typename T>
void Put2(emulation::Pointer<T> x, int64_t i, float a, float b, TP_WHERE) {
  emulation::CheckAligned(x.at() + i, 2 * sizeof(T), TP_HERE);
  emulation::Check(x.region(), x.at() + i, 2 * sizeof(T), emulation::Access::kWrite, TP_HERE);
  Narrow(a, x.at() + i);
  Narrow(b, x.at() + i + 1);
}
template <typename T>
void AtomicAdd(emulation::Pointer<T> x, int64_t i, T v, TP_WHERE) {
  static_assert(std::is_integral_v<T>, "a sum of floats would depend on the order of the threads");
  emulation::Check(x.region(), x.at() + i, sizeof(T), emulation::Access::kAtomic, TP_HERE);
  x.at()[i] += v;
}

template <typename T, typename U>
void CopyAsync16(Shared<T> to, Global<U> from, bool there, TP_WHERE) {
  emulation::CopyAsync(to.region(), to.at(), from.region(), from.at(), there, TP_HERE);
}
inline void CopyAsyncCommit() { emulation::CommitCopies(); }
template <int kLeft>
void CopyAsyncWait() {
  emulation::WaitCopies(kLeft);
}

void LoadMatrix4(Shared<const BF16> row, uint32_t (&out)[4], TP_WHERE);
void LoadMatrix4Transposed(Shared<const BF16> row, uint32_t (&out)[4], TP_WHERE);
void MultiplyTile(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, TP_WHERE);

inline void WaitForKernelBefore() { emulation::WaitForKernelBefore(); }
inline void LetKernelAfterStart() {
}  // kernels run one after the other here; one that starts early is checked
int SharedMax();
int Multiprocessors();
inline void Arrive(Global<uint64_t> count, TP_WHERE) { AtomicAdd(count, 0, uint64_t{1}, file, line); }
inline uint64_t Arrivals(Global<uint64_t> count, TP_WHERE) {
  emulation::Check(count.region(), count.at(), sizeof(uint64_t), emulation::Access::kAtomic, TP_HERE);
  return *count.at();
}
inline void AwaitArrivals(Global<uint64_t> count, uint64_t enough, TP_WHERE) {
  while (Arrivals(count, file, line) < enough) {
  }
}

inline std::string LaunchError(int code) {
  return emulation::Error().empty() ? "error " + std::to_string(code) : emulation::Error();
}
template <typename... P, typename... A>
int Launch(const Grid& grid, void* /*stream*/, void (*kernel)(P...), A... args) {
  const auto launch = [=] {
    auto call = [&] { kernel(args...); };
    return emulation::Run(
        grid, [](void* context) { (*static_cast<decltype(call)*>(context))(); }, &call);
  };
  if (emulation::Recording() == nullptr) return launch();
  emulation::Recording()->push_back(launch);
  return 0;
}

}  // namespace tidepool::cuda
