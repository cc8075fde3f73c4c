// Products with the dot product of bfloat16 pairs (flags in CMakeLists.txt). All other kernels are those of
// AVX-512.
#define TIDEPOOL_ISA avx512_bf16
#include "core/model/kernels/multiply_back.inc"

namespace tidepool::model::avx512_bf16 {

extern const ProductTable<BF16> kProducts;
const ProductTable<BF16> kProducts = MakeProducts<BF16>();

}  // namespace tidepool::model::avx512_bf16
