#include "core/train/memory.h"

#include <algorithm>

namespace tidepool::train {

MemoryPrediction PredictTrainerMemory(const model::ModelSpec& s, model::DType dtype, int64_t tokens, bool recompute,
                                      int64_t head_rows) {
  const auto padded = [](int64_t n) { return (n + 63) / 64 * 64; };  // as model::Layout aligns
  const int64_t d = s.hidden_size, ff = s.intermediate_size, q = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  int64_t layer = 2 * padded(d) + padded((q + 2 * kv) * d) + padded(d * q) + padded(2 * ff * d) + padded(d * ff);
  if (s.qkv_bias) layer += padded(q + 2 * kv);
  if (s.qk_norm) layer += 2 * padded(s.head_size);
  MemoryPrediction m;
  m.parameters = s.layers * layer + padded(d) + padded(s.vocab_size * d) * (s.tie_embeddings ? 1 : 2);
  const int64_t b = model::Bytes(dtype);
  const bool narrow = dtype == model::DType::kBFloat16;
  m.weights_bytes = m.parameters * b;
  m.optimizer_bytes = m.parameters * (8 + (narrow ? 2 : 0));
  m.gradient_bytes = m.parameters * 4;
  // x and x_mid, q and attention output, k and v, gate and up; rstd twice and lse in float32.
  const int64_t block = b * (2 * d + 2 * q + 2 * kv + 2 * ff + (s.qk_norm ? q + 2 * kv : 0)) + 4 * (2 + s.heads);
  // Normed rows, products on their way, d qkv, d attention, the residual's gradient in float32, hidden and its gradient.
  const int64_t workspace = b * (2 * d + ff + 2 * (q + 2 * kv) + q + d) + 4 * d + (2 * b + 4) * d;
  m.activation_bytes = tokens * (recompute ? s.layers * b * d + block : s.layers * block) + tokens * workspace;
  const int64_t rows = std::max<int64_t>(16, head_rows);
  m.activation_bytes += rows * s.vocab_size * b + rows * d * (3 * b + 4);
  // A bfloat16 product before it is added to the float32 gradient.
  if (narrow) m.activation_bytes += 2 * std::min(std::max({s.vocab_size * d, 2 * ff * d, (q + 2 * kv) * d}), int64_t{8} << 20);
  return m;
}

}  // namespace tidepool::train
