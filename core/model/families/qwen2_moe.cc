// Qwen1.5-MoE and Qwen2-MoE (arXiv:2407.10671): experts, and one that every token takes, behind a sigmoid
// gate.
#include "core/model/families/blocks.h"

namespace tidepool::model {
namespace {

Status ReadQwen2Moe(const ConfigReader& config, ModelSpec& s) {
  TP_RETURN_IF_ERROR(ReadDecoder(config,
                                 {.vocab_size = 151936,
                                  .hidden_size = 2048,
                                  .intermediate_size = 5632,
                                  .layers = 24,
                                  .heads = 16,
                                  .kv_heads = 16,
                                  .max_position = 32768},
                                 s));
  TP_RETURN_IF_ERROR(config.Bool("qkv_bias", true, s.qkv_bias));
  TP_RETURN_IF_ERROR(
      ReadExperts(config, {.experts = 60, .experts_per_token = 4, .intermediate_size = 1408}, s));
  TP_RETURN_IF_ERROR(config.Int("shared_expert_intermediate_size", 5632, s.moe.shared_intermediate_size));
  if (s.moe.shared_intermediate_size < 1)
    return config.Missing("shared_expert_intermediate_size " +
                          std::to_string(s.moe.shared_intermediate_size));
  return RefuseSwitchedWindow(config, /*by_layer=*/false, s);
}

void WriteQwen2Moe(const ModelSpec& s, nlohmann::ordered_json& c) {
  WriteExperts(s, c);
  c["qkv_bias"] = s.qkv_bias;
  c["shared_expert_intermediate_size"] = s.moe.shared_intermediate_size;
  c["use_sliding_window"] = false;
}

}  // namespace

TP_PLUGIN(Family, qwen2_moe) {
  return {.architecture = "Qwen2MoeForCausalLM",
          .doc = "Qwen1.5-MoE, Qwen2-MoE: experts and a shared expert with a gate; dense layers in between",
          .refused =
              "use_sliding_window: true with a window below max_position_embeddings; rope types as for llama",
          .read = ReadQwen2Moe,
          .write = WriteQwen2Moe};
}

}  // namespace tidepool::model
