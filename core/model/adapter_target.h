#pragma once
// What an adapter may change (`model.lora.targets`).

#include <array>
#include <cstdint>

#include "core/base/words.h"

namespace tidepool::model {

// Matrices of each dense block, then those of the model.
enum class AdapterTarget : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown, kEmbedding, kHead };
constexpr auto WordsOf(AdapterTarget) {
  return std::to_array<const char*>({"q", "k", "v", "o", "gate", "up", "down", "embedding", "head"});
}

}  // namespace tidepool::model
