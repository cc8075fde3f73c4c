#pragma once
// What a decoder model is, apart from its weights. Plain data, standard library only.

#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::model {

enum class DType { kFloat32, kBFloat16 };
inline int64_t Bytes(DType d) { return d == DType::kFloat32 ? 4 : 2; }

// A pre-norm decoder transformer with rotary positions, grouped-query attention and SwiGLU.
struct ModelSpec {
  std::string architecture = "llama";  // llama | qwen2 | qwen3 (the HF model_type)
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;         // d
  int64_t intermediate_size = 0;   // ff
  int64_t layers = 0;              // L
  int64_t heads = 0;               // Hq
  int64_t kv_heads = 0;            // Hkv, divides Hq
  int64_t head_size = 0;           // D, even
  int64_t max_position = 2048;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  bool qkv_bias = false;           // Qwen2
  bool qk_norm = false;            // Qwen3: RMSNorm over each head's D before rotary
  bool tie_embeddings = false;
  std::vector<int32_t> eos_token_ids;  // end tokens of generation_config.json / config.json
  int32_t bos_token_id = -1;
  int32_t pad_token_id = -1;
};

}  // namespace tidepool::model
