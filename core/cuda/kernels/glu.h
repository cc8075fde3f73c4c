#pragma once
// The gate of SwiGLU, for the kernels that have one.

#include "core/cuda/device_code.h"

namespace tidepool::cuda {

__device__ inline float SigmoidOf(float v) { return 1.0F / (1.0F + __expf(-v)); }
__device__ inline float Gated(float gate, float up) { return gate * SigmoidOf(gate) * up; }
// As it reads back from memory of bfloat16.
__device__ inline float RoundedToBF16(float v) { return __uint_as_float(NarrowTwo(0.0F, v) & 0xFFFF0000U); }

}  // namespace tidepool::cuda
