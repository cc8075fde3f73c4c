// my_model: which models call themselves "my_model" in their config.json, and their paper.
//
// To do: read what the family's config.json says, and refuse by name what is legal there and not implemented
// here. docs/adding_a_model.md has the list of blocks that a family may switch on (core/model/spec.h).
#include "core/model/families/blocks.h"

namespace tidepool::model {
namespace {

Status ReadMyModel(const ConfigReader& config, ModelSpec& s) {
  // Sizes, norm, rotary positions, tied embeddings, with this family's defaults for keys that are left out;
  // refuses other activations, partial rotation, quantized weights.
  TP_RETURN_IF_ERROR(
      ReadDecoder(config, {.vocab_size = 32000, .intermediate_size = 11008, .max_position = 4096}, s));
  s.qkv_bias = true;  // as an example: Llama's blocks with biases on q, k and v
  double cap = 0;
  TP_RETURN_IF_ERROR(config.Number("logit_softcapping", 0, cap));
  if (cap != 0)
    return config.Missing("logit_softcapping " +
                          std::to_string(cap));  // numbers that ignore it would be wrong
  return RefuseSwitchedWindow(config, /*by_layer=*/true, s);
}

// Adds to the keys that all families share (core/model/hugging_face_config.cc).
void WriteMyModel(const ModelSpec& /*spec*/, nlohmann::ordered_json& config) {
  config["attention_bias"] = true;
  config["use_sliding_window"] = false;
}

}  // namespace

TP_PLUGIN(Family, my_model) {
  return {.architecture = "MyModelForCausalLM",
          .doc = "what it is, what sets it apart",
          .refused = "logit_softcapping",
          .read = ReadMyModel,
          .write = WriteMyModel};
}

}  // namespace tidepool::model
