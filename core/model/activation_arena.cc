#include "core/model/activation_arena.h"

#include <algorithm>

namespace tidepool::model {

device::View ActivationArena::Take(int64_t rows, int64_t cols, DType dtype) {
  device::View view{.rows = rows, .cols = cols, .dtype = dtype};
  view.data = TakeBytes(view.bytes());
  return view;
}

void* ActivationArena::TakeBytes(int64_t bytes) {
  bytes = std::max<int64_t>(64, (bytes + 63) / 64 * 64);
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_]->bytes()) ++chunk_, used_ = 0;
  if (chunk_ == chunks_.size()) {
    chunks_.push_back(device_->Need(std::max(bytes, kChunkBytes)));
    used_ = 0;
  }
  void* p = static_cast<std::byte*>(chunks_[chunk_]->data()) + used_;
  used_ += bytes;
  return p;
}

int64_t ActivationArena::bytes() const {
  int64_t sum = 0;
  for (const auto& chunk : chunks_) sum += chunk->bytes();
  return sum;
}

}  // namespace tidepool::model
