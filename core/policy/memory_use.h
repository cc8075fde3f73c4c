#pragma once
// How many bytes a policy of control tasks takes, as core/model/memory_use.h has it for a language model:
// before anything is allocated. No LibTorch.
//
// P: elements of the flat parameter space, a cell: one step of one environment.
//   weights      4 P         optimizer 8 P (moments)         gradients 4 P
//   activations  for the rows that are computed together: outputs of every layer and their gradients
// A squashed policy's trainer has its two critics, C elements, too: their weights and targets, 8 C, count
// with the optimizer, as do their moments and the replay store.
//   workspace    the matrices arranged by columns, 4 P, and the fragments that are held

#include <cstdint>

#include "core/model/memory_use.h"
#include "core/policy/spec.h"

namespace tidepool::policy {

struct MemorySizes {
  int64_t fragment_cells = 0;  // steps x instances
  int64_t fragments = 0;       // of an optimizer step; for playing, under way at a time
  int64_t minibatches = 1;
  int64_t replay_capacity = 0, replay_batch = 0;  // of a squashed policy's trainer: transitions
};
// Of the policy that is trained: weights, optimizer, gradients, activations, workspace.
model::MemoryUse TrainingMemory(const PolicySpec& spec, const MemorySizes& sizes);
// Of playing alone: workspace.
model::MemoryUse PlayingMemory(const PolicySpec& spec, const MemorySizes& sizes);
int64_t ParameterCount(const PolicySpec& spec);  // without padding

}  // namespace tidepool::policy
