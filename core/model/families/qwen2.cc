// Qwen2 and Qwen2.5 (arXiv:2407.10671): biases on q, k and v.
#include "core/model/families/blocks.h"

namespace tidepool::model {
namespace {

Status ReadQwen2(const ConfigReader& config, ModelSpec& s) {
  TP_RETURN_IF_ERROR(ReadDecoder(
      config, {.vocab_size = 151936, .intermediate_size = 22016, .kv_heads = 32, .max_position = 32768}, s));
  s.qkv_bias = true;
  return RefuseSwitchedWindow(config, /*by_layer=*/true, s);
}

void WriteQwen2(const ModelSpec&, nlohmann::ordered_json& c) { c["use_sliding_window"] = false; }

}  // namespace

TP_PLUGIN(Family, qwen2) {
  return {.architecture = "Qwen2ForCausalLM",
          .doc = "Qwen2 and Qwen2.5: q, k and v have biases",
          .refused =
              "use_sliding_window: true where a layer's window is below max_position_embeddings; "
              "rope types as for llama",
          .read = ReadQwen2,
          .write = WriteQwen2};
}

}  // namespace tidepool::model
