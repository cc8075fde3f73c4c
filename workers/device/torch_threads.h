#pragma once
// What the rest of the worker needs to know of LibTorch without its headers.

namespace tidepool::workers {

// Threads of one process's tensor operations; before the first one.
void SetTorchThreads(int threads);

}  // namespace tidepool::workers
