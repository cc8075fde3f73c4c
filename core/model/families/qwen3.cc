// Qwen3 (arXiv:2505.09388): RMSNorm on each head of q and k before rotation, head size of its own.
#include "core/model/families/blocks.h"

namespace tidepool::model {
namespace {

Status ReadQwen3(const ConfigReader& config, ModelSpec& s) {
  TP_RETURN_IF_ERROR(ReadDecoder(config,
                                 {.vocab_size = 151936,
                                  .intermediate_size = 22016,
                                  .kv_heads = 32,
                                  .head_size = 128,
                                  .max_position = 32768},
                                 s));
  s.qk_norm = true;
  TP_RETURN_IF_ERROR(config.Bool("attention_bias", false, s.qkv_bias));
  s.o_bias = s.qkv_bias;
  return RefuseSwitchedWindow(config, /*by_layer=*/true, s);
}

void WriteQwen3(const ModelSpec& s, nlohmann::ordered_json& c) {
  c["attention_bias"] = s.qkv_bias;
  c["use_sliding_window"] = false;
}

}  // namespace

TP_PLUGIN(Family, qwen3) {
  return {.architecture = "Qwen3ForCausalLM",
          .doc = "Qwen3: norms on the heads of q and k, free head size, optional attention biases",
          .refused =
              "use_sliding_window: true where a layer's window is below max_position_embeddings; "
              "rope types as for llama",
          .read = ReadQwen3,
          .write = WriteQwen3};
}

}  // namespace tidepool::model
