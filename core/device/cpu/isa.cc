#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/cpu/kernels.h"

namespace tidepool::device {
namespace {

#if defined(__x86_64__)
// Whether the processor has tiles that multiply bfloat16, and the kernel lets this process use them. By hand:
// clang 14 does not know the names that __builtin_cpu_supports has for it.
bool HasAmxBf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxBf16) == 0 || (d & kAmxTile) == 0)
    return false;
  // Palette 1: 8 tiles of 16 rows of 64 bytes.
  if (__get_cpuid_count(0x1D, 1, &a, &b, &c, &d) == 0 || b >> 16 < 8 || (b & 0xFFFF) < 64 ||
      (c & 0xFFFF) < 16)
    return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Whole numbers from -4 to 4: their products and sums are exact in every order.
struct Numbers {
  explicit Numbers(int64_t n) : bits(static_cast<size_t>(n)), values(static_cast<size_t>(n)) {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<int>(i * 7 % 9) - 4);
    KernelsFor<BF16>(Isa::kBaseline).narrow(0, n, values.data(), bits.data());
  }
  std::vector<BF16> bits;
  std::vector<float> values;
};

// An emulator or a hypervisor may promise tiles and not keep them as they should be: then all goes on
// without.
bool TilesMultiply(int64_t count) {
  constexpr int64_t kN = 48, kK = 64;
  const Numbers x(count * kK), w(kN * kK), dy(count * kN);
  const ProductTable<BF16>& tiles = KernelsFor<BF16>(Isa::kAmxBf16).product;
  const auto rows = static_cast<size_t>(count);
  std::vector<float> y(rows * kN, 0), dx(rows * kK, 0), dw(kN * kK, 0);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < kN; ++i) {
      for (size_t j = 0; j < kK; ++j) {
        y[r * kN + i] += x.values[r * kK + j] * w.values[i * kK + j];
        dx[r * kK + j] += dy.values[r * kN + i] * w.values[i * kK + j];
        dw[i * kK + j] += dy.values[r * kN + i] * x.values[r * kK + j];
      }
    }
  }
  const auto rounded = [](const std::vector<float>& wide) {
    std::vector<BF16> narrow(wide.size());
    KernelsFor<BF16>(Isa::kBaseline).narrow(0, static_cast<int64_t>(wide.size()), wide.data(), narrow.data());
    return narrow;
  };
  std::vector<BF16> strips(w.bits.size()), got_y(y.size()), got_dx(dx.size()), dx_of_strips(dx.size());
  std::vector<float> got_dw(dw.size(), 0),
      scratch(static_cast<size_t>(std::max(MultiplyBackScratch(), tiles.multiply_scratch(count, kK))));
  tiles.lay_out(0, kN / kStripRows, kK / 2, reinterpret_cast<const uint32_t*>(w.bits.data()),
                reinterpret_cast<uint32_t*>(strips.data()));
  tiles.multiply_strips(0, kN,
                        {.rows = count,
                         .n = kN,
                         .k = kK,
                         .x = x.bits.data(),
                         .w = strips.data(),
                         .y = got_y.data(),
                         .strips = true},
                        scratch.data());
  tiles.multiply_back(
      0, count,
      {.rows = count, .n = kN, .k = kK, .dy = dy.bits.data(), .w = w.bits.data(), .dx = got_dx.data()},
      scratch.data());
  tiles.multiply_back(0, count,
                      {.rows = count,
                       .n = kN,
                       .k = kK,
                       .dy = dy.bits.data(),
                       .w = strips.data(),
                       .dx = dx_of_strips.data(),
                       .strips = true},
                      scratch.data());
  tiles.multiply_back_weight(
      0, kN, {.rows = count, .n = kN, .k = kK, .dy = dy.bits.data(), .x = x.bits.data(), .dw = got_dw.data()},
      scratch.data());
  const auto same = [](const auto& a, const auto& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
  };
  // The same in two tiles, which takes other sums.
  SumTiles two{.tiles = 2, .end = {{kK / 2, kK}}, .unit = kK / 2};
  std::vector<BF16> in_tiles(y.size());
  tiles.multiply_strips(0, kN,
                        {.rows = count,
                         .n = kN,
                         .k = kK,
                         .x = x.bits.data(),
                         .w = strips.data(),
                         .y = in_tiles.data(),
                         .strips = true,
                         .tiles = &two},
                        scratch.data());
  return same(got_y, rounded(y)) && same(in_tiles, rounded(y)) && same(got_dx, rounded(dx)) &&
         same(dx_of_strips, got_dx) && got_dw == dw;
}

// One row, one tile of them, a second tile of one row, and blocks with rows left over.
bool TilesMultiply() {
  return TilesMultiply(1) && TilesMultiply(16) && TilesMultiply(17) && TilesMultiply(35);
}
#endif

// TIDEPOOL_CPU_ISA, or the best there is. Ends the process at another word: who compares instruction sets
// would measure the wrong one.
Isa Wanted() {
  const char* wanted = std::getenv("TIDEPOOL_CPU_ISA");
  if (wanted == nullptr || *wanted == 0) return Isa::kAmxBf16;
  std::string words;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
    if (std::string_view(wanted) == Name(isa)) return isa;
    words += (words.empty() ? "" : ", ") + std::string(Name(isa));
  }
  std::fprintf(stderr, "TIDEPOOL_CPU_ISA=%s is no instruction set of the kernels; set one of %s\n", wanted,
               words.c_str());
  std::_Exit(2);
}

Isa Detect() {
  const Isa wanted = Wanted();
  Isa best = Isa::kBaseline;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    best = Isa::kAvx2;
  if (best == Isa::kAvx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    best = __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
  }
  // A process that does without tiles neither asks the kernel for them nor tries them.
  if (best == Isa::kAvx512Bf16 && wanted == Isa::kAmxBf16 && HasAmxBf16() && TilesMultiply())
    best = Isa::kAmxBf16;
#endif
  const char* asked = std::getenv("TIDEPOOL_CPU_ISA");
  if (best < wanted && asked != nullptr && *asked != 0)
    std::fprintf(stderr, "TIDEPOOL_CPU_ISA=%s: this processor has %s at most, which is used\n", asked,
                 Name(best));
  return std::min(best, wanted);
}
}  // namespace

Isa BestIsa() {
  static const Isa isa = Detect();
  return isa;
}

}  // namespace tidepool::device
