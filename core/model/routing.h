#pragma once
// Which experts a row went through, as bytes on their way from the engine to the trainer: for each sparse
// layer in turn the K chosen ids, by falling weight. An id takes one byte where there are at most 256
// experts, else two (little-endian). Standard library only.

#include <cstdint>

#include "core/model/spec.h"

namespace tidepool::model {

inline int64_t RoutingIdBytes(const ModelSpec& spec) { return spec.moe.experts <= 256 ? 1 : 2; }
// Bytes of one row; 0 without experts.
inline int64_t RoutingBytes(const ModelSpec& spec) {
  return spec.sparse_layers() * spec.moe.experts_per_token * RoutingIdBytes(spec);
}

// One id; the spec has at most 65536 experts (CheckSpec).
inline void PutRoutingId(const ModelSpec& spec, int32_t id, unsigned char* out) {
  out[0] = static_cast<unsigned char>(id & 0xFF);
  if (RoutingIdBytes(spec) == 2) out[1] = static_cast<unsigned char>(id >> 8);
}
inline int32_t GetRoutingId(const ModelSpec& spec, const unsigned char* in) {
  return RoutingIdBytes(spec) == 2 ? in[0] | in[1] << 8 : in[0];
}

}  // namespace tidepool::model
