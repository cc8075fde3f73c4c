// The kernels compiled for one instruction set (flags in CMakeLists.txt).
#define TIDEPOOL_ISA baseline
#include "core/device/cpu/table.inc"
