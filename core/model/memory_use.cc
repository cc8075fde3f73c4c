#include "core/model/memory_use.h"

#include <algorithm>
#include <string_view>

#include "core/device/cpu/attention_plan.h"
#include "core/device/cpu/kernels.h"
#include "core/model/activation_arena.h"
#include "core/model/graph_rows.h"
#include "core/model/layout.h"
#include "core/model/products.h"
#include "core/model/routing.h"

namespace tidepool::model {
namespace {

device::AttentionShape ShapeOf(const ModelSpec& s, int64_t threads) {
  return {.heads = s.heads, .kv_heads = s.kv_heads, .head_size = s.head_size, .threads = threads};
}

// Of the MLP of one block, for one token: gate and up; of experts those that the token chose and their
// outputs, the router's probabilities, and the choice with its weights and places. Where experts are divided,
// as many rows of other ranks as this one gives away, which are kept as they came, and their places.
int64_t MlpBytes(const ModelSpec& s, int64_t w, bool sparse) {
  if (!sparse) return 2 * w * s.intermediate_size;
  const int64_t k = s.moe.experts_per_token, shared = s.moe.shared_intermediate_size;
  return w * (k * (2 * s.moe.intermediate_size + s.hidden_size) + 2 * shared +
              (shared > 0 ? s.hidden_size : 0)) +
         4 * s.moe.experts + 16 * k + (s.moe.divided() ? w * k * s.hidden_size + 8 * k : 0);
}
int64_t LargestMlpBytes(const ModelSpec& s, int64_t w) {
  const int64_t sparse = s.sparse_layers();
  return std::max(sparse < s.layers ? MlpBytes(s, w, false) : 0, sparse > 0 ? MlpBytes(s, w, true) : 0);
}

// Buffers of one block that are not kept: normed input, activation, product results, qkv.
int64_t ScratchBytes(const ModelSpec& s, int64_t w) {
  const int64_t sparse = s.sparse_layers(), dense = sparse < s.layers ? s.intermediate_size : 0,
                k = sparse > 0 ? s.moe.experts_per_token : 0;
  return w *
         (2 * s.hidden_size + dense + (s.heads + 2 * s.kv_heads) * s.head_size +
          k * (s.hidden_size + s.moe.intermediate_size) + (sparse > 0 ? s.moe.shared_intermediate_size : 0) +
          // Of divided experts, rows as they come and as they are computed.
          (s.moe.divided() ? 2 * k * s.hidden_size : 0));
}

// What LibTorch keeps for cuBLAS, for each stream: 32 MiB on Hopper, less before.
constexpr int64_t kGpuProductBytes = int64_t{32} << 20;
// Of rows whose keys are `keys`: parts of 256 keys, each with a maximum and a sum
// (core/cuda/attention_plan.h).
int64_t GpuAttentionPartBytes(const ModelSpec& s, int64_t rows, int64_t keys) {
  return rows * ((keys + 255) / 256) * s.heads * (s.head_size + 2) * 4;
}

// Of a recorded kernel: its arguments and what the driver keeps beside them, which is written nowhere. A
// bound and no measurement; `engine_bench --parts` shows what graphs took.
constexpr int64_t kGraphKernelBytes = int64_t{16} << 10;
// Of one graph: a layer with its biases, attention in two launches, experts in more; embedding and last norm.
int64_t GraphKernels(const ModelSpec& s) {
  constexpr int64_t kDense = 14, kSparse = 30;
  return 2 + (s.layers - s.sparse_layers()) * kDense + s.sparse_layers() * kSparse;
}

}  // namespace

MemoryUse& MemoryUse::operator+=(const MemoryUse& o) {
  weights += o.weights, optimizer += o.optimizer, gradients += o.gradients;
  activations += o.activations, workspace += o.workspace, kv += o.kv;
  return *this;
}

int64_t ParameterCount(const ModelSpec& spec) {
  int64_t sum = 0;
  for (const Parameter& p : Layout(spec)) sum += p.numel();
  return sum;
}
int64_t WeightBytes(const ModelSpec& spec, DType dtype) { return Bytes(dtype) * LayoutElements(spec); }
int64_t TrainedElements(const ModelSpec& spec, const std::optional<AdapterSpec>& adapter) {
  return adapter ? AdapterElements(spec, *adapter) : LayoutElements(spec);
}
int64_t OptimizerBytes(int64_t elements, DType dtype) {
  return (8 + (dtype == DType::kBFloat16 ? 2 : 0)) * elements;
}
int64_t OptimizerBytes(const ModelSpec& spec, DType dtype) {
  return OptimizerBytes(LayoutElements(spec), dtype);
}

int64_t SharedGradientBytes(const ModelSpec& s, int64_t owned) {
  const std::vector<int64_t> begins = GradientParts(Layout(s));
  const bool tied = s.tie_embeddings && !s.value_head;
  int64_t most = 0;  // of two parts that follow each other; a tied embedding is there all the time
  for (size_t part = tied ? 1 : 0; part + 2 < begins.size(); ++part)
    most = std::max(most, begins[part + 2] - begins[part]);
  return 4 * (owned + most + (tied ? begins[1] : 0));
}

// x, q, k, v, attention out, x after attention (and qkv with head norms); two rstd and an lse a head in
// float32.
int64_t AttentionActivationBytes(const ModelSpec& s, DType dtype) {
  const int64_t q = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  return Bytes(dtype) * (2 * s.hidden_size + 2 * q + 2 * kv + (s.qk_norm ? q + 2 * kv : 0)) +
         4 * (2 + s.heads);
}

namespace {

bool LaidOut(const Parameter& p, DType dtype) {
  return p.product_rows > 0 && device::FitsStrips(p.product_rows, p.numel() / p.shape[0] * Bytes(dtype),
                                                  p.product_rows == p.shape[0]);
}

}  // namespace

int64_t LaidOutBytes(const ModelSpec& s, DType dtype) {
  return std::ranges::any_of(Layout(s), [&](const Parameter& p) { return LaidOut(p, dtype); })
             ? WeightBytes(s, dtype)
             : 0;
}

int64_t LaidOutPartBytes(const ModelSpec& s, DType dtype) {
  const std::vector<Parameter> layout = Layout(s);
  const std::vector<int64_t> begins = GradientParts(layout);
  int64_t most = 0;
  for (const Parameter& p : layout) {
    const auto end = std::ranges::upper_bound(begins, p.offset);
    if (LaidOut(p, dtype)) most = std::max(most, *end - *(end - 1));
  }
  return most * Bytes(dtype);
}

namespace {

// Of a block, for one token: what an adapter's A give and is kept for the backward, which experts' is not.
int64_t NarrowWidth(const ModelSpec& s, const std::optional<AdapterSpec>& adapter) {
  if (!adapter) return 0;
  int64_t width = 0;
  for (const Parameter& p : AdapterLayout(s, *adapter))
    if (p.name.starts_with("layers.0.") && p.name.ends_with(".a") && !p.name.starts_with("layers.0.experts_"))
      width += p.shape[0];
  return width;
}
// The same of experts while one block's backward computes: made again, and the gradients of both.
int64_t ExpertsNarrowWidth(const ModelSpec& s, const std::optional<AdapterSpec>& adapter) {
  const auto targets = adapter ? std::ranges::count_if(adapter->targets, OfExperts) : 0;
  return targets == 0 ? 0 : (targets + 1) * s.moe.experts_per_token * adapter->rank;
}

}  // namespace

MemoryUse TrainingMemory(const ModelSpec& s, DType dtype, const TrainingSizes& sizes) {
  const int64_t w = Bytes(dtype), d = s.hidden_size, sparse = s.sparse_layers();
  const int64_t trained = TrainedElements(s, sizes.adapter);
  MemoryUse use{.weights = WeightBytes(s, dtype) + (sizes.gpu ? 0 : LaidOutBytes(s, dtype)),
                .optimizer = OptimizerBytes(trained, dtype),
                .gradients = 4 * trained};
  const int64_t narrow = w * NarrowWidth(s, sizes.adapter);  // of a block
  if (sizes.adapter) use.weights = trained * w + (sizes.gpu ? WeightBytes(s, dtype) : 0);
  const int64_t attention = AttentionActivationBytes(s, dtype), block = attention + LargestMlpBytes(s, w);
  const int64_t blocks =
      s.layers * attention + sparse * MlpBytes(s, w, true) + (s.layers - sparse) * MlpBytes(s, w, false);
  // Backward: d attention out and d qkv of one block, the residual's gradient in float32 and rounded, the
  // last hidden states and their gradient, gathered in float32.
  int64_t backward = w * ((2 * s.heads + 2 * s.kv_heads) * s.head_size + 4 * d) + 8 * d;
  // Attention's sums of dq, dk and dv in float32.
  backward += 4 * (s.heads + 2 * s.kv_heads) * ((s.head_size + 15) / 16 * 16);
  // Experts: the gradient of the gathered rows; in float32 the router's, the rows and their sum over experts.
  if (sparse > 0) backward += w * (s.moe.experts_per_token + 1) * d + 4 * (s.moe.experts + 2 * d);
  const int64_t kept = sizes.recompute ? s.layers * w * d + block + narrow : blocks + s.layers * narrow;
  backward += narrow + w * ExpertsNarrowWidth(s, sizes.adapter);
  use.activations = sizes.tokens * (kept + ScratchBytes(s, w) + backward);
  use.workspace = s.value_head ? 0 : std::min(kHeadRows, sizes.tokens) * s.vocab_size * w;
  if (sizes.gpu) {  // two sums a row and head for attention's backward, or the parts of short rows
    use.activations += 2 * ActivationArena::kChunkBytes;  // memory is there as soon as it is taken
    use.workspace += kGpuProductBytes + GpuAttentionPartBytes(s, sizes.tokens, sizes.decoded_keys);
    return use;
  }
  const int64_t space =
      std::max({device::AttentionScratch(s.head_size), device::AttentionBackwardScratch(s.head_size),
                device::MultiplyBackScratch(device::SumTiles::kMost)});
  use.workspace += 4 * sizes.threads * space +
                   device::AttentionPartBytes(ShapeOf(s, sizes.threads), sizes.tokens, sizes.tokens);
  return use;
}

int64_t KvTokenBytes(const ModelSpec& s, DType dtype) {
  return 2 * s.layers * s.kv_heads * s.head_size * Bytes(dtype);
}

MemoryUse GenerationMemory(const ModelSpec& s, DType dtype, const GenerationSizes& sizes) {
  const int64_t w = Bytes(dtype);
  // A step has no more rows than the samples in flight have tokens.
  int64_t rows = std::min(sizes.rows, sizes.kv_tokens);
  const int64_t alone = std::min({rows, sizes.running, kGraphRowsMax});  // of a step that only decodes
  const bool graphs = sizes.gpu && sizes.graphs && alone > 0;
  if (graphs) rows = std::max(rows, GraphRows(alone));
  const int64_t slots = sizes.kv_tokens + (graphs ? kFillRowsMax : 0);
  MemoryUse use;
  use.kv = slots * KvTokenBytes(s, dtype);
  if (sizes.record_routing) use.kv += slots * RoutingBytes(s);
  const int64_t row =
      w * (2 * s.hidden_size + 2 * s.heads * s.head_size) + LargestMlpBytes(s, w) + ScratchBytes(s, w);
  // Logits, and float32 ones for the draw.
  use.workspace = rows * row + kEngineHeadRows * s.vocab_size * (w + 4);
  if (sizes.gpu) {
    use.workspace += ActivationArena::kChunkBytes + kGpuProductBytes +
                     GpuAttentionPartBytes(s, std::min(rows, sizes.decoded), sizes.keys);
    if (graphs) {
      // The stream that is recorded; hidden states; room for parts of attention that are yet to come;
      // numbers of each row; and the graphs themselves.
      const int64_t of_graph = GraphRows(alone), parts = GpuAttentionPartBytes(s, of_graph, sizes.keys);
      use.workspace += kGpuProductBytes + kGraphRowsMax * s.hidden_size * w + parts / 4 +
                       GpuAttentionPartBytes(s, 2 * of_graph, 1) +
                       GraphRowsInAll(of_graph) * (64 + 32 * ((sizes.keys + 255) / 256)) +
                       GraphsInAll(of_graph) * GraphKernels(s) * kGraphKernelBytes;
    }
    return use;
  }
  use.workspace +=
      4 * sizes.threads * device::AttentionScratch(s.head_size) +
      device::AttentionPartBytes(ShapeOf(s, sizes.threads), rows, std::min(sizes.keys, sizes.kv_tokens));
  return use;
}

}  // namespace tidepool::model
