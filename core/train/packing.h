#pragma once
// Micro-batches: which rows are computed together, and where their tokens stand.
//
// Tokens with the same past are computed once: the rows of a group share their prompt, responses that begin
// alike share that beginning as well, and groups of a micro-batch the beginning of their prompts. Hidden
// states are functions of the past alone, so values do not change, and gradients of a shared token are summed
// by the chain rule: exact. The last token of a response is not computed, since nothing is predicted from it.
// Where experts were recorded (routing_bytes of Row::routing a token, model::RoutingBytes), tokens that went
// through others are not the same. Pure functions; thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/device/kv_run.h"
#include "core/train/batch.h"

namespace tidepool::train {

// One micro-batch, ready for model::RaggedBatch.
struct PackedBatch {
  std::vector<int64_t> rows;  // places in the batch, ascending inside a group
  std::vector<int32_t> ids, positions, slots, first_run, lengths;  // [tokens]
  std::vector<int64_t> row_of;  // [tokens] the row, a place in the batch, that the token was packed for
  std::vector<device::KvRun> runs;
  // Predictions: token `target` after packed token `source`. A pair that several rows need stands once.
  std::vector<int32_t> sources, targets;      // [pairs]
  std::vector<std::vector<int32_t>> pair_of;  // [rows][response tokens] -> pair
};

// Packs rows[places] in this order. Rows of one group are neighbours.
PackedBatch Pack(std::span<const Row> rows, std::span<const int64_t> places, int64_t routing_bytes = 0);

// Splits places (groups of neighbours with one gid) into micro-batches of at most `budget` computed tokens:
// first-fit decreasing over groups, the order of groups stable in size and inside a micro-batch. A
// group above the budget is cut between rows, and each part computes the prompt again.
// kInvalidArgument names a single row that is longer than the budget (CheckFits).
StatusOr<std::vector<std::vector<int64_t>>> MicroBatches(std::span<const Row> rows,
                                                         std::span<const int64_t> places, int64_t budget,
                                                         int64_t routing_bytes = 0);

// kInvalidArgument: the row and `further` tokens are more than `budget` computed ones.
Status CheckFits(const Row& row, int64_t budget, int64_t further = 0);

// Cuts the rows into `parts` runs of whole groups with about equal numbers of groups (minibatches).
std::vector<std::vector<int64_t>> SplitGroups(std::span<const Row> rows, int64_t parts);

}  // namespace tidepool::train
