#include "core/device/cpu/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace tidepool::device {

void ParallelItems(int64_t items, int64_t cost, const std::function<void(int64_t, int64_t)>& body) {
  // 32k operations are about what it takes to wake another thread.
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(cost, 1));
  if (items <= grain || at::get_num_threads() == 1) {
    if (items > 0) body(0, items);
    return;
  }
  at::parallel_for(0, items, grain, body);
}

}  // namespace tidepool::device
