#pragma once
// What the rest of the worker needs to know of LibTorch without its headers.

#include <string>

namespace tidepool::workers {

// Threads of one process's tensor operations; before the first one.
void SetTorchThreads(int threads);

// Widest instruction set its kernels use on this processor: "AVX512", "AVX2", "DEFAULT".
std::string TorchInstructionSet();

}  // namespace tidepool::workers
