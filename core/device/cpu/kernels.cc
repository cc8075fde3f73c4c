#include "core/device/cpu/kernels.h"

namespace tidepool::device {

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
namespace amx_bf16 {
extern const TileKernels kTiles;
}
#endif
#undef TIDEPOOL_DECLARE

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
  if (isa == Isa::kAmxBf16) {
    static const KernelTable<BF16> table = amx_bf16::kTiles.In(avx512_bf16::kBFloat16);
    return table;
  }
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

}  // namespace tidepool::device
