#include "workers/device/torch_threads.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

namespace tidepool::workers {
void SetTorchThreads(int threads) { at::set_num_threads(threads); }
}  // namespace tidepool::workers
