#include "workers/torch_threads.h"

#include <ATen/Parallel.h>

namespace tidepool::workers {
void SetTorchThreads(int threads) { at::set_num_threads(threads); }
}  // namespace tidepool::workers
