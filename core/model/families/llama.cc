// Llama 2 and 3.x (arXiv:2407.21783), SmolLM2 and everything else that calls itself "llama".
#include "core/model/families/blocks.h"

namespace tidepool::model {
namespace {

Status ReadLlama(const ConfigReader& config, ModelSpec& s) {
  TP_RETURN_IF_ERROR(
      ReadDecoder(config, {.vocab_size = 32000, .intermediate_size = 11008, .max_position = 2048}, s));
  TP_RETURN_IF_ERROR(config.Bool("attention_bias", false, s.qkv_bias));
  s.o_bias = s.qkv_bias;
  TP_RETURN_IF_ERROR(config.Bool("mlp_bias", false, s.mlp_bias));
  s.bos_token_id = 1, s.eos_token_ids = {2};
  return OkStatus();
}

void WriteLlama(const ModelSpec& s, nlohmann::ordered_json& c) {
  c["attention_bias"] = s.qkv_bias;
  c["mlp_bias"] = s.mlp_bias;
}

}  // namespace

TP_PLUGIN(Family, llama) {
  return {
      .architecture = "LlamaForCausalLM",
      .doc = "Llama 2 and 3.x, SmolLM2; attention and MLP biases; rope scaling default, linear, llama3, yarn",
      .refused =
          "rope scaling dynamic beyond max_position_embeddings, longrope and others; activations other than "
          "silu",
      .read = ReadLlama,
      .write = WriteLlama};
}

}  // namespace tidepool::model
