#pragma once
// How many threads tensor operations of this process use (a slot's share of the cores).

namespace tidepool::workers {
void SetTorchThreads(int threads);
}  // namespace tidepool::workers
