#pragma once
// Inside of Decoder, shared by decoder.cc (forward) and decoder_backward.cc. Not for others.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/model/attention_plan.h"
#include "core/model/decoder.h"
#include "core/model/kernels/kernels.h"
#include "core/model/page_buffer.h"

namespace tidepool::model {

inline at::ScalarType ScalarOf(DType dtype) { return dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16; }

template <typename T>
T* Ptr(const at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.data_ptr()) : nullptr;
}

// Splits [0, items) over the threads where the work is worth it. `cost`: rough float operations an item.
void ParallelItems(int64_t items, int64_t cost, const std::function<void(int64_t, int64_t)>& body);

// Runs the tiles of a plan, those that finish rows after all that write parts: tile(which, thread), thread
// below at::get_num_threads(). A thread takes the next tile when it is done with its last one.
void RunTiles(const AttentionPlan& plan, const std::function<void(const AttentionTile&, int64_t)>& tile);

// Runs every cell of every KV head, each after those that it waits for: body(cell, kv_head, thread).
void RunCells(const AttentionBackwardPlan& plan, int64_t kv_heads,
              const std::function<void(int64_t, int64_t, int64_t)>& body);

// Bump allocator for activations: memory stays between steps, so pages are not faulted in again.
class ActivationArena {
 public:
  // Uninitialised, 64-byte aligned; valid until Reset().
  at::Tensor Take(at::IntArrayRef shape, at::ScalarType dtype);
  void Reset() { chunk_ = 0, used_ = 0; }
  struct Mark {
    size_t chunk = 0, used = 0;
  };
  [[nodiscard]] Mark mark() const { return {chunk_, used_}; }
  void Rewind(Mark to) { chunk_ = to.chunk, used_ = to.used; }  // frees what was taken since
  [[nodiscard]] int64_t bytes() const;

 private:
  std::vector<PageBuffer> chunks_;
  size_t chunk_ = 0;
  size_t used_ = 0;
};

// What the experts of a sparse block compute. The rows that chose an expert stand together ("gathered"),
// expert after expert, each range padded to 16 rows in deterministic mode: G rows in all.
struct MoeBuffers {
  at::Tensor probs;              // [P, E] float32, softmax of the router's logits
  std::vector<int32_t> experts;  // [rows, K] chosen, by falling weight
  std::vector<float> weights;    // [rows, K]
  std::vector<int32_t> place;    // [rows, K] gathered row
  std::vector<int64_t> begin;    // [E + 1] ranges of gathered rows
  at::Tensor gate_up;            // [G, 2 m]
  at::Tensor y;                  // [G, d]
  at::Tensor shared_gate_up;     // [P, 2 s]
  at::Tensor shared;             // [P, d]
  std::vector<float> gate;       // [P] sigmoid
  // Never saved.
  at::Tensor x;           // [G, d]
  at::Tensor act;         // [G, m]
  at::Tensor shared_act;  // [P, s]
};

// x[place[r, k]] = norm[r]; rows of padding zero.
template <typename T>
void GatherRows(MoeBuffers& moe, int64_t rows, int64_t d, int64_t k, const T* norm) {
  T* x = Ptr<T>(moe.x);
  std::memset(static_cast<void*>(x), 0, static_cast<size_t>(moe.begin.back() * d) * sizeof(T));
  ParallelItems(rows, k * d, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * k; i < end * k; ++i) {
      std::memcpy(static_cast<void*>(x + moe.place[static_cast<size_t>(i)] * d), norm + i / k * d,
                  static_cast<size_t>(d) * sizeof(T));
    }
  });
}

// What one block computes. With everything saved each block has buffers of its own; in inference
// and while recomputing they are shared by all blocks.
struct BlockBuffers {
  at::Tensor x;                     // [P, d] block input
  at::Tensor norm;                  // [P, d] normed input of qkv, then of gate_up; never saved
  at::Tensor rstd1;                 // [P] float32, training only
  at::Tensor qkv;                   // [P, (Hq + 2 Hkv) D]; saved only with head norms
  at::Tensor q;                     // [P, Hq D] rotated
  at::Tensor k, v;                  // [P, Hkv D], training only: the batch is its own KV memory
  at::Tensor a;                     // [P, Hq D] attention output
  at::Tensor lse;                   // [P, Hq] float32, training only
  at::Tensor x_mid;                 // [P, d] after attention; may be x in inference
  at::Tensor rstd2;                 // [P] float32, training only
  at::Tensor gate_up;               // [P, 2 ff]
  at::Tensor act;                   // [P, ff]; never saved
  at::Tensor out;                   // [P, d] product results on their way to the residual; never saved
  std::shared_ptr<MoeBuffers> moe;  // sparse blocks; shared, so that copies of the handles stay cheap

  // Takes over the buffers that are never saved.
  void LendUnsaved(const BlockBuffers& from) {
    norm = from.norm, act = from.act, out = from.out;
    if (moe != nullptr)
      moe->x = from.moe->x, moe->act = from.moe->act, moe->shared_act = from.moe->shared_act;
  }
};

struct SavedActivations {
  bool recompute = false;
  int64_t rows = 0, padded = 0;
  std::vector<int32_t> ids, positions, slots, first_run, lengths;
  std::vector<KvRun> runs;
  std::vector<int32_t> experts;      // what the router chose, or was told to
  std::vector<double> prob_sum;      // [E] over the rows of all sparse blocks
  std::vector<BlockBuffers> blocks;  // with recompute only x of each
  at::Tensor x_last;                 // [P, d] input of the final norm
  at::Tensor rstd_last;              // [P]
  std::unique_ptr<ActivationArena> arena;
  Decoder::Impl* owner = nullptr;  // takes the arena back
  [[nodiscard]] RaggedBatch batch() const {
    return {ids, positions, slots, first_run, lengths, runs, experts};
  }
};

struct LayerWeights {
  // Indices of the layout, -1: none.
  int64_t attention_norm, qkv, qkv_bias, q_norm, k_norm, o, o_bias, mlp_norm, gate_up, gate_up_bias, down,
      down_bias;
  int64_t router, experts_gate_up, experts_down, shared_gate_up, shared_down, shared_gate;
  int64_t sparse;  // number among the sparse layers
};

struct Decoder::Impl {
  Impl(const Weights& w, DecoderOptions o);

  const Weights& weights;
  const ModelSpec spec;
  const DecoderOptions options;
  const bool wide;                     // float32
  const bool own_products;             // else LibTorch's (kernels.h)
  std::vector<at::Tensor> parameters;  // views by index of the layout
  std::vector<LayerWeights> layers;
  int64_t embedding = 0, final_norm = 0, head = 0;
  std::vector<float> cos, sin;  // [positions, D / 2], grown on demand
  ActivationArena scratch;
  std::vector<std::unique_ptr<ActivationArena>> idle;  // of finished training forwards
  at::Tensor logits;                                   // reused when nobody holds it any more
  at::Tensor weight_gradient;                          // one matrix in the model's dtype; LibTorch's products
  mutable std::vector<std::vector<float>> spaces;      // of each thread, for a product or attention
  std::vector<double>* prob_sum = nullptr;             // of the training forward that is going on
  AttentionPlan plan;                                  // of the batch that is going through the blocks
  AttentionBackwardPlan backward_plan;
  at::Tensor attention_parts;  // float32

  [[nodiscard]] int64_t Padded(int64_t rows) const {
    return options.row_blocks != nullptr ? RoundUp(rows, 16) : rows;
  }
  // out = x w^T of the forward; contiguous.
  void Multiply(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) const;
  // dx = dy w.
  void MultiplyBack(at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w) const;
  // dw (float32) += dy^T x by our own products. dy and x may be float32 beside a narrow model.
  void MultiplyBackWeight(float* dw, const at::Tensor& dy, const at::Tensor& x) const;
  // Runs `body(begin, end, scratch)` over [0, items) in pieces of `unit`, each thread with `floats` of its
  // own.
  void ParallelProduct(int64_t items, int64_t unit, int64_t cost, int64_t floats,
                       const std::function<void(int64_t, int64_t, float*)>& body) const;
  // `floats` of a thread's own, aligned to a cache line, after ReserveSpaces().
  float* Space(int64_t thread, int64_t floats) const;
  void ReserveSpaces() const;
  [[nodiscard]] int64_t qkv_width() const { return (spec.heads + 2 * spec.kv_heads) * spec.head_size; }
  void EnsurePositions(int64_t count);
  void CheckBatch(const RaggedBatch& batch) const;

  // Buffers of one layer, or (-1) of any layer.
  BlockBuffers TakeBlock(ActivationArena& arena, int64_t rows, int64_t padded, bool training,
                         int64_t layer) const;
  void TakeUnsaved(ActivationArena& arena, int64_t rows, int64_t padded,
                   BlockBuffers& b) const;  // norm, act, out and the experts' own
  [[nodiscard]] int64_t GatheredMax(int64_t rows) const;
  // x[rows, n] += bias, where there is one.
  template <typename T>
  void AddBias(int64_t bias, int64_t padded, at::Tensor& x) const;
  // out = experts(norm); decoder_moe.cc.
  template <typename T>
  void Experts(int64_t layer, const RaggedBatch& batch, int64_t padded, const BlockBuffers& b);
  // Reads dx_narrow (the gradient of the experts' output), writes d norm into b.out; decoder_moe_backward.cc.
  template <typename T>
  void ExpertsBackward(int64_t layer, const SavedActivations& saved, const BlockBuffers& b,
                       const at::Tensor& dx_narrow, double balance_scale, Gradients& grads);
  // Divides the attention of a batch; its memory is taken from `scratch`.
  void PlanBatch(const RaggedBatch& batch);
  template <typename T>
  void Embed(const RaggedBatch& batch, int64_t padded, T* x) const;
  // x (+ add) -> everything up to `out`, which is still to be added to x_mid. k and v: of this layer.
  template <typename T>
  void Block(int64_t layer, const RaggedBatch& batch, int64_t padded, const BlockBuffers& b,
             const T* x_before, const T* add, T* k, T* v);
  template <typename T>
  at::Tensor FinalNorm(int64_t rows, int64_t padded, const T* x, const T* add, T* x_out, float* rstd) const;
  template <typename T>
  at::Tensor Forward(const RaggedBatch& batch, const KvMemory& kv);
  template <typename T>
  at::Tensor ForwardTraining(const RaggedBatch& batch, SavedActivations& saved);
  template <typename T>
  void Backward(SavedActivations& saved, const at::Tensor& grad_hidden, double balance_scale,
                Gradients& grads);
  template <typename T>
  void BlockBackward(int64_t layer, const SavedActivations& saved, const BlockBuffers& b,
                     const at::Tensor& dx, const at::Tensor& dx_narrow, double balance_scale,
                     Gradients& grads);
  // Gradient of rows [row, row + n) of parameter `index` += dy^T x; dy [P, n], x [P, k].
  template <typename T>
  void AddProductGradient(int64_t index, const at::Tensor& dy, const at::Tensor& x, Gradients& grads,
                          int64_t row = 0);
  // Of down(swiglu(gate_up x)), where the rows of one expert of many stand in `gate_up` and `down`:
  // gate_up [P, 2m] and act [P, m] become gradients, those of the weights are added to, and dx gets the
  // input's. It may be dy.
  template <typename T>
  void MlpBackward(int64_t gate_up_index, int64_t down_index, int64_t expert, at::Tensor gate_up,
                   at::Tensor act, const at::Tensor& x, const at::Tensor& dy, at::Tensor dx,
                   Gradients& grads);
  template <typename T>
  void AddBiasGradient(int64_t index, int64_t rows, const at::Tensor& dy, Gradients& grads) const;
};

// Ranges of rows that attend inside themselves only: [begin, end) pairs that tile [0, rows).
std::vector<std::pair<int64_t, int64_t>> ClosedRanges(const RaggedBatch& batch);

}  // namespace tidepool::model
