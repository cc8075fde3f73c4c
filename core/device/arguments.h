#pragma once
// What a device computes: the arguments of its kernels, and the list of them.
//
// Every kernel works on whole arrays of device memory, row-major and without gaps, stored in T (float or
// BF16) unless a type stands beside them and computed in float32. Plain data: kernels of the CPU and of CUDA,
// checks and the checked device all read these structs.
//
// Fields() names the arrays of a kernel to a visitor, each with its elements: v.In(p, n), v.Out(p, n),
// v.InOut(p, n); v.MaybeIn(p, n) and so on where the array may be null. The visitor may change the pointers.
// Arrays that an index reaches (a slot of a KV memory, a row of a table) are named with all that they hold.

#include <cstdint>

#include "core/device/blocks.h"
#include "core/device/kv_run.h"
#include "core/device/square_sum.h"

namespace tidepool::device {

// bfloat16 as stored: the upper half of a float32.
struct BF16 {
  uint16_t bits = 0;
};

// How the terms of a sum are added up on devices that keep to it (Device::sums_in_tiles): those of a tile one
// after the other, and the sums of the tiles, in float32, as a binary tree, neighbours first: tiles 0 to 5 as
// ((0 + 1) + (2 + 3)) + (4 + 5). So a sum has the same bits wherever its tiles are computed, if the places
// are the same. Host memory.
struct SumTiles {
  static constexpr int kMost = 6, kSegments = 3;
  int32_t tiles = 1, segments = 1;
  // Tile t has, of each segment, the terms from the end of tile t - 1 (of the first: begin) to its own end.
  int64_t begin[kSegments] = {}, end[kSegments][kMost] = {};
  // Divides all places of the whole sum. Kernels that need tiles of a certain size look at this, so that all
  // ranks choose the same kernel, whichever tiles they have.
  int64_t unit = 1;
};

// Adds `add` (may be null) to x, writes the sum to x_out (may be x; unused when add is null), and
//   out = x * rstd * weight,  rstd = 1/sqrt(mean(x^2) + eps)      (RMSNorm, arXiv:1910.07467)
template <typename T>
struct RmsNormArgs {
  int64_t rows = 0, d = 0;
  const T* x = nullptr;       // [rows, d]
  const T* add = nullptr;     // [rows, d] or null
  T* x_out = nullptr;         // [rows, d]
  const T* weight = nullptr;  // [d]
  float eps = 0;
  T* out = nullptr;       // [rows, d]
  float* rstd = nullptr;  // [rows] or null
  template <typename V>
  void Fields(V& v) {
    v.In(x, rows * d);
    v.MaybeIn(add, rows * d);
    v.MaybeOut(x_out, rows * d);
    v.In(weight, d);
    v.Out(out, rows * d);
    v.MaybeOut(rstd, rows);
  }
};

// dx += d norm / d x . dout, dx_copy gets the sum rounded, and dweight[c] += sum over rows of dout * x *
// rstd.
template <typename T>
struct RmsNormBackwardArgs {
  int64_t rows = 0, d = 0;
  const T* x = nullptr;         // [rows, d]
  const T* weight = nullptr;    // [d]
  const float* rstd = nullptr;  // [rows]
  const T* dout = nullptr;      // [rows, d]
  float* dx = nullptr;          // [rows, d]
  T* dx_copy = nullptr;         // [rows, d] or null
  float* dweight = nullptr;     // [d]; null: of a weight that is frozen
  template <typename V>
  void Fields(V& v) {
    v.In(x, rows * d);
    v.In(weight, d);
    v.In(rstd, rows);
    v.In(dout, rows * d);
    v.InOut(dx, rows * d);
    v.MaybeOut(dx_copy, rows * d);
    v.MaybeInOut(dweight, d);
  }
};

// Takes apart a row of the fused product: adds the bias, normalises each head of q and k (Qwen3),
// rotates q and k (half-split convention: x1' = x1 cos - x2 sin, x2' = x2 cos + x1 sin for the
// halves x1, x2 of a head), and writes q to its buffer, k and v to their slots.
template <typename T>
struct RotaryArgs {
  int64_t rows = 0, heads = 0, kv_heads = 0, head_size = 0;
  int64_t table_rows = 0, slot_count = 0;  // of cos and sin, and of k and v
  const T* qkv = nullptr;                  // [rows, (heads + 2 kv_heads) * head_size]
  const T* bias = nullptr;                 // [(heads + 2 kv_heads) * head_size] or null
  const T* q_norm = nullptr;               // [head_size] or null
  const T* k_norm = nullptr;
  float eps = 0;
  const float* cos = nullptr;  // [table_rows, head_size / 2]
  const float* sin = nullptr;
  const int32_t* positions = nullptr;  // [rows]
  const int32_t* slots = nullptr;      // [rows]
  T* q = nullptr;                      // [rows, heads * head_size]
  T* k = nullptr;                      // [slot_count, kv_heads, head_size]
  T* v = nullptr;
  template <typename V>
  void Fields(V& f) {
    const int64_t width = (heads + 2 * kv_heads) * head_size;
    f.In(qkv, rows * width);
    f.MaybeIn(bias, width);
    f.MaybeIn(q_norm, head_size);
    f.MaybeIn(k_norm, head_size);
    f.In(cos, table_rows * head_size / 2);
    f.In(sin, table_rows * head_size / 2);
    f.In(positions, rows);
    f.In(slots, rows);
    f.Out(q, rows * heads * head_size);
    f.InOut(k, slot_count * kv_heads * head_size);
    f.InOut(v, slot_count * kv_heads * head_size);
  }
};

// Backward of the head norms of q and k: dqkv in place, rows of gradient before the norm.
template <typename T>
struct HeadNormBackwardArgs {
  int64_t rows = 0, heads = 0, kv_heads = 0, head_size = 0;
  const T* qkv = nullptr;
  const T* bias = nullptr;
  const T* q_norm = nullptr;  // [head_size]
  const T* k_norm = nullptr;
  float eps = 0;
  T* dqkv = nullptr;
  float* dq_norm = nullptr;  // [head_size], added to; with `tiles` [tiles, head_size], not yet added up
  float* dk_norm = nullptr;
  const SumTiles* tiles = nullptr;  // of the heads of q, and as a second segment of those of k, behind them
  template <typename V>
  void Fields(V& v) {
    const int64_t width = (heads + 2 * kv_heads) * head_size;
    v.In(qkv, rows * width);
    v.MaybeIn(bias, width);
    v.In(q_norm, head_size);
    v.In(k_norm, head_size);
    v.InOut(dqkv, rows * width);
    v.InOut(dq_norm, (tiles == nullptr ? 1 : tiles->tiles) * head_size);
    v.InOut(dk_norm, (tiles == nullptr ? 1 : tiles->tiles) * head_size);
  }
};

// What a row attends to: the first `length` slots of runs of slots.
struct RowRuns {
  int64_t rows = 0, run_count = 0, slot_count = 0;
  const int32_t* first_run = nullptr;  // [rows]
  const int32_t* lengths = nullptr;    // [rows], >= 1
  const KvRun* runs = nullptr;         // [run_count]
  template <typename V>
  void Fields(V& v) {
    v.In(first_run, rows);
    v.In(lengths, rows);
    v.In(runs, run_count);
  }
};

// How a device divides the attention of a batch; made by Device::PlanAttention on the host, for all layers.
struct AttentionWork {
  virtual ~AttentionWork() = default;
};

// Attention of rows over runs of slots.
//   s_j = q.k_j / sqrt(D), p = softmax(s), out = sum_j p_j v_j, lse = log sum_j exp(s_j)
template <typename T>
struct AttentionArgs {
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  RowRuns keys;
  const T* q = nullptr;  // [rows, heads * head_size]
  const T* k = nullptr;  // [slot_count, kv_heads, head_size]
  const T* v = nullptr;
  T* out = nullptr;      // [rows, heads * head_size]
  float* lse = nullptr;  // [rows, heads] or null
  const AttentionWork* work = nullptr;
  template <typename V>
  void Fields(V& f) {
    keys.Fields(f);
    f.In(q, keys.rows * heads * head_size);
    f.In(k, keys.slot_count * kv_heads * head_size);
    f.In(v, keys.slot_count * kv_heads * head_size);
    f.Out(out, keys.rows * heads * head_size);
    f.MaybeOut(lse, keys.rows * heads);
  }
};

// Backward of attention and of the rotation, where slots are rows. Probabilities are computed again from lse.
// Writes the gradient of the fused product before rotation (bias and head norms are not undone here).
template <typename T>
struct AttentionBackwardArgs {
  int64_t heads = 0, kv_heads = 0, head_size = 0, table_rows = 0;
  RowRuns keys;
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  const T* out = nullptr;  // as the forward left them
  const float* lse = nullptr;
  const T* dout = nullptr;     // [rows, heads * head_size]
  const float* cos = nullptr;  // [table_rows, head_size / 2]
  const float* sin = nullptr;
  const int32_t* positions = nullptr;
  T* dqkv = nullptr;  // [rows, (heads + 2 kv_heads) * head_size]
  const AttentionWork* work = nullptr;
  template <typename V>
  void Fields(V& f) {
    keys.Fields(f);
    const int64_t wide = keys.rows * heads * head_size, narrow = keys.rows * kv_heads * head_size;
    f.In(q, wide);
    f.In(k, narrow);
    f.In(v, narrow);
    f.In(out, wide);
    f.In(lse, keys.rows * heads);
    f.In(dout, wide);
    f.In(cos, table_rows * head_size / 2);
    f.In(sin, table_rows * head_size / 2);
    f.In(positions, keys.rows);
    f.Out(dqkv, wide + 2 * narrow);
  }
};

// x += bias
template <typename T>
struct AddBiasArgs {
  int64_t rows = 0, n = 0;
  const T* bias = nullptr;  // [n]
  T* x = nullptr;           // [rows, n]
  template <typename V>
  void Fields(V& v) {
    v.In(bias, n);
    v.InOut(x, rows * n);
  }
};

// act = silu(gate) * up
template <typename T>
struct SwiGluArgs {
  int64_t rows = 0, ff = 0;
  const T* gate_up = nullptr;  // [rows, 2 ff]
  T* act = nullptr;            // [rows, ff]
  template <typename V>
  void Fields(V& v) {
    v.In(gate_up, rows * 2 * ff);
    v.Out(act, rows * ff);
  }
};
template <typename T>
struct SwiGluBackwardArgs {
  int64_t rows = 0, ff = 0;
  const T* gate_up = nullptr;  // [rows, 2 ff]
  const T* dact = nullptr;     // [rows, ff]
  T* dgate_up = nullptr;       // [rows, 2 ff]; may be gate_up
  template <typename V>
  void Fields(V& v) {
    v.In(gate_up, rows * 2 * ff);
    v.In(dact, rows * ff);
    v.Out(dgate_up, rows * 2 * ff);
  }
};

// What logits are multiplied by: 1 at temperature 0, which is greedy. That of a tiny temperature would
// overflow: then only the largest logits have mass.
inline float InverseTemperature(float temperature) {
  return temperature == 0.0F ? 1.0F : 1.0F / temperature < 3.0e38F ? 1.0F / temperature : 3.0e38F;
}

// With z = logits * inv_temperature: lse(z), log p(id) = z[id] - lse, entropy of p. A masked logit (-inf)
// weighs nothing; NaN goes through. `stride` and `top` are for devices that sum in tiles, `top` for others
// too where all columns are asked for.
template <typename T>
struct TokenLogProbArgs {
  int64_t rows = 0, vocab = 0;
  int64_t stride = 0;            // from a row of logits to the next; 0: vocab
  const T* logits = nullptr;     // [rows, vocab]
  const int32_t* ids = nullptr;  // [rows]; below 0, as Sample leaves it: logprob is NaN
  float inv_temperature = 1;
  float* logprob = nullptr;  // [rows]
  float* entropy = nullptr;  // [rows] or null
  float* lse = nullptr;      // [rows] or null
  float* top = nullptr;  // [rows]: the largest logit; `lse` is then without top * inv_temperature. Or null
  [[nodiscard]] int64_t row_stride() const { return stride == 0 ? vocab : stride; }
  template <typename V>
  void Fields(V& v) {
    v.In(logits, rows == 0 ? 0 : (rows - 1) * row_stride() + vocab);
    v.In(ids, rows);
    v.Out(logprob, rows);
    v.MaybeOut(entropy, rows);
    v.MaybeOut(lse, rows);
    v.MaybeOut(top, rows);
  }
};
// In place: logits become d loss / d logits, given d loss / d log p(id) and d loss / d entropy (may be null).
// Rows where both are 0 become 0, whatever their logits hold.
template <typename T>
struct TokenLogProbBackwardArgs {
  int64_t rows = 0, vocab = 0;
  T* logits = nullptr;
  const int32_t* ids = nullptr;  // [rows]; -1: not one of these columns
  float inv_temperature = 1;
  const float* lse = nullptr;
  const float* entropy = nullptr;  // [rows]; null where dentropy is
  const float* dlogprob = nullptr;
  const float* dentropy = nullptr;
  template <typename V>
  void Fields(V& v) {
    v.InOut(logits, rows * vocab);
    v.In(ids, rows);
    v.In(lse, rows);
    v.MaybeIn(entropy, rows);
    v.In(dlogprob, rows);
    v.MaybeIn(dentropy, rows);
  }
};

// out[c] += sum over rows of x[r, c]
template <typename T>
struct ColumnSumArgs {
  int64_t rows = 0, n = 0;
  const T* x = nullptr;  // [rows, n]
  float* out = nullptr;  // [n]
  template <typename V>
  void Fields(V& v) {
    v.In(x, rows * n);
    v.InOut(out, n);
  }
};

// How the token of a row is drawn: inverse of the cumulative distribution at `uniform`, in the order of the
// vocabulary, of what the cuts leave.
struct SampleRow {
  float temperature = 1.0F;  // 0: the lowest id among the largest logits
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0F;        // 1: off
  float min_p = 0.0F;        // 0: off
  float log_min_p = 0.0F;    // std::log(min_p), so that all devices round it alike
  float uniform = 0.0F;      // in [0, 1)
};
template <typename T>
struct SampleArgs {
  int64_t rows = 0, logit_rows = 0, vocab = 0;
  const T* logits = nullptr;        // [logit_rows, vocab]
  const int32_t* source = nullptr;  // [rows] row of logits
  const SampleRow* how = nullptr;   // [rows]
  const SumTiles* tiles = nullptr;  // of the vocabulary, for logprob; null: one
  int32_t* ids = nullptr;           // [rows]; -1: the logits hold a value that is not finite
  float* log_kept = nullptr;        // [rows]: log of the share of mass that the cuts kept; 0 without cuts
  // [rows]: the token's log-probability without the cuts, at temperature 1 where that is 0: the number
  // that TokenLogProb gives for InverseTemperature. NaN where the id is -1.
  float* logprob = nullptr;
  template <typename V>
  void Fields(V& v) {
    v.In(logits, logit_rows * vocab);
    v.In(source, rows);
    v.In(how, rows);
    v.Out(ids, rows);
    v.Out(log_kept, rows);
    v.Out(logprob, rows);
  }
};

// out[r] = table[ids[r]]: an embedding, and rows on their way to their experts or to the head.
template <typename T>
struct GatherRowsArgs {
  int64_t rows = 0, d = 0, table_rows = 0;
  const int32_t* ids = nullptr;  // [rows]; -1: of no row of this table, out is 0
  const T* table = nullptr;      // [table_rows, d]
  T* out = nullptr;              // [rows, d]
  bool strips = false;           // as in MultiplyArgs
  BlockType blocks = BlockType::kNone;
  template <typename V>
  void Fields(V& v) {
    v.In(ids, rows);
    v.In(table, MatrixElements<T>(blocks, table_rows, d));
    v.Out(out, rows * d);
  }
};
// table[ids[r]] += x[r], rows in order.
template <typename T>
struct ScatterAddRowsArgs {
  int64_t rows = 0, d = 0, table_rows = 0;
  const int32_t* ids = nullptr;  // [rows]; -1: left out
  const T* x = nullptr;          // [rows, d]
  float* table = nullptr;        // [table_rows, d]
  template <typename V>
  void Fields(V& v) {
    v.In(ids, rows);
    v.In(x, rows * d);
    v.InOut(table, table_rows * d);
  }
};

// out = x in float32, and back: the nearest, ties to even.
template <typename T>
struct WidenArgs {
  int64_t n = 0;
  const T* x = nullptr;
  float* out = nullptr;
  template <typename V>
  void Fields(V& v) {
    v.In(x, n);
    v.Out(out, n);
  }
};
template <typename T>
struct NarrowArgs {
  int64_t n = 0;
  const float* x = nullptr;
  T* out = nullptr;
  template <typename V>
  void Fields(V& v) {
    v.In(x, n);
    v.Out(out, n);
  }
};

// y = x w^T. Where the device says so (Device::batch_invariant), a row has the same bits in every batch and
// at every place of it.
template <typename T>
struct MultiplyArgs {
  int64_t rows = 0, n = 0, k = 0;
  const T* x = nullptr;  // [rows, k]
  const T* w = nullptr;  // [n, k], or with `strips` as Device::LayOut lays that out
  T* y = nullptr;        // [rows, n]; not x
  bool strips = false;
  BlockType blocks = BlockType::kNone;  // w in blocks (blocks.h), and not in strips
  const SumTiles* tiles = nullptr;      // of k; null: one, of all
  float* sums = nullptr;  // [rows, n]: gets the result unrounded, of the terms in `tiles`; y nothing
  template <typename V>
  void Fields(V& v) {
    v.In(x, rows * k);
    v.In(w, MatrixElements<T>(blocks, n, k));
    sums == nullptr ? v.Out(y, rows * n) : v.Out(sums, rows * n);
  }
};
// A product with what stands around it: the norm of its rows before it (norm.rows 0: none), the gate of a
// feed-forward after it (glu.rows 0: none). norm.out is multiply.x and multiply.y is glu.gate_up; what they
// hold afterwards may be anything. norm.x_out is not norm.x.
template <typename T>
struct FusedMultiplyArgs {
  RmsNormArgs<T> norm;
  MultiplyArgs<T> multiply;
  SwiGluArgs<T> glu;
};
// dx = dy w
template <typename T>
struct MultiplyBackArgs {
  int64_t rows = 0, n = 0, k = 0;
  const T* dy = nullptr;  // [rows, n]
  const T* w = nullptr;   // [n, k], or with `strips` as MultiplyArgs' w
  T* dx = nullptr;        // [rows, k]; not dy
  bool strips = false;    // the bits of dx are the same
  BlockType blocks = BlockType::kNone;
  const SumTiles* tiles = nullptr;  // of n; null: one, of all
  float* sums = nullptr;            // [rows, k]: as MultiplyArgs' sums, in place of dx
  template <typename V>
  void Fields(V& v) {
    v.In(dy, rows * n);
    v.In(w, MatrixElements<T>(blocks, n, k));
    sums == nullptr ? v.Out(dx, rows * k) : v.Out(sums, rows * k);
  }
};
// dw += dy^T x
template <typename T>
struct MultiplyBackWeightArgs {
  int64_t rows = 0, n = 0, k = 0;
  const T* dy = nullptr;  // [rows, n]
  const T* x = nullptr;   // [rows, k]
  float* dw = nullptr;    // [n, k]
  template <typename V>
  void Fields(V& v) {
    v.In(dy, rows * n);
    v.In(x, rows * k);
    v.InOut(dw, n * k);
  }
};

// --- Low-rank adapters (core/model/adapter.h): matrices b of `rank` rows, each of a band of y's columns.
// Band i has columns [first[i], first[i] + n[i]) of y, and columns [i * rank, (i + 1) * rank) of t. Bands do
// not overlap. Where the device says so (Device::batch_invariant), a row of t and of y has the same bits in
// every batch. ---
struct LowRankShape {
  static constexpr int kMost = 3;
  int64_t rows = 0, width = 0, rank = 0, bands = 0;  // width: of y
  float scale = 1;
  int64_t first[kMost] = {}, n[kMost] = {};
  [[nodiscard]] int64_t t_width() const { return bands * rank; }
};
// t = scale y b^T, band by band
template <typename T>
struct LowRankArgs : LowRankShape {
  const T* y = nullptr;    // [rows, width]
  const T* b[kMost] = {};  // [rank, n[i]]
  T* t = nullptr;          // [rows, bands * rank]
  template <typename V>
  void Fields(V& v) {
    v.In(y, rows * width);
    for (int64_t i = 0; i < bands; ++i) v.In(b[i], rank * n[i]);
    v.Out(t, rows * t_width());
  }
};
// y += scale t b, summed in float32, rounded once
template <typename T>
struct AddLowRankArgs : LowRankShape {
  const T* t = nullptr;
  const T* b[kMost] = {};
  T* y = nullptr;
  template <typename V>
  void Fields(V& v) {
    v.In(t, rows * t_width());
    for (int64_t i = 0; i < bands; ++i) v.In(b[i], rank * n[i]);
    v.InOut(y, rows * width);
  }
};
// db += scale t^T y
template <typename T>
struct LowRankBackWeightArgs : LowRankShape {
  const T* t = nullptr;
  const T* y = nullptr;
  float* db[kMost] = {};  // [rank, n[i]]
  template <typename V>
  void Fields(V& v) {
    v.In(t, rows * t_width());
    v.In(y, rows * width);
    for (int64_t i = 0; i < bands; ++i) v.InOut(db[i], rank * n[i]);
  }
};

// --- Mixture of experts. The (row, choice) pairs of one expert stand together, "gathered", expert after
// expert, in their order: rows * k of them. ---

// logits[r, e] = x[r] . w[e]
template <typename T>
struct RouterArgs {
  int64_t rows = 0, d = 0, experts = 0;
  const T* x = nullptr;     // [rows, d]
  const T* w = nullptr;     // [experts, d]
  float* logits = nullptr;  // [rows, experts]
  template <typename V>
  void Fields(V& v) {
    v.In(x, rows * d);
    v.In(w, experts * d);
    v.Out(logits, rows * experts);
  }
};

// softmax of the logits, the k most probable experts (the lower id first among equals, NaN counts as least),
// or those given, and their weights.
struct RouteArgs {
  int64_t rows = 0, experts = 0, k = 0;
  float* probs = nullptr;           // [rows, experts]: logits, in place
  const int32_t* replay = nullptr;  // [rows, k] or null; a first id below 0: not given; may be chosen
  bool renormalize = false;         // weights sum to 1
  int32_t* chosen = nullptr;        // [rows, k], by falling weight
  float* weights = nullptr;         // [rows, k]
  template <typename V>
  void Fields(V& v) {
    v.InOut(probs, rows * experts);
    v.MaybeIn(replay, rows * k);
    v.Out(chosen, rows * k);
    v.Out(weights, rows * k);
  }
};

// Where each pair stands: place[r, i] of pair (r, i); row_of[g] of gathered row g; the rows of expert e are
// [begin[e], begin[e + 1]).
struct GroupRowsArgs {
  int64_t rows = 0, experts = 0, k = 0;
  const int32_t* chosen = nullptr;  // [rows, k]
  int32_t* begin = nullptr;         // [experts + 1]
  int32_t* place = nullptr;         // [rows, k]
  int32_t* row_of = nullptr;        // [rows * k]
  template <typename V>
  void Fields(V& v) {
    v.In(chosen, rows * k);
    v.Out(begin, experts + 1);
    v.Out(place, rows * k);
    v.Out(row_of, rows * k);
  }
};

// Products of the experts: the gathered rows of g by the matrix g. y = x w^T, dx = dy w, dw += dy^T x.
// Group(g, at, n) is that of one group, whose rows are [at, at + n).
template <typename T>
struct GroupedMultiplyArgs {
  int64_t groups = 0, rows = 0, n = 0, k = 0;  // rows: begin[groups]
  const int32_t* begin = nullptr;              // [groups + 1], from 0 on
  const T* x = nullptr;                        // [rows, k]
  const T* w = nullptr;                        // [groups, n, k]
  T* y = nullptr;                              // [rows, n]
  bool strips = false;                         // of each group, as in MultiplyArgs
  BlockType blocks = BlockType::kNone;
  [[nodiscard]] MultiplyArgs<T> Group(int64_t g, int64_t at, int64_t of_group) const {
    return {of_group, n, k, x + at * k, SkipRows(w, blocks, g * n, k), y + at * n, strips, blocks};
  }
  template <typename V>
  void Fields(V& v) {
    v.In(begin, groups + 1);
    v.In(x, rows * k);
    v.In(w, MatrixElements<T>(blocks, groups * n, k));
    v.Out(y, rows * n);
  }
};
template <typename T>
struct GroupedMultiplyBackArgs {
  int64_t groups = 0, rows = 0, n = 0, k = 0;
  const int32_t* begin = nullptr;
  const T* dy = nullptr;  // [rows, n]
  const T* w = nullptr;   // [groups, n, k]
  T* dx = nullptr;        // [rows, k]; not dy
  bool strips = false;    // of each group, as in MultiplyBackArgs
  BlockType blocks = BlockType::kNone;
  [[nodiscard]] MultiplyBackArgs<T> Group(int64_t g, int64_t at, int64_t of_group) const {
    return {of_group, n, k, dy + at * n, SkipRows(w, blocks, g * n, k), dx + at * k, strips, blocks};
  }
  template <typename V>
  void Fields(V& v) {
    v.In(begin, groups + 1);
    v.In(dy, rows * n);
    v.In(w, MatrixElements<T>(blocks, groups * n, k));
    v.Out(dx, rows * k);
  }
};
template <typename T>
struct GroupedMultiplyBackWeightArgs {
  int64_t groups = 0, rows = 0, n = 0, k = 0;
  const int32_t* begin = nullptr;
  const T* dy = nullptr;  // [rows, n]
  const T* x = nullptr;   // [rows, k]
  float* dw = nullptr;    // [groups, n, k]
  [[nodiscard]] MultiplyBackWeightArgs<T> Group(int64_t g, int64_t at, int64_t of_group) const {
    return {of_group, n, k, dy + at * n, x + at * k, dw + g * n * k};
  }
  template <typename V>
  void Fields(V& v) {
    v.In(begin, groups + 1);
    v.In(dy, rows * n);
    v.In(x, rows * k);
    v.InOut(dw, groups * n * k);
  }
};

// x = sigmoid(x): the gate of a shared expert.
struct SigmoidArgs {
  int64_t n = 0;
  float* x = nullptr;
  template <typename V>
  void Fields(V& v) {
    v.InOut(x, n);
  }
};

// The outputs of K chosen experts, weighted, and of the shared expert, gated, for each row:
//   out[r] = sum_k weights[r, k] y[place[r, k]] + gate[r] shared[r]     (in float32, k in order, rounded
//   once)
template <typename T>
struct CombineExpertsArgs {
  int64_t rows = 0, d = 0, k = 0;
  const int32_t* place = nullptr;  // [rows, k]
  const float* weights = nullptr;  // [rows, k]
  const T* y = nullptr;            // [rows * k, d]
  const float* gate = nullptr;     // [rows], null without a shared expert
  const T* shared = nullptr;       // [rows, d]
  T* out = nullptr;                // [rows, d]
  template <typename V>
  void Fields(V& v) {
    v.In(place, rows * k);
    v.In(weights, rows * k);
    v.In(y, rows * k * d);
    v.MaybeIn(gate, rows);
    v.MaybeIn(shared, rows * d);
    v.Out(out, rows * d);
  }
};
template <typename T>
struct CombineExpertsBackwardArgs {
  int64_t rows = 0, d = 0, k = 0;
  const int32_t* place = nullptr;
  const float* weights = nullptr;
  const T* y = nullptr;
  const float* gate = nullptr;
  const T* shared = nullptr;
  const T* dout = nullptr;    // [rows, d]
  T* dy = nullptr;            // [rows * k, d]: weights[r, k] dout[r]
  float* dweights = nullptr;  // [rows, k]: dout[r] . y[place]
  T* dshared = nullptr;       // [rows, d]: gate[r] dout[r]
  float* dgate = nullptr;     // [rows]: dout[r] . shared[r]
  template <typename V>
  void Fields(V& v) {
    v.In(place, rows * k);
    v.In(weights, rows * k);
    v.In(y, rows * k * d);
    v.MaybeIn(gate, rows);
    v.MaybeIn(shared, rows * d);
    v.In(dout, rows * d);
    v.Out(dy, rows * k * d);
    v.Out(dweights, rows * k);
    v.MaybeOut(dshared, rows * d);
    v.MaybeOut(dgate, rows);
  }
};

// From d weights to d logits of the router, through the normalisation of the weights and the softmax, where
// expert_slope[e] is added to d probs[r, e] (of a loss of the mean probabilities).
struct RouteBackwardArgs {
  int64_t rows = 0, experts = 0, k = 0;
  const float* probs = nullptr;          // [rows, experts]
  const int32_t* chosen = nullptr;       // [rows, k]
  const float* weights = nullptr;        // [rows, k]
  const float* dweights = nullptr;       // [rows, k]
  const double* expert_slope = nullptr;  // [experts]
  bool renormalize = false;
  float* dlogits = nullptr;  // [rows, experts]
  template <typename V>
  void Fields(V& v) {
    v.In(probs, rows * experts);
    v.In(chosen, rows * k);
    v.In(weights, rows * k);
    v.In(dweights, rows * k);
    v.In(expert_slope, experts);
    v.Out(dlogits, rows * experts);
  }
};

// sum[e] += probs[r, e], in float64.
struct AddProbsArgs {
  int64_t rows = 0, experts = 0;
  const float* probs = nullptr;  // [rows, experts]
  double* sum = nullptr;         // [experts]
  template <typename V>
  void Fields(V& v) {
    v.In(probs, rows * experts);
    v.InOut(sum, experts);
  }
};

// The gate's part of its input's gradient: dgate[r] becomes dgate g (1 - g), and dx[r] += dgate[r] w.
template <typename T>
struct GateBackwardArgs {
  int64_t rows = 0, d = 0;
  const float* gate = nullptr;  // [rows]: g = sigmoid(x . w)
  const T* w = nullptr;         // [d]
  float* dgate = nullptr;       // [rows]
  float* dx = nullptr;          // [rows, d]
  template <typename V>
  void Fields(V& v) {
    v.In(gate, rows);
    v.In(w, d);
    v.InOut(dgate, rows);
    v.InOut(dx, rows * d);
  }
};

// out[r] = sum[r] + sum_k x[place[r, k]] + shared[r], k in order, rounded once.
template <typename T>
struct SumExpertsArgs {
  int64_t rows = 0, d = 0, k = 0;
  const float* sum = nullptr;      // [rows, d]
  const int32_t* place = nullptr;  // [rows, k]
  const T* x = nullptr;            // [rows * k, d]
  const T* shared = nullptr;       // [rows, d] or null; may be out
  T* out = nullptr;                // [rows, d]
  template <typename V>
  void Fields(V& v) {
    v.In(sum, rows * d);
    v.In(place, rows * k);
    v.In(x, rows * k * d);
    v.MaybeIn(shared, rows * d);
    v.Out(out, rows * d);
  }
};

// One update of AdamW (arXiv:1711.05101), with g = gradients * clip, where clip is max_grad_norm / (norm +
// 1e-6) if that is above 0 and below norm = sqrt(*square_sum), else 1:
//   m = beta1 m + rest1 g,  v = beta2 v + rest2 g^2,  p = p decay - step m / (sqrt(v) root + eps)
// Nothing is written where the norm is not finite. p is the weight; of BF16 the float32 whose bits are
// (weight << 16) + rest, so that what rounding cuts off is not lost (a tie rounds away from zero).
template <typename T>
struct AdamWArgs {
  int64_t n = 0;
  const float* gradients = nullptr;                           // [n]
  T* weights = nullptr;                                       // [n]
  int16_t* rest = nullptr;                                    // [n], null with float32 weights
  float* m = nullptr;                                         // [n]
  float* v = nullptr;                                         // [n]
  float beta1 = 0, rest1 = 0, beta2 = 0, rest2 = 0, eps = 0;  // rest: 1 - beta, rounded once
  float decay = 1;                                            // 1 - learning rate * weight decay
  float step = 0;                                             // learning rate / (1 - beta1^t)
  float root = 1;                                             // 1 / sqrt(1 - beta2^t)
  const double* square_sum = nullptr;                         // of all gradients of the update
  double max_grad_norm = 0;                                   // 0: no clipping
  template <typename V>
  void Fields(V& f) {
    f.In(gradients, n);
    f.InOut(weights, n);
    if constexpr (sizeof(T) == sizeof(BF16)) f.InOut(rest, n);
    f.InOut(m, n);
    f.InOut(v, n);
    f.In(square_sum, 1);
  }
};

// *sum = sum of x[i]^2 in float64, in an order that depends on n alone; not finite if an x is not.
struct SquareSumArgs {
  int64_t n = 0;
  const float* x = nullptr;
  double* sum = nullptr;
  double* parts = nullptr;  // [kSquareParts] the same, exact (square_sum.h); null on devices without tiles
  template <typename V>
  void Fields(V& v) {
    v.In(x, n);
    v.Out(sum, 1);
    v.MaybeOut(parts, kSquareParts);
  }
};

// Digests of weights: words in buckets of bucket_words, the last one short, each summed up as SaltedSum
// (core/base/hash.h) does with the bucket's number for salt.
struct SaltedSumsArgs {
  int64_t words = 0, bucket_words = 1;
  const uint64_t* x = nullptr;  // [words]
  uint64_t* sums = nullptr;     // [buckets()]
  [[nodiscard]] int64_t buckets() const { return (words + bucket_words - 1) / bucket_words; }
  template <typename V>
  void Fields(V& v) {
    v.In(x, words);
    v.Out(sums, buckets());
  }
};

// Each name stands for a method of Device, a struct <name>Args, and functions of the same name on the CPU.
// clang-format off
#define TIDEPOOL_TYPED_KERNELS(K) \
  K(RmsNorm) K(RmsNormBackward) K(Rotary) K(HeadNormBackward) K(Attention) K(AttentionBackward) \
  K(AddBias) K(SwiGlu) K(SwiGluBackward) K(TokenLogProb) K(TokenLogProbBackward) K(Sample) \
  K(ColumnSum) K(GatherRows) K(ScatterAddRows) K(Widen) K(Narrow) K(Multiply) K(MultiplyBack) \
  K(MultiplyBackWeight) K(Router) K(GroupedMultiply) K(GroupedMultiplyBack) \
  K(GroupedMultiplyBackWeight) K(CombineExperts) K(CombineExpertsBackward) K(GateBackward) \
  K(SumExperts) K(LowRank) K(AddLowRank) K(LowRankBackWeight) K(AdamW)
// Those without a type T.
#define TIDEPOOL_PLAIN_KERNELS(K) \
  K(Route) K(GroupRows) K(Sigmoid) K(RouteBackward) K(AddProbs) K(SquareSum) K(SaltedSums)
// clang-format on

}  // namespace tidepool::device

// TIDEPOOL_KERNEL(Kernel, Args), which whoever writes this has defined, for every kernel and type.
#define TIDEPOOL_EVERY_KERNEL                    \
  TIDEPOOL_TYPED_KERNELS(TIDEPOOL_KERNEL_TYPED_) \
  TIDEPOOL_PLAIN_KERNELS(TIDEPOOL_KERNEL_PLAIN_)
#define TIDEPOOL_KERNEL_TYPED_(Kernel)         \
  TIDEPOOL_KERNEL(Kernel, Kernel##Args<float>) \
  TIDEPOOL_KERNEL(Kernel, Kernel##Args<BF16>)
#define TIDEPOOL_KERNEL_PLAIN_(Kernel) TIDEPOOL_KERNEL(Kernel, Kernel##Args)
