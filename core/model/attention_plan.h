#pragma once
// How the attention of a batch is divided into tiles (kernels.h), for all layers of a forward.
//
// Neighbouring rows of one sequence share the loads of K and V, and so do sequences that begin with the same
// slots (a group's prompt), which stand in one tile. Tiles are divided over threads by KV heads and then by
// blocks, where a part of each row is what the first blocks give. No choice made here changes a result. Pure;
// no LibTorch.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/model/kernels/kernels.h"

namespace tidepool::model {

struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  int64_t threads = 1;
};

struct AttentionPlan {
  std::vector<int32_t> tile_rows;
  // Those that write parts run before those that finish rows; among each any order is right, and this one
  // has the longest first.
  std::vector<AttentionTile> parts_tiles, tiles;
  std::vector<int32_t> first_part, part_count;  // [rows]
  int64_t parts = 0;
  int64_t cost = 0;  // about the cycles of one core
};

// first_run, lengths: [rows], as in AttentionArgs.
AttentionPlan PlanAttention(std::span<const int32_t> first_run, std::span<const int32_t> lengths,
                            std::span<const KvRun> runs, const AttentionShape& shape);

// What parts of rows that threads share take, at most. keys: of one row, at most.
int64_t AttentionPartBytes(const AttentionShape& shape, int64_t rows, int64_t keys);

// The backward's cells, of each KV head. A cell runs after the cells that it waits for: those before it of
// the same tiles, and of the same slots. Other cells may run at the same time, in any order, with the same
// result.
struct AttentionBackwardPlan {
  std::vector<AttentionBackwardTile> tiles;
  std::vector<AttentionCell> cells;
  std::vector<int32_t> waits;                  // [cells] for how many others
  std::vector<int32_t> next_rows, next_slots;  // [cells] that waits for this one, -1: none
  int64_t lanes = 0;
};

// ranges: [begin, end) of rows that attend inside themselves only and tile the batch; slots are rows.
AttentionBackwardPlan PlanAttentionBackward(std::span<const int32_t> first_run,
                                            std::span<const int32_t> lengths, std::span<const KvRun> runs,
                                            std::span<const std::pair<int64_t, int64_t>> ranges,
                                            const AttentionShape& shape);

}  // namespace tidepool::model
