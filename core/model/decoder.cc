#include "core/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/model/decoder_impl.h"
#include "core/model/rope.h"

namespace tidepool::model {

Decoder::Impl::Impl(const Weights& w, std::shared_ptr<device::Device> d, const Part& p)
    : whole(w.spec()),
      own(p),
      part(own.of_matrices()),
      spec(PartSpec(whole, own)),
      first_token(VocabularyOf(whole, part).first),
      shared_device(std::move(d)),
      device(*shared_device),
      dtype(w.dtype()),
      cuts(whole, part, device.sums_in_tiles()),
      shared_weights((w.base() == nullptr ? w : *w.base()).On(shared_device, own)),
      on_device(*shared_weights),
      base(w.base() == nullptr ? &w : w.base().get()),
      adapter(w.base() == nullptr ? nullptr : w.On(shared_device, own)),
      scratch(device) {
  const std::vector<Parameter>& layout = on_device.layout();
  std::unordered_map<std::string_view, int64_t> by_name;
  for (size_t i = 0; i < layout.size(); ++i) by_name.emplace(layout[i].name, static_cast<int64_t>(i));
  const auto find = [&](const std::string& name) -> int64_t {
    const auto it = by_name.find(name);
    return it == by_name.end() ? -1 : it->second;
  };
  int64_t sparse = 0;
  for (int64_t l = 0; l < spec.layers; ++l) {
    const std::string at = "layers." + std::to_string(l) + ".";
    layers.push_back(LayerWeights{.attention_norm = find(at + "attention_norm"),
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
  if (adapter != nullptr) {
    const AdapterOnModel& trained = adapters.emplace(kOwnWeights, FindAdapter(w)).first->second;
    of_embedding = trained.embedding, of_head = trained.head;
    for (size_t l = 0; l < layers.size(); ++l) layers[l].adapter = trained.layers[l];
    lowest_trained = 0;
    while (of_embedding.a < 0 && lowest_trained < spec.layers &&
           layers[static_cast<size_t>(lowest_trained)].first_adapted() < 0)
      ++lowest_trained;
  }
  embedding = find("embedding");
  final_norm = find("final_norm");
  head = spec.tie_embeddings || spec.value_head ? embedding : find("head");

  const int64_t q = whole.heads * whole.head_size, kv = whole.kv_heads * whole.head_size,
                ff = whole.intermediate_size, vocab = whole.vocab_size;
  using Segments = std::vector<int64_t>;
  for (const auto& [sum, segments] : {std::pair(&over_heads, Segments{q}),
                                      {&over_inner, Segments{ff}},
                                      {&over_qkv, Segments{q, kv, kv}},
                                      {&over_gate_up, Segments{ff, ff}},
                                      {&over_vocabulary, Segments{vocab}}}) {
    for (const SumNode& node : cuts.nodes()[static_cast<size_t>(part.rank)])
      sum->push_back(cuts.Of(node, segments));
  }
  const SumNode mine{cuts.first(), cuts.end() - cuts.first()};
  head_tiles = cuts.Of(mine, Segments{whole.heads, whole.kv_heads});
  const device::SumTiles own = cuts.Of(mine, Segments{vocab});
  for (int32_t t = 0; t < own.tiles; ++t)
    logits_tiles.emplace_back(t == 0 ? own.begin[0] : own.end[0][t - 1], own.end[0][t]);
  const SumCuts alone(whole, {}, device.sums_in_tiles());
  vocabulary = alone.Of({0, alone.tiles()}, Segments{vocab});
}

void Decoder::Impl::EnsurePositions(std::span<const int32_t> of_rows) {
  int64_t count = 0;
  for (const int32_t p : of_rows) count = std::max(count, int64_t{p} + 1);
  if (count <= positions) return;
  DropGraphs();  // they read the tables where these are
  const int64_t half = spec.head_size / 2;
  positions = std::max(count, std::min(spec.max_position, std::max<int64_t>(2 * positions, 256)));
  std::vector<float> cosines, sines;
  const std::vector<float> frequencies = RopeFrequencies(spec);
  const double scale = spec.rope.type == RopeType::kYarn ? spec.rope.attention_factor : 1.0;
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<float>(p) * frequencies[static_cast<size_t>(i)];  // rounded, see rope.h
      cosines.push_back(static_cast<float>(static_cast<float>(std::cos(angle)) * scale));
      sines.push_back(static_cast<float>(static_cast<float>(std::sin(angle)) * scale));
    }
  }
  for (auto [to, values] : {std::pair(&cos, &cosines), std::pair(&sin, &sines)}) {
    *to = device.Take(positions, half, DType::kFloat32);
    device.Upload(to->view.As<float>(), std::span<const float>(*values));
  }
}

void Decoder::Impl::CheckBatch(const RaggedBatch& b) const {
  const size_t rows = b.ids.size();
  TP_CHECK(b.positions.size() == rows && b.slots.size() == rows && b.first_run.size() == rows &&
           b.lengths.size() == rows)
      << "a batch of " << rows << " rows has arrays of other lengths";
  for (size_t i = 0; i < rows; ++i) {
    TP_CHECK(b.ids[i] >= 0 && b.ids[i] < whole.vocab_size)
        << "row " << i << ": token id " << b.ids[i] << " of " << whole.vocab_size;
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

namespace {

// Its arrays of numbers, in the order in which they stand behind each other.
template <typename F>
void EachArray(const RaggedBatch& b, F each) {
  static_assert(sizeof(device::KvRun) == 2 * sizeof(int32_t));
  for (const std::span<const int32_t> values : {b.ids, b.positions, b.slots, b.first_run, b.lengths})
    each(values);
  each({reinterpret_cast<const int32_t*>(b.runs.data()), 2 * b.runs.size()});
  each(b.experts);
}
size_t OnLines(size_t words) { return (words + 15) / 16 * 16; }

}  // namespace

std::vector<int32_t> Pack(const RaggedBatch& b) {
  std::vector<int32_t> all;
  EachArray(b, [&](std::span<const int32_t> values) {
    all.insert(all.end(), values.begin(), values.end());
    all.resize(OnLines(all.size()));
  });
  return all;
}

DeviceBatch BatchAt(const RaggedBatch& b, const int32_t* words, int64_t slot_count) {
  std::vector<const int32_t*> at;
  EachArray(b, [&](std::span<const int32_t> values) {
    at.push_back(words);
    words += OnLines(values.size());
  });
  DeviceBatch to;
  to.rows = static_cast<int64_t>(b.ids.size());
  to.ids = at[0];
  to.positions = at[1];
  to.slots = at[2];
  to.keys = {.rows = to.rows,
             .run_count = static_cast<int64_t>(b.runs.size()),
             .slot_count = slot_count,
             .first_run = at[3],
             .lengths = at[4],
             .runs = reinterpret_cast<const device::KvRun*>(at[5])};
  if (!b.experts.empty()) to.experts = at[6];
  return to;
}

std::vector<int32_t> Decoder::Impl::OwnIds(std::span<const int32_t> ids) const {
  std::vector<int32_t> own;
  for (const int32_t id : ids) {
    const int64_t here = id - first_token;
    own.push_back(here >= 0 && here < spec.vocab_size ? static_cast<int32_t>(here) : -1);
  }
  return own;
}

DeviceBatch Decoder::Impl::Upload(const RaggedBatch& given, int64_t slot_count) const {
  RaggedBatch b = given;
  std::vector<int32_t> own;
  if (!part.whole()) b.ids = own = OwnIds(given.ids);
  std::shared_ptr<device::Buffer> memory = device.Put(std::span<const int32_t>(Pack(b)));
  DeviceBatch to = BatchAt(b, static_cast<const int32_t*>(memory->data()), slot_count);
  to.memory = std::move(memory);
  to.adapted = AdaptedRowsOf(given.adapters, static_cast<int64_t>(given.ids.size()));
  return to;
}

template <typename T>
device::MultiplyArgs<T> Decoder::Impl::Product(const View& out, const View& x, int64_t matrix) const {
  const auto [w, strips, blocks] = on_device.product(matrix);
  return {.rows = x.rows,
          .n = w.rows,
          .k = w.cols,
          .x = x.As<T>(),
          .w = w.As<T>(),
          .y = out.As<T>(),
          .strips = strips,
          .blocks = blocks};
}
template <typename T>
void Decoder::Impl::Multiply(const View& out, const View& x, int64_t matrix) const {
  device.Multiply(Product<T>(out, x, matrix));
}

BlockBuffers Decoder::Impl::TakeBlock(ActivationArena& arena, int64_t rows, bool training,
                                      int64_t layer) const {
  const int64_t d = spec.hidden_size, q = spec.heads * spec.head_size, kv = spec.kv_heads * spec.head_size;
  BlockBuffers b;
  if (training) {
    b.x = arena.Take(rows, d, dtype);
    b.rstd1 = arena.Take(rows, 1, DType::kFloat32);
    b.rstd2 = arena.Take(rows, 1, DType::kFloat32);
    b.lse = arena.Take(rows, spec.heads, DType::kFloat32);
    b.k = arena.Take(rows, kv, dtype);
    b.v = arena.Take(rows, kv, dtype);
    if (spec.qk_norm) b.qkv = arena.Take(rows, qkv_width(), dtype);
    b.x_mid = arena.Take(rows, d, dtype);
  }
  b.q = arena.Take(rows, q, dtype);
  b.a = arena.Take(rows, q, dtype);
  TakeNarrow(arena, rows, training, b);
  const int64_t sparse = spec.sparse_layers();
  if (layer < 0 ? sparse < spec.layers : !spec.IsSparse(layer))
    b.gate_up = arena.Take(rows, 2 * spec.intermediate_size, dtype);
  if (layer < 0 ? sparse > 0 : spec.IsSparse(layer)) {
    const int64_t k = spec.moe.experts_per_token, pairs = rows * k,
                  shared = spec.moe.shared_intermediate_size;
    b.moe.probs = arena.Take(rows, spec.moe.experts, DType::kFloat32);
    b.moe.weights = arena.TakeArray<float>(pairs);
    b.moe.begin = arena.TakeArray<int32_t>(spec.moe.experts + 1);
    b.moe.place = arena.TakeArray<int32_t>(pairs);
    b.moe.row_of = arena.TakeArray<int32_t>(pairs);
    if (!divided()) b.moe.gate_up = arena.Take(pairs, 2 * spec.moe.intermediate_size, dtype);
    b.moe.y = arena.Take(pairs, d, dtype);
    if (shared > 0) {
      b.moe.shared_gate_up = arena.Take(rows, 2 * shared, dtype);
      b.moe.shared = arena.Take(rows, d, dtype);
      b.moe.gate = arena.TakeArray<float>(rows);
    }
  }
  return b;
}

void Decoder::Impl::TakeUnsaved(ActivationArena& arena, int64_t rows, BlockBuffers& b) const {
  const int64_t d = spec.hidden_size, sparse = spec.sparse_layers(),
                pairs = rows * spec.moe.experts_per_token;
  b.norm = arena.Take(rows, d, dtype);
  b.out = arena.Take(rows, d, dtype);
  b.sums = TakeSums(arena, rows);
  if (sparse < spec.layers) b.act = arena.Take(rows, spec.intermediate_size, dtype);
  if (sparse == 0) return;
  b.moe.x = arena.Take(pairs, d, dtype);
  if (!divided()) b.moe.act = arena.Take(pairs, spec.moe.intermediate_size, dtype);
  if (spec.moe.shared_intermediate_size > 0)
    b.moe.shared_act = arena.Take(rows, spec.moe.shared_intermediate_size, dtype);
}

View Decoder::Impl::TakeSums(ActivationArena& arena, int64_t rows) const {
  if (part.whole()) return {};
  return arena.Take(static_cast<int64_t>(over_inner.size()) * rows, spec.hidden_size, DType::kFloat32);
}

template <typename T>
void Decoder::Impl::Multiply(const View& out, const View& x, int64_t w, const Sum& sum, const View& sums,
                             const char* what) const {
  FormSum(Product<T>(out, x, w), out, sum, sums, what,
          [&](const device::MultiplyArgs<T>& a) { device.Multiply(a); });
}

template <typename T>
void Decoder::Impl::AddBias(int64_t bias, const View& x) const {
  if (bias < 0) return;
  device.AddBias(
      device::AddBiasArgs<T>{.rows = x.rows, .n = x.cols, .bias = Weight<T>(bias), .x = x.As<T>()});
}

template <typename T>
void Decoder::Impl::Embed(const DeviceBatch& batch, const View& x) {
  const auto [table, strips, blocks] = on_device.stored(embedding);
  device.GatherRows(device::GatherRowsArgs<T>{.rows = batch.rows,
                                              .d = spec.hidden_size,
                                              .table_rows = spec.vocab_size,
                                              .ids = batch.ids,
                                              .table = table.As<T>(),
                                              .out = x.As<T>(),
                                              .strips = strips,
                                              .blocks = blocks});
  if (!part.whole()) others().AddUp(device, x, "embedding");
  AdaptEmbedding<T>(batch, x);
}

template <typename T>
void Decoder::Impl::Block(int64_t layer, const DeviceBatch& batch, const BlockBuffers& b, const T* x_before,
                          const T* add, T* k, T* v, bool for_backward) {
  const LayerWeights& w = layers[static_cast<size_t>(layer)];
  const int64_t rows = batch.rows, d = spec.hidden_size;
  const auto eps = static_cast<float>(spec.rms_norm_eps);

  const device::RmsNormArgs<T> norm1{.rows = rows,
                                     .d = d,
                                     .x = x_before,
                                     .add = add,
                                     .x_out = b.x.As<T>(),
                                     .weight = Weight<T>(w.attention_norm),
                                     .eps = eps,
                                     .out = b.norm.As<T>(),
                                     .rstd = b.rstd1.As<float>()},
      norm2{.rows = rows,
            .d = d,
            .x = b.x.As<T>(),
            .add = b.out.As<T>(),
            .x_out = b.x_mid.As<T>(),
            .weight = Weight<T>(w.mlp_norm),
            .eps = eps,
            .out = b.norm.As<T>(),
            .rstd = b.rstd2.As<float>()};
  const device::RotaryArgs<T> rotary{.rows = rows,
                                     .heads = spec.heads,
                                     .kv_heads = spec.kv_heads,
                                     .head_size = spec.head_size,
                                     .table_rows = positions,
                                     .slot_count = batch.keys.slot_count,
                                     .qkv = b.qkv.As<T>(),
                                     .bias = Weight<T>(w.qkv_bias),
                                     .q_norm = Weight<T>(w.q_norm),
                                     .k_norm = Weight<T>(w.k_norm),
                                     .eps = eps,
                                     .cos = cos.view.As<float>(),
                                     .sin = sin.view.As<float>(),
                                     .positions = batch.positions,
                                     .slots = batch.slots,
                                     .q = b.q.As<T>(),
                                     .k = k,
                                     .v = v};
  const device::AttentionArgs<T> attention{.heads = spec.heads,
                                           .kv_heads = spec.kv_heads,
                                           .head_size = spec.head_size,
                                           .keys = batch.keys,
                                           .q = b.q.As<T>(),
                                           .k = k,
                                           .v = v,
                                           .out = b.a.As<T>(),
                                           .lse = b.lse.As<float>(),
                                           .work = batch.attention};
  const device::SwiGluArgs<T> glu{
      .rows = rows, .ff = spec.intermediate_size, .gate_up = b.gate_up.As<T>(), .act = b.act.As<T>()};

  // A backward reads what lies between the kernels, and an adapter changes it. Without both they may be one
  // kernel, where the residual stream goes from one array to another, so that all of its readers find it.
  const bool together = !b.rstd1 && batch.adapted.empty() && (add == nullptr || norm1.x != norm1.x_out) &&
                        norm2.x != norm2.x_out;
  if (together) {
    device.FusedMultiply(
        device::FusedMultiplyArgs<T>{.norm = norm1, .multiply = Product<T>(b.qkv, b.norm, w.qkv)});
    device.RotaryAttention(rotary, attention);
  } else {
    device.RmsNorm(norm1);
    Multiply<T>(b.qkv, b.norm, w.qkv);
    Adapt<T>(layer, kQkv, batch, b.norm, b.narrow[kQkv], b.qkv);
    device.Rotary(rotary);
    device.Attention(attention);
  }
  Multiply<T>(b.out, b.a, w.o, over_heads, b.sums, "attention");
  Adapt<T>(layer, kO, batch, b.a, b.narrow[kO], b.out);
  AddBias<T>(w.o_bias, b.out);
  const bool adapted = std::ranges::any_of(batch.adapted, [&](const AdaptedRows& rows) {
    return rows.adapter->layers[static_cast<size_t>(layer)][kGateUp].a >= 0;
  });
  const bool gated = !b.rstd1 && w.sparse < 0 && w.gate_up_bias < 0 && !adapted;
  if (!together || !gated) device.RmsNorm(norm2);
  if (w.sparse >= 0) return Experts<T>(layer, batch, b);
  const device::MultiplyArgs<T> gate_up = Product<T>(b.gate_up, b.norm, w.gate_up);
  if (gated) {
    device.FusedMultiply(device::FusedMultiplyArgs<T>{
        .norm = together ? norm2 : device::RmsNormArgs<T>{}, .multiply = gate_up, .glu = glu});
  } else {
    device.Multiply(gate_up);
    Adapt<T>(layer, kGateUp, batch, b.norm, b.narrow[kGateUp], b.gate_up);
    AddBias<T>(w.gate_up_bias, b.gate_up);
    device.SwiGlu(glu);
  }
  if (for_backward) return ToNarrow<T>(w.adapter[kDown], b.act, b.narrow[kDown]);
  Multiply<T>(b.out, b.act, w.down, over_inner, b.sums, "feed-forward");
  Adapt<T>(layer, kDown, batch, b.act, b.narrow[kDown], b.out);
  AddBias<T>(w.down_bias, b.out);
}

// Others use these.
#define TIDEPOOL_INSTANTIATE(T)                                                                     \
  template void Decoder::Impl::Block<T>(int64_t, const DeviceBatch&, const BlockBuffers&, const T*, \
                                        const T*, T*, T*, bool);                                    \
  template void Decoder::Impl::Multiply<T>(const View&, const View&, int64_t) const;
TIDEPOOL_INSTANTIATE(float)
TIDEPOOL_INSTANTIATE(BF16)
#undef TIDEPOOL_INSTANTIATE

template <typename T>
void Decoder::Impl::FinalNorm(const View& hidden, const T* x, const T* add, T* x_out, float* rstd) const {
  device.RmsNorm(device::RmsNormArgs<T>{.rows = hidden.rows,
                                        .d = spec.hidden_size,
                                        .x = x,
                                        .add = add,
                                        .x_out = x_out,
                                        .weight = Weight<T>(final_norm),
                                        .eps = static_cast<float>(spec.rms_norm_eps),
                                        .out = hidden.As<T>(),
                                        .rstd = rstd});
}

BlockBuffers Decoder::Impl::TakeInference(int64_t rows) {
  scratch.Reset();
  BlockBuffers b = TakeBlock(scratch, rows, /*training=*/false, /*layer=*/-1);
  b.x = scratch.Take(rows, spec.hidden_size, dtype);
  // The residual stream is updated in place, but of few rows, whose kernels may be one.
  b.x_mid = rows <= kRowsTogether ? scratch.Take(rows, spec.hidden_size, dtype) : b.x;
  b.qkv = scratch.Take(rows, qkv_width(), dtype);
  TakeUnsaved(scratch, rows, b);
  b.moe.chosen = scratch.TakeArray<int32_t>(routed_size(rows));
  return b;
}

template <typename T>
void Decoder::Impl::Infer(const DeviceBatch& batch, const BlockBuffers& buffers, const KvMemory& kv,
                          const View& hidden) {
  const int64_t slots = batch.keys.slot_count;
  BlockBuffers b = buffers;
  T* x = b.x_mid.As<T>();
  Embed<T>(batch, b.x);
  for (int64_t l = 0; l < spec.layers; ++l) {
    b.moe.chosen = ChosenOf(l, batch.rows, buffers.moe.chosen);
    ServedRows served{.arena = &scratch};
    b.moe.served = &served;
    const ActivationArena::Mark mark = scratch.mark();
    Block<T>(l, batch, b, l == 0 ? b.x.As<T>() : x, l == 0 ? nullptr : b.out.As<T>(),
             kv.k.Rows(l * slots, slots).As<T>(), kv.v.Rows(l * slots, slots).As<T>());
    scratch.Rewind(mark);
  }
  FinalNorm<T>(hidden, x, b.out.As<T>(), x, nullptr);
}

template void Decoder::Impl::Infer<float>(const DeviceBatch&, const BlockBuffers&, const KvMemory&,
                                          const View&);
template void Decoder::Impl::Infer<BF16>(const DeviceBatch&, const BlockBuffers&, const KvMemory&,
                                         const View&);

template <typename T>
Array Decoder::Impl::Forward(const RaggedBatch& given, const KvMemory& kv) {
  const auto rows = static_cast<int64_t>(given.ids.size());
  const int64_t width = spec.kv_heads * spec.head_size;
  for (const View& memory : {kv.k, kv.v}) {
    TP_CHECK(memory && memory.dtype == dtype && memory.cols == width && memory.rows % spec.layers == 0 &&
             memory.rows == kv.k.rows)
        << "KV memory: two arrays [layers * slots, kv_heads * head_size] of the model's dtype are expected";
  }
  if (RunsAsGraph(given)) return ForwardAsGraph<T>(given, kv);
  const std::unique_ptr<device::AttentionWork> attention =
      device.PlanAttention({given.first_run, given.lengths, given.runs}, heads());
  DeviceBatch batch = Upload(given, kv.k.rows / spec.layers);
  batch.attention = attention.get();
  const BlockBuffers b = TakeInference(rows);
  Array hidden = device.Take(rows, spec.hidden_size, dtype);
  Infer<T>(batch, b, kv, hidden.view);
  if (given.routed != nullptr) *given.routed = device.Read(b.moe.chosen, routed_size(rows));
  return hidden;
}

template <typename T>
Array Decoder::Impl::ForwardTraining(const RaggedBatch& given, SavedActivations& saved) {
  const int64_t rows = saved.rows, d = spec.hidden_size;
  ActivationArena& arena = *saved.arena;
  scratch.Reset();
  saved.attention = device.PlanAttention({given.first_run, given.lengths, given.runs}, heads());
  DeviceBatch batch = Upload(given, rows);
  batch.attention = saved.attention.get();
  int32_t* chosen = arena.TakeArray<int32_t>(routed_size(rows));
  prob_sum = scratch.TakeArray<double>(spec.moe.experts);
  device.Zero(prob_sum, spec.moe.experts * static_cast<int64_t>(sizeof(double)));
  BlockBuffers shared, unsaved;
  if (saved.recompute) shared = TakeBlock(scratch, rows, /*training=*/true, /*layer=*/-1);
  TakeUnsaved(scratch, rows, unsaved);
  const View out = unsaved.out;
  const View qkv = spec.qk_norm ? View() : scratch.Take(rows, qkv_width(), dtype);
  View x_before;  // what the pending `out` is to be added to
  for (int64_t l = 0; l < spec.layers; ++l) {
    BlockBuffers b = saved.recompute ? shared : TakeBlock(arena, rows, /*training=*/true, l);
    if (saved.recompute) b.x = arena.Take(rows, d, dtype);
    b.LendUnsaved(unsaved);
    b.moe.chosen = ChosenOf(l, rows, chosen);
    if (!spec.qk_norm) b.qkv = qkv;
    if (l == 0) Embed<T>(batch, b.x);
    ServedRows again{.arena = &scratch};  // the backward computes it anew
    const ActivationArena::Mark mark = scratch.mark();
    if (divided() && spec.IsSparse(l))
      b.moe.served = saved.recompute ? &again : &saved.served.emplace_back(ServedRows{.arena = &arena});
    Block<T>(l, batch, b, l == 0 ? b.x.As<T>() : x_before.As<T>(), l == 0 ? nullptr : out.As<T>(),
             b.k.As<T>(), b.v.As<T>());
    scratch.Rewind(mark);
    x_before = b.x_mid;
    saved.blocks.push_back(saved.recompute ? BlockBuffers{.x = b.x} : b);
  }
  saved.experts = device.Read(chosen, routed_size(rows));
  saved.prob_sum = device.Read(prob_sum, spec.moe.experts);
  prob_sum = nullptr;
  if (given.routed != nullptr) *given.routed = saved.experts;
  saved.batch = batch;
  saved.batch.experts = chosen;
  saved.x_last = arena.Take(rows, d, dtype);
  saved.rstd_last = arena.Take(rows, 1, DType::kFloat32);
  Array hidden = device.Take(rows, d, dtype);
  FinalNorm<T>(hidden.view, x_before.As<T>(), out.As<T>(), saved.x_last.As<T>(), saved.rstd_last.As<float>());
  return hidden;
}

SavedPtr Decoder::Impl::NewSaved(bool recompute) {
  SavedPtr saved(new SavedActivations());
  saved->recompute = recompute;
  if (!idle.empty()) {
    saved->arena = std::move(idle.back());
    idle.pop_back();
    saved->arena->Reset();
  } else {
    saved->arena = std::make_unique<ActivationArena>(device);
  }
  saved->owner = this;
  return saved;
}

Decoder::Decoder(const Weights& weights, std::shared_ptr<device::Device> device, const Part& part)
    : impl_(std::make_unique<Impl>(weights, std::move(device), part)) {}
Decoder::~Decoder() = default;

void Decoder::UsePeers(Peers* peers) {
  TP_CHECK(peers == nullptr || peers->part() == impl_->own) << "ranks of another part";
  impl_->peers = peers;
}
const ModelSpec& Decoder::spec() const { return impl_->spec; }
int64_t Decoder::first_token() const { return impl_->first_token; }
const device::SumTiles& Decoder::vocabulary() const { return impl_->vocabulary; }
device::Device& Decoder::device() const { return impl_->device; }

int32_t Decoder::AddAdapter(const Weights& adapter) {
  Impl& m = *impl_;
  TP_CHECK(adapter.base().get() == m.base && m.own.whole()) << "an adapter of another model, or on a part";
  const int32_t id = m.next_adapter++;
  m.adapters.emplace(id, m.FindAdapter(adapter));
  return id;
}
void Decoder::RemoveAdapter(int32_t adapter) {
  TP_CHECK(adapter != kOwnWeights && impl_->adapters.erase(adapter) == 1) << "adapter " << adapter;
}
void Decoder::WeightsChanged(int32_t adapter) {
  adapter == kOwnWeights ? weights().Upload() : impl_->adapters.at(adapter).weights->Upload();
}
DeviceWeights& Decoder::weights() { return impl_->adapter ? *impl_->adapter : impl_->on_device; }

Array Decoder::Forward(const RaggedBatch& batch, const KvMemory& kv) const {
  impl_->CheckBatch(batch);
  impl_->EnsurePositions(batch.positions);
  return impl_->dtype == DType::kFloat32 ? impl_->Forward<float>(batch, kv) : impl_->Forward<BF16>(batch, kv);
}

Array Decoder::Logits(const View& hidden, std::span<const AdapterRows> adapters) const {
  Impl& m = *impl_;
  Array out{.view = {.rows = hidden.rows, .cols = m.spec.vocab_size, .dtype = m.dtype}};
  // Fresh memory for tens of megabytes costs page faults: take the last result's if it is free.
  if (m.logits == nullptr || m.logits.use_count() > 1 || m.logits->bytes() < out.view.bytes()) {
    m.logits.reset();
    m.logits = m.device.Take(out.view.rows, out.view.cols, m.dtype).memory;
  }
  out.memory = m.logits;
  out.view.data = m.logits->data();
  const auto run = [&]<typename T>(T) {
    m.Multiply<T>(out.view, hidden, m.head);
    m.AdaptHead<T>(m.AdaptedRowsOf(adapters, hidden.rows), hidden, out.view);
  };
  m.dtype == DType::kFloat32 ? run(float{}) : run(BF16{});
  return out;
}

std::pair<Array, SavedPtr> Decoder::ForwardTraining(const RaggedBatch& batch, bool recompute) const {
  Impl& m = *impl_;
  m.CheckBatch(batch);
  TP_CHECK(batch.adapters.empty()) << "training: rows of several adapters";
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    TP_CHECK(batch.slots[i] == static_cast<int32_t>(i))
        << "training: slot " << batch.slots[i] << " in row " << i;
  }
  m.EnsurePositions(batch.positions);
  SavedPtr saved = m.NewSaved(recompute);
  saved->rows = static_cast<int64_t>(batch.ids.size());
  saved->backward = m.device.PlanAttentionBackward({batch.first_run, batch.lengths, batch.runs},
                                                   ClosedRanges(batch), m.heads());
  Array hidden = m.dtype == DType::kFloat32 ? m.ForwardTraining<float>(batch, *saved)
                                            : m.ForwardTraining<BF16>(batch, *saved);
  return {std::move(hidden), std::move(saved)};
}

void Decoder::ReleaseScratch() {
  impl_->DropGraphs();
  impl_->graphs_refused = false;
  impl_->scratch.Release();
  impl_->idle.clear();
  impl_->logits = nullptr;
  impl_->device.ReleaseScratch();
}

int64_t Decoder::held_bytes() const {
  const Impl& m = *impl_;
  int64_t sum = m.scratch.bytes() + (m.logits != nullptr ? m.logits->bytes() : 0);
  for (const auto& arena : m.idle) sum += arena->bytes();
  if (m.graphs_out) sum += m.graphs_out.view.bytes();
  for (const auto& [rows, graph] : m.graphs) sum += graph.words->bytes();
  return sum;
}
int64_t Decoder::recorded_graphs() const { return impl_->recorded_graphs; }
int64_t Decoder::refused_graphs() const { return impl_->refused_graphs; }

void SavedDeleter::operator()(SavedActivations* saved) const {
  if (saved == nullptr) return;
  saved->blocks.clear();
  saved->served.clear();
  if (saved->owner != nullptr) saved->owner->idle.push_back(std::move(saved->arena));
  delete saved;  // NOLINT: this is the deleter
}

}  // namespace tidepool::model
