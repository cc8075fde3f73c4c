#include "core/train/memory.h"

#include <algorithm>

#include "core/model/layout.h"

namespace tidepool::train {

MemoryPrediction PredictTrainerMemory(const model::ModelSpec& s, model::DType dtype, int64_t tokens,
                                      bool recompute, int64_t head_rows) {
  const int64_t d = s.hidden_size, q = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  MemoryPrediction m;
  m.parameters = model::LayoutElements(s);
  const int64_t b = model::Bytes(dtype);
  const bool narrow = dtype == model::DType::kBFloat16;
  m.weights_bytes = m.parameters * b;
  m.optimizer_bytes = m.parameters * (8 + (narrow ? 2 : 0));
  m.gradient_bytes = m.parameters * 4;
  // x and x_mid, q and attention output, k and v; rstd twice and lse in float32.
  const int64_t attention = b * (2 * d + 2 * q + 2 * kv + (s.qk_norm ? q + 2 * kv : 0)) + 4 * (2 + s.heads);
  // Gate and up; of experts those of every row that chose them, their outputs, the router's probabilities,
  // and a copy of the choice and the weights outside the arena.
  const int64_t sparse = s.sparse_layers(), dense = s.layers - sparse, k = s.moe.experts_per_token;
  const int64_t ff = dense > 0 ? s.intermediate_size : 0, em = sparse > 0 ? k * s.moe.intermediate_size : 0;
  const int64_t shared = sparse > 0 ? s.moe.shared_intermediate_size : 0;
  const int64_t dense_mlp = b * 2 * ff;
  const int64_t sparse_mlp =
      sparse == 0 ? 0 : 4 * s.moe.experts + b * (2 * em + k * d + 2 * shared + (shared > 0 ? d : 0)) + 16 * k;
  const int64_t kept = s.layers * attention + dense * dense_mlp + sparse * sparse_mlp;
  const int64_t block = attention + std::max(dense_mlp, sparse_mlp);
  // Normed rows, products on their way, d qkv, d attention, the residual's gradient in float32, hidden and
  // its gradient.
  int64_t workspace = b * (2 * d + ff + 2 * (q + 2 * kv) + q + d) + 4 * d + (2 * b + 4) * d;
  // Gathered rows and their gradient, activations; in float32 the router's gradient, rows and the sum over
  // experts.
  if (sparse > 0) workspace += b * (2 * k * d + em + 2 * shared) + 4 * (s.moe.experts + 2 * d);
  m.activation_bytes = tokens * (recompute ? s.layers * b * d + block : kept) + tokens * workspace;
  const int64_t rows = std::max<int64_t>(16, head_rows);
  m.activation_bytes += rows * s.vocab_size * b + rows * d * (3 * b + 4);
  // A bfloat16 product before it is added to the float32 gradient.
  if (narrow)
    m.activation_bytes +=
        2 *
        std::min(std::max({s.vocab_size * d, 2 * ff * d, 2 * s.moe.intermediate_size * d, (q + 2 * kv) * d}),
                 int64_t{8} << 20);
  return m;
}

}  // namespace tidepool::train
