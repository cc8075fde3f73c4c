#pragma once
// Products of few rows, with the norm before them and the gate after them: what a step that decodes spends
// its time on. In bfloat16.

#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {

constexpr int64_t kFewRowsMax = 32;

// Whether the kernel takes this product on the thread's GPU: its rows lie on 16 bytes, are few, and have room
// in shared memory.
bool TakesFewRows(const device::MultiplyArgs<BF16>& a);

// Whether it takes the norm before the product along: every block normalises all rows again.
bool TakesNorm(const device::RmsNormArgs<BF16>& norm, const device::MultiplyArgs<BF16>& a);
// Whether it takes the gate after the product along.
bool TakesGate(const device::SwiGluArgs<BF16>& glu);
// norm.rows 0: no norm before it; glu.rows 0: no gate after it. What lies between them is not written.
int FewRowsFused(const device::FusedMultiplyArgs<BF16>& a, Stream stream);

}  // namespace tidepool::cuda
