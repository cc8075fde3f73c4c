// Qwen3-MoE (arXiv:2505.09388): Qwen3's attention, experts without a shared one.
#include "core/model/families/blocks.h"

namespace tidepool::model {
namespace {

Status ReadQwen3Moe(const ConfigReader& config, ModelSpec& s) {
  TP_RETURN_IF_ERROR(ReadDecoder(config,
                                 {.vocab_size = 151936,
                                  .hidden_size = 2048,
                                  .intermediate_size = 6144,
                                  .layers = 24,
                                  .heads = 32,
                                  .kv_heads = 4,
                                  .max_position = 32768},
                                 s));
  s.qk_norm = true;
  TP_RETURN_IF_ERROR(config.Bool("attention_bias", false, s.qkv_bias));
  s.o_bias = s.qkv_bias;
  TP_RETURN_IF_ERROR(
      ReadExperts(config, {.experts = 128, .experts_per_token = 8, .intermediate_size = 768}, s));
  return RefuseSwitchedWindow(config, /*by_layer=*/false, s);
}

void WriteQwen3Moe(const ModelSpec& s, nlohmann::ordered_json& c) {
  WriteExperts(s, c);
  c["attention_bias"] = s.qkv_bias;
  c["use_sliding_window"] = false;
}

}  // namespace

TP_PLUGIN(Family, qwen3_moe) {
  return {.architecture = "Qwen3MoeForCausalLM",
          .doc = "Qwen3-MoE: Qwen3's attention, experts, dense layers in between",
          .refused =
              "use_sliding_window: true with a window below max_position_embeddings; rope types as for llama",
          .read = ReadQwen3Moe,
          .write = WriteQwen3Moe};
}

}  // namespace tidepool::model
