#pragma once
// LibTorch's products of bfloat16, which use AMX where a processor has it.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/arguments.h"
#include "core/device/cpu/row_blocks.h"
#include "core/device/page_buffer.h"

namespace tidepool::device {

// Not thread-safe; uses at::get_num_threads() threads.
class TorchProducts {
 public:
  // row_blocks: how forward products are cut; null: as they come.
  explicit TorchProducts(std::shared_ptr<const RowBlocks> row_blocks) : row_blocks_(std::move(row_blocks)) {}

  void Multiply(const MultiplyArgs<BF16>&);
  void MultiplyBack(const MultiplyBackArgs<BF16>&);
  void MultiplyBackWeight(const MultiplyBackWeightArgs<BF16>&);
  void ReleaseScratch() { scratch_ = PageBuffer(); }
  [[nodiscard]] int64_t scratch_bytes() const { return static_cast<int64_t>(scratch_.bytes().size()); }

 private:
  BF16* Scratch(int64_t elements);

  std::shared_ptr<const RowBlocks> row_blocks_;
  PageBuffer scratch_;
};

}  // namespace tidepool::device
