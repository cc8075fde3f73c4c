#include "core/model/kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string_view>

namespace tidepool::model {

// Defined by kernels_<isa>.cc.
#define TIDEPOOL_DECLARE(isa)               \
  namespace isa {                           \
  extern const KernelTable<float> kFloat;   \
  extern const KernelTable<BF16> kBFloat16; \
  }
TIDEPOOL_DECLARE(baseline)
#if defined(__x86_64__)
TIDEPOOL_DECLARE(avx2)
TIDEPOOL_DECLARE(avx512)
namespace avx512_bf16 {
extern const KernelTable<BF16> kBFloat16;
}
#endif
#undef TIDEPOOL_DECLARE

namespace {
Isa Detect() {
  Isa best = Isa::kBaseline;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = Isa::kAvx2;
  if (best == Isa::kAvx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    best = __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
  }
#endif
  if (const char* wanted = std::getenv("TIDEPOOL_CPU_ISA"); wanted != nullptr) {
    for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
      if (std::string_view(wanted) == Name(isa) && isa < best) best = isa;
    }
  }
  return best;
}

#if defined(__x86_64__)
// Leaf 7, EDX bit 22. Not __builtin_cpu_supports: clang 14 does not know the name.
bool HasAmxBf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0;
}
#endif
}  // namespace

Isa BestIsa() {
  static const Isa isa = Detect();
  return isa;
}

bool OwnProducts(bool wide) {
#if defined(__x86_64__)
  static const bool amx = HasAmxBf16() && std::getenv("TIDEPOOL_CPU_ISA") == nullptr;
  return wide || !amx;
#else
  return true;
#endif
}

template <>
const KernelTable<float>& KernelsFor<float>(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return avx512::kFloat;
  if (isa == Isa::kAvx2) return avx2::kFloat;
#endif
  return baseline::kFloat;
}
template <>
const KernelTable<BF16>& KernelsFor<BF16>(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512Bf16) return avx512_bf16::kBFloat16;
  if (isa == Isa::kAvx512) return avx512::kBFloat16;
  if (isa == Isa::kAvx2) return avx2::kBFloat16;
#endif
  return baseline::kBFloat16;
}
template <>
const KernelTable<float>& Kernels<float>() {
  return KernelsFor<float>(BestIsa());
}
template <>
const KernelTable<BF16>& Kernels<BF16>() {
  return KernelsFor<BF16>(BestIsa());
}

}  // namespace tidepool::model
