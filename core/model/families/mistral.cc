// Mistral (arXiv:2310.06825) without its sliding window.
#include "core/model/families/blocks.h"

namespace tidepool::model {
namespace {

Status ReadMistral(const ConfigReader& config, ModelSpec& s) {
  TP_RETURN_IF_ERROR(ReadDecoder(
      config, {.vocab_size = 32000, .intermediate_size = 14336, .kv_heads = 8, .max_position = 131072}, s));
  s.bos_token_id = 1, s.eos_token_ids = {2};
  return RefuseWindow(config, s);
}

void WriteMistral(const ModelSpec&, nlohmann::ordered_json& c) { c["sliding_window"] = nullptr; }

}  // namespace

TP_PLUGIN(Family, mistral) {
  return {
      .architecture = "MistralForCausalLM",
      .doc = "Mistral without a sliding window (sliding_window: null, or not below max_position_embeddings)",
      .refused = "a sliding window below max_position_embeddings; rope types as for llama",
      .read = ReadMistral,
      .write = WriteMistral};
}

}  // namespace tidepool::model
