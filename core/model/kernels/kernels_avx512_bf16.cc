// The kernels compiled for one instruction set (flags in CMakeLists.txt).
#define TIDEPOOL_ISA avx512_bf16
#include "core/model/kernels/table.inc"
