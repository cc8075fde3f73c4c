#pragma once
// What an adapter may change (`model.lora.targets`).

#include <array>
#include <cstdint>

#include "core/base/words.h"

namespace tidepool::model {

// Matrices of each block, where it is dense or has experts, then those of the model.
enum class AdapterTarget : uint8_t {
  kQ,
  kK,
  kV,
  kO,
  kGate,
  kUp,
  kDown,
  kExpertsGateUp,
  kExpertsDown,
  kEmbedding,
  kHead
};
constexpr auto WordsOf(AdapterTarget) {
  return std::to_array<const char*>(
      {"q", "k", "v", "o", "gate", "up", "down", "experts_gate_up", "experts_down", "embedding", "head"});
}
inline constexpr const char* kExpertsWord = "experts";  // both of them
constexpr bool OfDenseMlp(AdapterTarget target) {
  return target >= AdapterTarget::kGate && target <= AdapterTarget::kDown;
}
constexpr bool OfExperts(AdapterTarget target) {
  return target == AdapterTarget::kExpertsGateUp || target == AdapterTarget::kExpertsDown;
}

}  // namespace tidepool::model
