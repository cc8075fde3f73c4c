#pragma once
// What the configs of all families have in common, for families/*.cc.

#include <nlohmann/json.hpp>

#include "core/model/families/family.h"

namespace tidepool::model {

// Values of keys that config.json leaves out, as the reference library has them for a model_type.
struct DecoderDefaults {
  int64_t vocab_size = 0, hidden_size = 4096, intermediate_size = 0, layers = 32, heads = 32;
  int64_t kv_heads = 0;   // 0: as many as heads; also where the key is null
  int64_t head_size = 0;  // 0: hidden_size / heads
  int64_t max_position = 0;
};

// Sizes, norm, rotary positions, tied embeddings; refuses another activation, partial rotation, quantized
// weights.
Status ReadDecoder(const ConfigReader& config, const DecoderDefaults& defaults, ModelSpec& spec);

// Sliding windows. A window that no position below max_position_embeddings reaches changes nothing: it is
// accepted, and positions end there. Another is refused by name.
// Mistral: one for all layers, 4096 where the key is left out, none where it is null.
Status RefuseWindow(const ConfigReader& config, ModelSpec& spec);
// Qwen: only where `use_sliding_window` is true. `by_layer`: it begins at layer `max_window_layers`, or
// `layer_types` tells.
Status RefuseSwitchedWindow(const ConfigReader& config, bool by_layer, ModelSpec& spec);

struct MoeDefaults {
  int64_t experts = 0, experts_per_token = 0, intermediate_size = 0;
};
// Both spellings of the number of experts (num_experts, num_local_experts).
Status ReadExperts(const ConfigReader& config, const MoeDefaults& defaults, ModelSpec& spec);
void WriteExperts(const ModelSpec& spec, nlohmann::ordered_json& config);

}  // namespace tidepool::model
