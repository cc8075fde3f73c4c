#include "core/engine/kv_arena.h"

#include <cstring>
#include <string>

#include "core/base/check.h"

namespace tidepool::engine {

KvArena::KvArena(const model::ModelSpec& spec, model::DType dtype, int64_t slots, device::Device& device,
                 int64_t note_bytes)
    : device_(device),
      layers_(spec.layers),
      slots_(slots),
      width_(spec.kv_heads * spec.head_size),
      dtype_(dtype),
      note_bytes_(note_bytes) {
  bytes_ = slots_ * (2 * layers_ * width_ * model::Bytes(dtype) + note_bytes_);
}

Status KvArena::Allocate() {
  if (allocated()) return OkStatus();
  for (auto* memory : {&k_, &v_}) {
    StatusOr<std::shared_ptr<device::Buffer>> taken =
        device_.Allocate(layers_ * slots_ * width_ * model::Bytes(dtype_));
    if (!taken.ok()) {
      Free();
      return ResourceExhausted("KV cache: " + std::to_string(bytes_) + " bytes for " +
                               std::to_string(slots_) + " tokens could not be allocated (" +
                               taken.status().message() + "); lower rollout.kv_cache_tokens");
    }
    *memory = std::move(taken).value();
  }
  notes_.resize(static_cast<size_t>(slots_ * note_bytes_));
  return OkStatus();
}

void KvArena::Free() {
  k_.reset();
  v_.reset();
  notes_ = {};
}

model::KvMemory KvArena::memory() {
  TP_CHECK(allocated()) << "the KV cache was released";
  return {.k = {k_->data(), layers_ * slots_, width_, dtype_},
          .v = {v_->data(), layers_ * slots_, width_, dtype_}};
}

void KvArena::Copy(int64_t from_slot, int64_t to_slot, int64_t count) {
  TP_CHECK(allocated() && from_slot + count <= slots_ && to_slot + count <= slots_)
      << from_slot << " to " << to_slot;
  if (note_bytes_ > 0) std::memcpy(note(to_slot), note(from_slot), static_cast<size_t>(count * note_bytes_));
  for (const device::View& all : {memory().k, memory().v}) {
    for (int64_t layer = 0; layer < layers_; ++layer) {
      const device::View from = all.Rows(layer * slots_ + from_slot, count);
      device_.Copy(all.Rows(layer * slots_ + to_slot, count).data, from.data, from.bytes());
    }
  }
}

}  // namespace tidepool::engine
