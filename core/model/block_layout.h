#pragma once
// Where the parameters of a frozen model stand whose matrices are in blocks of 8 or 4 bits
// (core/device/blocks.h): in module order, each start aligned to 64 bytes, those that are in no blocks in the
// model's type. No LibTorch.

#include <cstdint>
#include <vector>

#include "core/device/blocks.h"
#include "core/model/layout.h"
#include "core/model/spec.h"

namespace tidepool::model {

struct BlockLayout {
  std::vector<device::BlockType> types;  // of each parameter
  std::vector<int64_t> at;               // bytes from the arena's start
  int64_t bytes = 0;
};
// requires a type of each of Layout(spec), and that CanBeBlocks says so of those that have one
BlockLayout LayoutInBlocks(const ModelSpec& spec, DType dtype, std::vector<device::BlockType> types);

// Whether products can read this parameter in blocks: a matrix of hidden states, or the embedding, in whole
// blocks and whole strips.
bool CanBeBlocks(const Parameter& p);

}  // namespace tidepool::model
