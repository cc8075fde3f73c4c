#pragma once
// Who computes which part of an attention plan, on at::get_num_threads() threads.

#include <cstdint>
#include <functional>

#include "core/device/cpu/attention_plan.h"

namespace tidepool::device {

// Runs the tiles of a plan, those that finish rows after all that write parts: tile(which, thread), thread
// below at::get_num_threads(). A thread takes the next tile when it is done with its last one.
void RunTiles(const AttentionPlan& plan, const std::function<void(const AttentionTile&, int64_t)>& tile);

// Runs every cell of every KV head, each after those that it waits for: body(cell, kv_head, thread).
void RunCells(const AttentionBackwardPlan& plan, int64_t kv_heads,
              const std::function<void(int64_t, int64_t, int64_t)>& body);

}  // namespace tidepool::device
