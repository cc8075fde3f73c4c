// The kernels compiled for one instruction set (flags in CMakeLists.txt).
#define TIDEPOOL_ISA baseline
#include "core/model/kernels/rows.inc"
#include "core/model/kernels/attention.inc"
#include "core/model/kernels/experts.inc"
#include "core/model/kernels/table.inc"
