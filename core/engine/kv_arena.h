#pragma once
// The memory behind the KV cache: two arrays [layers, slots, kv_heads, head_size] in the model's dtype,
// slot = block * block_tokens + place in the block. Pages are touched when they are first written, so
// resident memory follows use. Not thread-safe.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/model/decoder.h"
#include "core/model/spec.h"

namespace tidepool::engine {

class KvArena {
 public:
  // Nothing is allocated yet. `note_bytes` of every slot are kept beside its keys and values and go where
  // they go: what was found out about a token while they were computed.
  // The device outlives it.
  KvArena(const model::ModelSpec& spec, model::DType dtype, int64_t slots, device::Device& device,
          int64_t note_bytes = 0);

  [[nodiscard]] int64_t bytes() const { return bytes_; }  // of both arrays
  [[nodiscard]] bool allocated() const { return k_ != nullptr; }
  Status Allocate();  // kResourceExhausted, with the size; no effect if allocated
  void Free();
  // Views for the decoder. requires allocated().
  [[nodiscard]] model::KvMemory memory();
  // [note_bytes] of a slot. requires allocated().
  [[nodiscard]] unsigned char* note(int64_t slot) { return notes_.data() + slot * note_bytes_; }
  // Copies `count` slots of all layers, notes included. requires allocated() and slots in range.
  void Copy(int64_t from_slot, int64_t to_slot, int64_t count);

 private:
  device::Device& device_;
  const int64_t layers_;
  const int64_t slots_;
  const int64_t width_;  // elements of a slot
  const model::DType dtype_;
  const int64_t note_bytes_;
  int64_t bytes_ = 0;
  std::vector<unsigned char> notes_;  // [slots, note_bytes]
  std::shared_ptr<device::Buffer> k_, v_;
};

}  // namespace tidepool::engine
