#pragma once

#include <cstdint>
#include <functional>

namespace tidepool::device {

// Splits [0, items) over at::get_num_threads() threads where the work is worth it. `cost`: rough float
// operations an item.
void ParallelItems(int64_t items, int64_t cost, const std::function<void(int64_t, int64_t)>& body);

}  // namespace tidepool::device
