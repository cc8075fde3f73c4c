#pragma once
// Which rows of a batch are attended together: plans made on the host, read by the attention kernels.
//
// A row attends to slots over runs (core/device/arguments.h). Reading keys and values is what decode
// costs, so rows whose keys of a partition lie in the same slots (samples of one prompt) share one pass over
// them; and rows of one sequence share a pass in prefill and training. Which rows share is no part of a row's
// result. Pure functions; thread-safe.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/device/kv_run.h"

namespace tidepool::cuda {

// Keys of a partition, by absolute position: a constant of the arithmetic, since partitions are merged.
constexpr int kPartitionKeys = 256;

struct AttentionItem {
  int32_t first = 0;         // decode: place in the order of rows; prefill: row
  int32_t count = 0;         // rows
  int32_t partition = 0;     // decode: keys [256 p, 256 p + 256)
  int32_t run = 0;           // the run that holds the first key
  int32_t run_position = 0;  // position of the run's first key
  int32_t row = 0;           // decode: its first row, and how many keys that one has from `partition` on
  int32_t left = 0;
};

struct DecodePlan {
  std::vector<AttentionItem> items;
  std::vector<int32_t> order;          // rows, item by item
  std::vector<int32_t> first_partial;  // [rows of the batch]: place of a row's first partition among all
  int64_t partials = 0;                // partitions of all rows
};
// Makes one plan after the other in the same memory. Not thread-safe.
class DecodePlanner {
 public:
  // rows: those of the batch that are planned, ascending; first_run, lengths: of the batch. Rows whose
  // partition is full and lies in the same slots are one item. Time grows with the runs of all rows. The plan
  // is good until the next.
  const DecodePlan& Plan(std::span<const int32_t> rows, std::span<const int32_t> first_run,
                         std::span<const int32_t> lengths, std::span<const device::KvRun> runs);

 private:
  struct Full {
    int64_t key = -1;  // partition and its first slot
    int32_t item = 0;
  };
  DecodePlan plan_;
  std::vector<std::pair<int32_t, int32_t>> parts_;  // item and row, partition by partition
  std::vector<Full> full_;                          // by hash: the first item that has them
};

// Sizes of heads whose attention in bfloat16 runs on tensor cores.
constexpr bool HasTiles(int64_t head_size) { return head_size == 64 || head_size == 128; }

// Consecutive rows with one first_run, at most `rows_max` (PrefillRows) an item. Items of long rows come
// first, so that the device is not left with one of them at the end.
std::vector<AttentionItem> PlanPrefill(std::span<const int32_t> rows, std::span<const int32_t> first_run,
                                       std::span<const int32_t> lengths, int64_t rows_max);
// Query rows of a pass, shared by the heads of a key-value head.
constexpr int kPrefillQueries = 128;
inline int64_t PrefillRows(int64_t heads, int64_t kv_heads) {
  return heads / kv_heads >= kPrefillQueries ? 1 : kPrefillQueries / (heads / kv_heads);
}

// Rows of a sequence from which on a pass of their own is worth it: fewer are decoded, which divides long
// keys among blocks. The height of a tensor core's tile, until it can be measured.
constexpr int64_t kPrefillFrom = 16;
struct RowsByPass {
  std::vector<int32_t> decode, prefill;
};
// all_decoded: however many a sequence has, as the passes round apart.
RowsByPass DivideRows(std::span<const int32_t> first_run, bool all_decoded = false);

// The backward on tensor cores: a block takes 128 rows of a range, as queries or as keys, and walks the other
// side 64 rows at a time, from the range's first row on. Steps where no query attends to a key are left out.
constexpr int kBackBlock = 128, kBackStep = 64;
struct alignas(16) BackwardBlock {  // aligned: read in one access
  int32_t first = 0, count = 0;     // rows
  int32_t step = 0, steps = 0;      // its part of BackwardPass::steps
  int32_t tile = 0;                 // the first of its tiles
};
struct alignas(16) BackwardStep {
  int32_t first = 0, count = 0;  // rows
  int32_t tile = 0;              // its 64 rows among those of all ranges, in their order
  int32_t mask = 0;              // number of the mask; -1: all attend to all
};
struct BackwardPass {
  std::vector<BackwardBlock> blocks;  // those of many steps first, as of PlanPrefill
  std::vector<BackwardStep> steps;
};
struct BackwardPlan {
  BackwardPass queries, keys;       // what a block's rows are
  std::vector<BackwardStep> tiles;  // 64 rows each; no masks
  // [masks, 128]: bit i of a block's row: whether it goes with row i of the step.
  std::vector<uint64_t> masks;
};
// ranges: [begin, end) of rows that attend among themselves, where slots are rows.
BackwardPlan PlanBackward(std::span<const std::pair<int64_t, int64_t>> ranges,
                          std::span<const int32_t> first_run, std::span<const int32_t> lengths,
                          std::span<const device::KvRun> runs);

}  // namespace tidepool::cuda
