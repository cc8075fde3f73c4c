#pragma once
// Products of few rows that follow each other, each with its norm before it and its gate after it, in one
// kernel: the weights of the next ones come while a product waits for what it multiplies. In bfloat16.

#include <span>

#include "core/cuda/kernels/launch.h"

namespace tidepool::cuda {

constexpr int kChainMax = 8;          // products
constexpr int64_t kChainRowsMax = 4;  // of 8 rows kernels of their own take as long

// Whether the kernel takes this product on the thread's GPU: its rows lie on 16 bytes, are few, and have
// room in shared memory.
bool TakesInChain(const device::FusedMultiplyArgs<BF16>& a);
// Up to kChainMax products, each of TakesInChain; each has ended when the next one reads. What lies between
// norm, product and gate is not written. All its blocks have to run at once.
int ProductChain(std::span<const device::FusedMultiplyArgs<BF16>> products, Launcher& launcher);

}  // namespace tidepool::cuda
