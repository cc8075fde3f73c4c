// The kernels compiled for one instruction set (flags in CMakeLists.txt).
#define TIDEPOOL_ISA avx2
#include "core/device/cpu/table.inc"
