#include "core/engine/kv_arena.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <exception>
#include <string>

#include "core/base/check.h"

namespace tidepool::engine {

KvArena::KvArena(const model::ModelSpec& spec, model::DType dtype, int64_t slots, int64_t note_bytes)
    : layers_(spec.layers),
      slots_(slots),
      kv_heads_(spec.kv_heads),
      head_size_(spec.head_size),
      dtype_(dtype),
      note_bytes_(note_bytes) {
  bytes_ = slots_ * (2 * layers_ * kv_heads_ * head_size_ * model::Bytes(dtype) + note_bytes_);
}

KvArena::~KvArena() = default;

Status KvArena::Allocate() {
  if (allocated()) return OkStatus();
  try {
    const auto type = dtype_ == model::DType::kFloat32 ? at::kFloat : at::kBFloat16;
    k_ = std::make_unique<at::Tensor>(at::empty({layers_, slots_, kv_heads_, head_size_}, type));
    v_ = std::make_unique<at::Tensor>(at::empty({layers_, slots_, kv_heads_, head_size_}, type));
    notes_.resize(static_cast<size_t>(slots_ * note_bytes_));
  } catch (const std::exception& e) {
    Free();
    return ResourceExhausted("KV cache: " + std::to_string(bytes_) + " bytes for " + std::to_string(slots_) +
                             " tokens could not be allocated (" + std::string(e.what()).substr(0, 200) +
                             "); lower rollout.kv_cache_tokens");
  }
  return OkStatus();
}

void KvArena::Free() {
  k_.reset();
  v_.reset();
  notes_ = {};
}

model::KvMemory KvArena::memory() {
  TP_CHECK(allocated()) << "the KV cache was released";
  return {.k = k_.get(), .v = v_.get()};
}

void KvArena::Copy(int64_t from_slot, int64_t to_slot, int64_t count) {
  TP_CHECK(allocated() && from_slot + count <= slots_ && to_slot + count <= slots_)
      << from_slot << " to " << to_slot;
  const int64_t slot_bytes = kv_heads_ * head_size_ * model::Bytes(dtype_);
  const int64_t layer_bytes = slots_ * slot_bytes;
  if (note_bytes_ > 0) std::memcpy(note(to_slot), note(from_slot), static_cast<size_t>(count * note_bytes_));
  for (at::Tensor* tensor : {k_.get(), v_.get()}) {
    auto* base = static_cast<char*>(tensor->mutable_data_ptr());
    for (int64_t layer = 0; layer < layers_; ++layer) {
      char* at = base + layer * layer_bytes;
      std::memcpy(at + to_slot * slot_bytes, at + from_slot * slot_bytes,
                  static_cast<size_t>(count * slot_bytes));
    }
  }
}

}  // namespace tidepool::engine
