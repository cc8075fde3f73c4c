#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string_view>

#include "core/model/kernels/kernels.h"

namespace tidepool::model {
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

}  // namespace tidepool::model
