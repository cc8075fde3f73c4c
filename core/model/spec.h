#pragma once
// What a decoder model is, apart from its weights. Plain data, standard library only.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/choices.h"

namespace tidepool::model {

using tidepool::DType;
inline int64_t Bytes(DType d) { return d == DType::kFloat32 ? 4 : 2; }

// How the angles of rotary positions are scaled (rope.h has the formulas).
enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

struct RopeSpec {
  RopeType type = RopeType::kDefault;
  double factor = 1;                     // all but kDefault
  double low_frequency_factor = 1;       // kLlama3
  double high_frequency_factor = 4;      // kLlama3
  double original_max_position = 0;      // kLlama3, kYarn: positions of the first pre-training
  double beta_fast = 32, beta_slow = 1;  // kYarn
  bool truncate = true;                  // kYarn: whole dimensions as bounds of the ramp
  double attention_factor = 1;           // kYarn: multiplies cosines and sines
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// A mixture of experts in place of the MLP of some layers.
struct MoeSpec {
  int64_t experts = 0;                   // E; 0: no layer has any
  int64_t here = 0;                      // of a part of the model (cut.h): those that it has; 0: all
  int64_t experts_per_token = 0;         // K, 1..E
  int64_t intermediate_size = 0;         // of one expert
  int64_t shared_intermediate_size = 0;  // of the expert that every token takes, with a sigmoid gate; 0: none
  bool renormalize = false;              // weights of the chosen experts are divided by their sum
  int64_t sparse_step = 1;               // layer l is sparse if (l + 1) % sparse_step == 0 ...
  std::vector<int32_t> dense_layers;     // ... and it is not one of these
  double aux_loss_coefficient = 0.001;   // of the folder; the trainer decides whether to use it
  [[nodiscard]] bool divided() const { return here > 0; }
  [[nodiscard]] int64_t experts_here() const { return here > 0 ? here : experts; }
  friend bool operator==(const MoeSpec&, const MoeSpec&) = default;
};

constexpr int64_t kHeadSizeMost = 512;  // kernels have room for a head of this size

// A pre-norm decoder transformer with rotary positions, grouped-query attention and SwiGLU.
struct ModelSpec {
  std::string architecture = "llama";  // the HF model_type; one of Families() (families/family.h)
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;        // d
  int64_t intermediate_size = 0;  // ff, of dense layers
  int64_t layers = 0;             // L
  int64_t heads = 0;              // Hq
  int64_t kv_heads = 0;           // Hkv, divides Hq
  int64_t head_size = 0;          // D, even, at most kHeadSizeMost
  int64_t max_position = 2048;
  bool ends_at_max_position = false;  // positions beyond max_position would need what is not implemented
  double rope_theta = 10000.0;
  RopeSpec rope;
  double rms_norm_eps = 1e-5;
  bool qkv_bias = false;  // Qwen2
  bool o_bias = false;    // attention_bias of Llama and Qwen3
  bool mlp_bias = false;  // Llama
  bool qk_norm = false;   // Qwen3: RMSNorm over each head's D before rotary
  bool tie_embeddings = false;
  bool value_head = false;  // a scalar per token (Hugging Face: ...ForSequenceClassification with one label)
                            // in place of logits
  MoeSpec moe;
  std::vector<int32_t> eos_token_ids;  // end tokens of generation_config.json / config.json
  int32_t bos_token_id = -1;
  int32_t pad_token_id = -1;

  [[nodiscard]] bool IsSparse(int64_t layer) const {
    return moe.experts > 0 && (layer + 1) % moe.sparse_step == 0 &&
           std::find(moe.dense_layers.begin(), moe.dense_layers.end(), layer) == moe.dense_layers.end();
  }
  [[nodiscard]] int64_t sparse_layers() const {
    int64_t count = 0;
    for (int64_t l = 0; l < layers; ++l) count += IsSparse(l) ? 1 : 0;
    return count;
  }
};

}  // namespace tidepool::model
