#include "core/model/decoder.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "core/model/decoder_impl.h"
#include "core/model/rope.h"

namespace tidepool::model {

void ParallelItems(int64_t items, int64_t cost, const std::function<void(int64_t, int64_t)>& body) {
  // 32k operations are about what it takes to wake another thread.
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(cost, 1));
  if (items <= grain || at::get_num_threads() == 1) {
    if (items > 0) body(0, items);
    return;
  }
  at::parallel_for(0, items, grain, body);
}

void RunTiles(const AttentionPlan& plan, const std::function<void(const AttentionTile&, int64_t)>& tile) {
  const size_t parts = plan.parts_tiles.size(), all = parts + plan.tiles.size();
  const auto threads = std::min(at::get_num_threads(), static_cast<int>(all));
  std::atomic<size_t> next = 0, parts_done = 0;
  const auto work = [&](int64_t thread) {
    for (size_t i = next++; i < all; i = next++) {
      if (i < parts) {
        tile(plan.parts_tiles[i], thread);
        parts_done.fetch_add(1, std::memory_order_release);
        continue;
      }
      // The last parts are being computed by other threads.
      while (parts_done.load(std::memory_order_acquire) < parts) std::this_thread::yield();
      tile(plan.tiles[i - parts], thread);
    }
  };
  if (threads <= 1 || plan.cost < 30000)
    return work(0);  // cycles: twice what it takes to wake another thread
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) work(thread);
  });
}

at::Tensor ActivationArena::Take(at::IntArrayRef shape, at::ScalarType dtype) {
  size_t bytes = dtype == at::kBFloat16 ? 2 : 4;
  for (const int64_t s : shape) bytes *= static_cast<size_t>(s);
  bytes = std::max<size_t>(64, (bytes + 63) / 64 * 64);
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].bytes().size()) ++chunk_, used_ = 0;
  if (chunk_ == chunks_.size()) {
    constexpr size_t kChunk = size_t{32} << 20;
    StatusOr<PageBuffer> chunk = PageBuffer::Create(std::max(bytes, kChunk));
    TP_CHECK(chunk.ok()) << "activations: " << chunk.status().ToString();
    chunks_.push_back(std::move(chunk).value());
    used_ = 0;
  }
  std::byte* p = chunks_[chunk_].bytes().data() + used_;
  used_ += bytes;
  return at::from_blob(p, shape, at::TensorOptions().dtype(dtype));
}

int64_t ActivationArena::bytes() const {
  int64_t sum = 0;
  for (const PageBuffer& chunk : chunks_) sum += static_cast<int64_t>(chunk.bytes().size());
  return sum;
}

Decoder::Impl::Impl(const Weights& w, DecoderOptions o)
    : weights(w),
      spec(w.spec()),
      options(o),
      wide(w.dtype() == DType::kFloat32),
      own_products(OwnProducts(wide)) {
  const std::vector<Parameter>& layout = w.layout();
  for (size_t i = 0; i < layout.size(); ++i) {
    parameters.push_back(w.Get(static_cast<int64_t>(i)));
  }
  std::unordered_map<std::string_view, int64_t> by_name;
  for (size_t i = 0; i < layout.size(); ++i) by_name.emplace(layout[i].name, static_cast<int64_t>(i));
  const auto find = [&](const std::string& name) -> int64_t {
    const auto it = by_name.find(name);
    return it == by_name.end() ? -1 : it->second;
  };
  int64_t sparse = 0;
  for (int64_t l = 0; l < spec.layers; ++l) {
    const std::string at = "layers." + std::to_string(l) + ".";
    layers.push_back({.attention_norm = find(at + "attention_norm"),
                      .qkv = find(at + "qkv"),
                      .qkv_bias = find(at + "qkv_bias"),
                      .q_norm = find(at + "q_norm"),
                      .k_norm = find(at + "k_norm"),
                      .o = find(at + "o"),
                      .o_bias = find(at + "o_bias"),
                      .mlp_norm = find(at + "mlp_norm"),
                      .gate_up = find(at + "gate_up"),
                      .gate_up_bias = find(at + "gate_up_bias"),
                      .down = find(at + "down"),
                      .down_bias = find(at + "down_bias"),
                      .router = find(at + "router"),
                      .experts_gate_up = find(at + "experts_gate_up"),
                      .experts_down = find(at + "experts_down"),
                      .shared_gate_up = find(at + "shared_gate_up"),
                      .shared_down = find(at + "shared_down"),
                      .shared_gate = find(at + "shared_gate"),
                      .sparse = spec.IsSparse(l) ? sparse++ : -1});
  }
  embedding = find("embedding");
  final_norm = find("final_norm");
  head = spec.tie_embeddings || spec.value_head ? embedding : find("head");
}

void Decoder::Impl::EnsurePositions(int64_t count) {
  const int64_t half = spec.head_size / 2;
  const auto have = static_cast<int64_t>(cos.size()) / half;
  if (count <= have) return;
  const int64_t want = std::max(count, std::min(spec.max_position, std::max<int64_t>(2 * have, 256)));
  cos.resize(static_cast<size_t>(want * half));
  sin.resize(static_cast<size_t>(want * half));
  const std::vector<float> frequencies = RopeFrequencies(spec);
  const double scale = spec.rope.type == RopeType::kYarn ? spec.rope.attention_factor : 1.0;
  for (int64_t p = have; p < want; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<float>(p) * frequencies[static_cast<size_t>(i)];  // rounded, see rope.h
      cos[static_cast<size_t>(p * half + i)] =
          static_cast<float>(static_cast<float>(std::cos(angle)) * scale);
      sin[static_cast<size_t>(p * half + i)] =
          static_cast<float>(static_cast<float>(std::sin(angle)) * scale);
    }
  }
}

void Decoder::Impl::CheckBatch(const RaggedBatch& b) const {
  const size_t rows = b.ids.size();
  TP_CHECK(b.positions.size() == rows && b.slots.size() == rows && b.first_run.size() == rows &&
           b.lengths.size() == rows)
      << "a batch of " << rows << " rows has arrays of other lengths";
  for (size_t i = 0; i < rows; ++i) {
    TP_CHECK(b.ids[i] >= 0 && b.ids[i] < spec.vocab_size)
        << "row " << i << ": token id " << b.ids[i] << " of " << spec.vocab_size;
    TP_CHECK(b.lengths[i] >= 1 && b.positions[i] >= 0) << "row " << i << ": length " << b.lengths[i];
    TP_CHECK(b.first_run[i] >= 0 && b.first_run[i] < static_cast<int32_t>(b.runs.size()))
        << "row " << i << ": run " << b.first_run[i];
  }
  if (b.experts.empty()) return;
  TP_CHECK(static_cast<int64_t>(b.experts.size()) ==
           spec.sparse_layers() * static_cast<int64_t>(rows) * spec.moe.experts_per_token)
      << "replayed routing: " << b.experts.size() << " ids for " << rows << " rows";
  const auto k = static_cast<size_t>(spec.moe.experts_per_token);
  for (size_t i = 0; i < b.experts.size(); ++i) {
    const bool left_to_router = b.experts[i / k * k] == -1;
    TP_CHECK(left_to_router ? b.experts[i] == -1 : b.experts[i] >= 0 && b.experts[i] < spec.moe.experts)
        << "replayed routing: expert " << b.experts[i] << " of " << spec.moe.experts;
  }
}

void Decoder::Impl::Multiply(at::Tensor& out, const at::Tensor& x, const at::Tensor& w) const {
  if (own_products) {
    const auto multiply = [&]<typename T>(T) {
      const MultiplyArgs<T> args{.rows = x.size(0),
                                 .n = w.size(0),
                                 .k = w.size(1),
                                 .x = Ptr<T>(x),
                                 .w = Ptr<T>(w),
                                 .y = Ptr<T>(out)};
      ParallelProduct(args.n, /*unit=*/8, args.rows * args.k,
                      Kernels<T>().product.multiply_scratch(args.rows, args.k),
                      [&](int64_t begin, int64_t end, float* scratch) {
                        Kernels<T>().product.multiply(begin, end, args, scratch);
                      });
    };
    wide ? multiply(float{}) : multiply(BF16{});
  } else if (options.row_blocks != nullptr) {
    options.row_blocks->Multiply(out, x, w.t());
  } else {
    at::mm_out(out, x, w.t());
  }
}

void Decoder::Impl::ParallelProduct(int64_t items, int64_t unit, int64_t cost, int64_t floats,
                                    const std::function<void(int64_t, int64_t, float*)>& body) const {
  ReserveSpaces();
  ParallelItems((items + unit - 1) / unit, unit * cost, [&](int64_t begin, int64_t end) {
    body(begin * unit, std::min(items, end * unit), Space(at::get_thread_num(), floats));
  });
}

void Decoder::Impl::ReserveSpaces() const {
  const auto threads = static_cast<size_t>(at::get_num_threads());
  if (spaces.size() < threads) spaces.resize(threads);
}

float* Decoder::Impl::Space(int64_t thread, int64_t floats) const {
  constexpr size_t kLine = 64;
  std::vector<float>& mine = spaces[static_cast<size_t>(thread)];
  const size_t want = static_cast<size_t>(floats) + kLine / sizeof(float);
  if (mine.size() < want) mine.resize(want);
  void* p = mine.data();
  size_t bytes = mine.size() * sizeof(float);
  return static_cast<float*>(std::align(kLine, bytes - kLine, p, bytes));
}

int64_t Decoder::Impl::GatheredMax(int64_t rows) const {
  const int64_t chosen = rows * spec.moe.experts_per_token;
  return chosen + (options.row_blocks != nullptr ? 15 * std::min(spec.moe.experts, chosen) : 0);
}

BlockBuffers Decoder::Impl::TakeBlock(ActivationArena& arena, int64_t rows, int64_t p, bool training,
                                      int64_t layer) const {
  const at::ScalarType t = wide ? at::kFloat : at::kBFloat16;
  const int64_t d = spec.hidden_size, q = spec.heads * spec.head_size, kv = spec.kv_heads * spec.head_size;
  BlockBuffers b;
  if (training) {
    b.x = arena.Take({p, d}, t);
    b.rstd1 = arena.Take({p}, at::kFloat);
    b.rstd2 = arena.Take({p}, at::kFloat);
    b.lse = arena.Take({p, spec.heads}, at::kFloat);
    b.k = arena.Take({p, kv}, t);
    b.v = arena.Take({p, kv}, t);
    if (spec.qk_norm) b.qkv = arena.Take({p, qkv_width()}, t);
    b.x_mid = arena.Take({p, d}, t);
  }
  b.q = arena.Take({p, q}, t);
  b.a = arena.Take({p, q}, t);
  const int64_t sparse = spec.sparse_layers();
  if (layer < 0 ? sparse < spec.layers : !spec.IsSparse(layer))
    b.gate_up = arena.Take({p, 2 * spec.intermediate_size}, t);
  if (layer < 0 ? sparse > 0 : spec.IsSparse(layer)) {
    b.moe = std::make_shared<MoeBuffers>();
    const int64_t gathered = GatheredMax(rows), shared = spec.moe.shared_intermediate_size;
    b.moe->probs = arena.Take({p, spec.moe.experts}, at::kFloat);
    b.moe->gate_up = arena.Take({gathered, 2 * spec.moe.intermediate_size}, t);
    b.moe->y = arena.Take({gathered, d}, t);
    if (shared > 0) {
      b.moe->shared_gate_up = arena.Take({p, 2 * shared}, t);
      b.moe->shared = arena.Take({p, d}, t);
    }
  }
  return b;
}

void Decoder::Impl::TakeUnsaved(ActivationArena& arena, int64_t rows, int64_t p, BlockBuffers& b) const {
  const at::ScalarType t = wide ? at::kFloat : at::kBFloat16;
  const int64_t d = spec.hidden_size, sparse = spec.sparse_layers();
  b.norm = arena.Take({p, d}, t);
  b.out = arena.Take({p, d}, t);
  if (sparse < spec.layers) b.act = arena.Take({p, spec.intermediate_size}, t);
  if (sparse == 0) return;
  if (b.moe == nullptr) b.moe = std::make_shared<MoeBuffers>();
  b.moe->x = arena.Take({GatheredMax(rows), d}, t);
  b.moe->act = arena.Take({GatheredMax(rows), spec.moe.intermediate_size}, t);
  if (spec.moe.shared_intermediate_size > 0)
    b.moe->shared_act = arena.Take({p, spec.moe.shared_intermediate_size}, t);
}

template <typename T>
void Decoder::Impl::AddBias(int64_t bias, int64_t padded, at::Tensor& x) const {
  if (bias < 0) return;
  const int64_t n = x.size(1);
  ParallelItems(padded, 2 * n, [&](int64_t begin, int64_t end) {
    Kernels<T>().add_bias(begin, end, n, Ptr<T>(parameters[static_cast<size_t>(bias)]), Ptr<T>(x));
  });
}

void Decoder::Impl::PlanBatch(const RaggedBatch& batch) {
  const int64_t threads = at::get_num_threads();
  plan = PlanAttention(
      batch.first_run, batch.lengths, batch.runs,
      {.heads = spec.heads, .kv_heads = spec.kv_heads, .head_size = spec.head_size, .threads = threads});
  attention_parts =
      plan.parts == 0
          ? at::Tensor()
          : scratch.Take({plan.parts, spec.heads, AttentionPartFloats(spec.head_size)}, at::kFloat);
}

template <typename T>
void Decoder::Impl::Embed(const RaggedBatch& batch, int64_t padded, T* x) const {
  const int64_t d = spec.hidden_size;
  const T* table = Ptr<T>(parameters[static_cast<size_t>(embedding)]);
  const auto rows = static_cast<int64_t>(batch.ids.size());
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(x + r * d, table + int64_t{batch.ids[static_cast<size_t>(r)]} * d,
                static_cast<size_t>(d) * sizeof(T));
  }
  // Rows of padding stay finite all the way and nothing reads them.
  std::memset(static_cast<void*>(x + rows * d), 0, static_cast<size_t>((padded - rows) * d) * sizeof(T));
}

template <typename T>
void Decoder::Impl::Block(int64_t layer, const RaggedBatch& batch, int64_t padded, const BlockBuffers& b,
                          const T* x_before, const T* add, T* k, T* v) {
  const KernelTable<T>& kernels = Kernels<T>();
  const LayerWeights& w = layers[static_cast<size_t>(layer)];
  const auto param = [&](int64_t i) { return i < 0 ? nullptr : Ptr<T>(parameters[static_cast<size_t>(i)]); };
  const int64_t d = spec.hidden_size, ff = spec.intermediate_size;
  const auto rows = static_cast<int64_t>(batch.ids.size());
  const auto eps = static_cast<float>(spec.rms_norm_eps);

  const RmsNormArgs<T> norm1{.d = d,
                             .x = x_before,
                             .add = add,
                             .x_out = Ptr<T>(b.x),
                             .weight = param(w.attention_norm),
                             .eps = eps,
                             .out = Ptr<T>(b.norm),
                             .rstd = Ptr<float>(b.rstd1)};
  ParallelItems(padded, 6 * d, [&](int64_t begin, int64_t end) { kernels.rms_norm(begin, end, norm1); });
  at::Tensor qkv = b.qkv, out = b.out, gate_up = b.gate_up;
  Multiply(qkv, b.norm, parameters[static_cast<size_t>(w.qkv)]);

  const RotaryArgs<T> rotary{.heads = spec.heads,
                             .kv_heads = spec.kv_heads,
                             .head_size = spec.head_size,
                             .qkv = Ptr<T>(qkv),
                             .bias = param(w.qkv_bias),
                             .q_norm = param(w.q_norm),
                             .k_norm = param(w.k_norm),
                             .eps = eps,
                             .cos = cos.data(),
                             .sin = sin.data(),
                             .positions = batch.positions.data(),
                             .slots = batch.slots.data(),
                             .q = Ptr<T>(b.q),
                             .k = k,
                             .v = v};
  ParallelItems(rows, 4 * qkv_width(),
                [&](int64_t begin, int64_t end) { kernels.rotary(begin, end, rotary); });

  const AttentionArgs<T> attention{.heads = spec.heads,
                                   .kv_heads = spec.kv_heads,
                                   .head_size = spec.head_size,
                                   .q = Ptr<T>(b.q),
                                   .k = k,
                                   .v = v,
                                   .first_run = batch.first_run.data(),
                                   .lengths = batch.lengths.data(),
                                   .runs = batch.runs.data(),
                                   .tile_rows = plan.tile_rows.data(),
                                   .first_part = plan.first_part.data(),
                                   .part_count = plan.part_count.data(),
                                   .parts = Ptr<float>(attention_parts),
                                   .out = Ptr<T>(b.a),
                                   .lse = Ptr<float>(b.lse)};
  ReserveSpaces();
  RunTiles(plan, [&](const AttentionTile& tile, int64_t thread) {
    kernels.attention(tile, attention, Space(thread, AttentionScratch(spec.head_size)));
  });
  const int64_t q_width = spec.heads * spec.head_size;
  std::memset(static_cast<void*>(Ptr<T>(b.a) + rows * q_width), 0,
              static_cast<size_t>((padded - rows) * q_width) * sizeof(T));
  Multiply(out, b.a, parameters[static_cast<size_t>(w.o)]);
  AddBias<T>(w.o_bias, padded, out);

  const RmsNormArgs<T> norm2{.d = d,
                             .x = Ptr<T>(b.x),
                             .add = Ptr<T>(out),
                             .x_out = Ptr<T>(b.x_mid),
                             .weight = param(w.mlp_norm),
                             .eps = eps,
                             .out = Ptr<T>(b.norm),
                             .rstd = Ptr<float>(b.rstd2)};
  ParallelItems(padded, 6 * d, [&](int64_t begin, int64_t end) { kernels.rms_norm(begin, end, norm2); });
  if (w.sparse >= 0) {
    Experts<T>(layer, batch, padded, b);
    return;
  }
  Multiply(gate_up, b.norm, parameters[static_cast<size_t>(w.gate_up)]);
  AddBias<T>(w.gate_up_bias, padded, gate_up);
  ParallelItems(padded, 16 * ff, [&](int64_t begin, int64_t end) {
    kernels.swiglu(begin, end, ff, Ptr<T>(gate_up), Ptr<T>(b.act));
  });
  Multiply(out, b.act, parameters[static_cast<size_t>(w.down)]);
  AddBias<T>(w.down_bias, padded, out);
}

// The backward recomputes blocks.
template void Decoder::Impl::Block<float>(int64_t, const RaggedBatch&, int64_t, const BlockBuffers&,
                                          const float*, const float*, float*, float*);
template void Decoder::Impl::Block<BF16>(int64_t, const RaggedBatch&, int64_t, const BlockBuffers&,
                                         const BF16*, const BF16*, BF16*, BF16*);

template <typename T>
at::Tensor Decoder::Impl::FinalNorm(int64_t rows, int64_t padded, const T* x, const T* add, T* x_out,
                                    float* rstd) const {
  at::Tensor hidden =
      at::empty({padded, spec.hidden_size}, at::TensorOptions().dtype(wide ? at::kFloat : at::kBFloat16));
  const RmsNormArgs<T> args{.d = spec.hidden_size,
                            .x = x,
                            .add = add,
                            .x_out = x_out,
                            .weight = Ptr<T>(parameters[static_cast<size_t>(final_norm)]),
                            .eps = static_cast<float>(spec.rms_norm_eps),
                            .out = Ptr<T>(hidden),
                            .rstd = rstd};
  ParallelItems(padded, 6 * spec.hidden_size,
                [&](int64_t begin, int64_t end) { Kernels<T>().rms_norm(begin, end, args); });
  return hidden.narrow(0, 0, rows);
}

template <typename T>
at::Tensor Decoder::Impl::Forward(const RaggedBatch& batch, const KvMemory& kv) {
  const auto rows = static_cast<int64_t>(batch.ids.size());
  const int64_t padded = Padded(rows), d = spec.hidden_size;
  const at::ScalarType t = wide ? at::kFloat : at::kBFloat16;
  TP_CHECK(kv.k != nullptr && kv.v != nullptr && kv.k->dim() == 4 && kv.k->is_contiguous() &&
           kv.v->is_contiguous() && kv.k->sizes() == kv.v->sizes() && kv.k->scalar_type() == t &&
           kv.v->scalar_type() == t)
      << "KV memory: two contiguous tensors [layers, slots, kv_heads, head_size] of the model's dtype are "
         "expected";
  TP_CHECK(kv.k->size(0) == spec.layers && kv.k->size(2) == spec.kv_heads && kv.k->size(3) == spec.head_size)
      << "KV memory has another shape than the model";
  const int64_t layer_stride = kv.k->stride(0);
  scratch.Reset();
  PlanBatch(batch);
  BlockBuffers b = TakeBlock(scratch, rows, padded, /*training=*/false, /*layer=*/-1);
  b.x = scratch.Take({padded, d}, t);
  b.x_mid = b.x;  // the residual stream is updated in place
  b.qkv = scratch.Take({padded, qkv_width()}, t);
  TakeUnsaved(scratch, rows, padded, b);
  T* x = Ptr<T>(b.x);
  if (batch.routed != nullptr) batch.routed->clear();
  Embed(batch, padded, x);
  for (int64_t l = 0; l < spec.layers; ++l) {
    Block<T>(l, batch, padded, b, x, l == 0 ? nullptr : Ptr<T>(b.out), Ptr<T>(*kv.k) + l * layer_stride,
             Ptr<T>(*kv.v) + l * layer_stride);
  }
  return FinalNorm<T>(rows, padded, x, Ptr<T>(b.out), x, nullptr);
}

template <typename T>
at::Tensor Decoder::Impl::ForwardTraining(const RaggedBatch& given, SavedActivations& saved) {
  RaggedBatch batch = given;
  batch.routed = spec.sparse_layers() > 0 ? &saved.experts : nullptr;
  saved.prob_sum.assign(static_cast<size_t>(spec.moe.experts), 0.0);
  prob_sum = &saved.prob_sum;
  const int64_t padded = saved.padded, d = spec.hidden_size;
  const at::ScalarType t = wide ? at::kFloat : at::kBFloat16;
  ActivationArena& arena = *saved.arena;
  scratch.Reset();
  PlanBatch(batch);
  BlockBuffers shared;
  if (saved.recompute) shared = TakeBlock(scratch, saved.rows, padded, /*training=*/true, /*layer=*/-1);
  BlockBuffers unsaved;
  unsaved.moe = shared.moe;
  TakeUnsaved(scratch, saved.rows, padded, unsaved);
  const at::Tensor out = unsaved.out;
  const at::Tensor qkv = spec.qk_norm ? at::Tensor() : scratch.Take({padded, qkv_width()}, t);
  at::Tensor x_before;  // what the pending `out` is to be added to
  for (int64_t l = 0; l < spec.layers; ++l) {
    BlockBuffers b = saved.recompute ? shared : TakeBlock(arena, saved.rows, padded, /*training=*/true, l);
    if (saved.recompute) b.x = arena.Take({padded, d}, t);
    b.LendUnsaved(unsaved);
    if (!spec.qk_norm) b.qkv = qkv;
    if (l == 0) Embed(batch, padded, Ptr<T>(b.x));
    Block<T>(l, batch, padded, b, l == 0 ? Ptr<T>(b.x) : Ptr<T>(x_before), l == 0 ? nullptr : Ptr<T>(out),
             Ptr<T>(b.k), Ptr<T>(b.v));
    x_before = b.x_mid;
    if (saved.recompute) {
      BlockBuffers kept;
      kept.x = b.x;
      saved.blocks.push_back(std::move(kept));
    } else {
      saved.blocks.push_back(std::move(b));
    }
  }
  prob_sum = nullptr;
  if (given.routed != nullptr) *given.routed = saved.experts;
  saved.x_last = arena.Take({padded, d}, t);
  saved.rstd_last = arena.Take({padded}, at::kFloat);
  return FinalNorm<T>(saved.rows, padded, Ptr<T>(x_before), Ptr<T>(out), Ptr<T>(saved.x_last),
                      Ptr<float>(saved.rstd_last));
}

Decoder::Decoder(const Weights& weights, DecoderOptions options)
    : impl_(std::make_unique<Impl>(weights, options)) {}
Decoder::~Decoder() = default;

at::Tensor Decoder::Forward(const RaggedBatch& batch, const KvMemory& kv) const {
  impl_->CheckBatch(batch);
  for (const int32_t p : batch.positions) impl_->EnsurePositions(int64_t{p} + 1);
  return impl_->wide ? impl_->Forward<float>(batch, kv) : impl_->Forward<BF16>(batch, kv);
}

at::Tensor Decoder::Logits(const at::Tensor& hidden) const {
  Impl& m = *impl_;
  const int64_t rows = hidden.size(0), padded = m.Padded(rows), d = m.spec.hidden_size;
  at::Tensor in = hidden;
  // Products of float32 may depend on the alignment of their inputs (MKL's conditional reproducibility).
  const bool aligned = reinterpret_cast<uintptr_t>(hidden.const_data_ptr()) % 64 == 0;
  if (padded != rows || !hidden.is_contiguous() || (m.options.row_blocks != nullptr && !aligned)) {
    in = at::empty({padded, d}, hidden.options());
    in.narrow(0, 0, rows).copy_(hidden);
    if (padded != rows) in.narrow(0, rows, padded - rows).zero_();
  }
  // Fresh memory for tens of megabytes costs page faults: take the last result's if it is free.
  const bool reusable = m.logits.defined() && m.logits.use_count() == 1 &&
                        m.logits.storage().use_count() == 1 && m.logits.size(0) >= padded &&
                        m.logits.is_inference() == c10::InferenceMode::is_enabled();
  if (!reusable) {
    m.logits = at::empty({padded, m.spec.vocab_size}, hidden.options());
  }
  at::Tensor out = m.logits.narrow(0, 0, padded);
  m.Multiply(out, in, m.parameters[static_cast<size_t>(m.head)]);
  return out.narrow(0, 0, rows);
}

std::pair<at::Tensor, SavedPtr> Decoder::ForwardTraining(const RaggedBatch& batch, bool recompute) const {
  Impl& m = *impl_;
  m.CheckBatch(batch);
  SavedPtr saved(new SavedActivations());
  saved->recompute = recompute;
  saved->rows = static_cast<int64_t>(batch.ids.size());
  saved->padded = m.Padded(saved->rows);
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    TP_CHECK(batch.slots[i] == static_cast<int32_t>(i))
        << "training: slot " << batch.slots[i] << " in row " << i;
    m.EnsurePositions(int64_t{batch.positions[i]} + 1);
  }
  saved->ids.assign(batch.ids.begin(), batch.ids.end());
  saved->positions.assign(batch.positions.begin(), batch.positions.end());
  saved->slots.assign(batch.slots.begin(), batch.slots.end());
  saved->first_run.assign(batch.first_run.begin(), batch.first_run.end());
  saved->lengths.assign(batch.lengths.begin(), batch.lengths.end());
  saved->runs.assign(batch.runs.begin(), batch.runs.end());
  if (!m.idle.empty()) {
    saved->arena = std::move(m.idle.back());
    m.idle.pop_back();
    saved->arena->Reset();
  } else {
    saved->arena = std::make_unique<ActivationArena>();
  }
  saved->owner = &m;
  at::Tensor hidden =
      m.wide ? m.ForwardTraining<float>(batch, *saved) : m.ForwardTraining<BF16>(batch, *saved);
  return {std::move(hidden), std::move(saved)};
}

void Decoder::ReleaseScratch() {
  impl_->scratch = ActivationArena();
  impl_->idle.clear();
  impl_->logits = at::Tensor();
  impl_->weight_gradient = at::Tensor();
  impl_->spaces.clear();
}

int64_t Decoder::held_bytes() const {
  const Impl& m = *impl_;
  int64_t sum = m.scratch.bytes();
  for (const auto& arena : m.idle) sum += arena->bytes();
  for (const auto& of_thread : m.spaces) sum += static_cast<int64_t>(of_thread.size() * sizeof(float));
  for (const at::Tensor* t : {&m.logits, &m.weight_gradient})
    if (t->defined()) sum += static_cast<int64_t>(t->nbytes());
  return sum;
}

void SavedDeleter::operator()(SavedActivations* saved) const {
  if (saved == nullptr) return;
  saved->blocks.clear();
  if (saved->owner != nullptr) saved->owner->idle.push_back(std::move(saved->arena));
  delete saved;  // NOLINT: this is the deleter
}

}  // namespace tidepool::model
