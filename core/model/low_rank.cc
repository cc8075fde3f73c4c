// What a decoder computes of an adapter: t = x A^T, y += scale t B^T for each target that reads x, and back.
// Of experts the same of each one's gathered rows by its own A and B.
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/adapter.h"
#include "core/model/decoder_impl.h"

namespace tidepool::model {

AdapterOnModel Decoder::Impl::FindAdapter(const Weights& weights) const {
  AdapterOnModel found{.weights = weights.On(shared_device, own), .layers = {}};
  found.layers.resize(layers.size());
  const AdapterSpec& of = *weights.adapter();
  const std::vector<Parameter>& layout = found.weights->layout();
  std::unordered_map<std::string_view, int64_t> by_name;
  for (size_t i = 0; i < layout.size(); ++i) by_name.emplace(layout[i].name, static_cast<int64_t>(i));
  constexpr std::string_view kMatrices[kAdapted] = {"qkv",         "o", "gate_up", "down", "experts_gate_up",
                                                    "experts_down"};
  for (const auto& [layer, target] : SitesOf(spec, of.targets)) {
    const std::string at = layer < 0 ? "" : "layers." + std::to_string(layer) + ".";
    const AdapterPlace place = PlaceOf(spec, target);
    const auto which = std::ranges::find(kMatrices, std::string_view(place.matrix)) - kMatrices;
    AdapterMatrix& m = target == AdapterTarget::kEmbedding ? found.embedding
                       : target == AdapterTarget::kHead
                           ? found.head
                           : found.layers[static_cast<size_t>(layer)][static_cast<size_t>(which)];
    m.weights = found.weights.get();
    m.a = by_name.at(at + place.matrix + ".a");
    m.b[m.shape.bands] = by_name.at(at + Name(target) + ".b");
    m.shape.first[m.shape.bands] = place.row;
    m.shape.n[m.shape.bands] = place.n;
    ++m.shape.bands;
    m.shape.rank = of.rank;
    m.shape.scale = static_cast<float>(of.scale());
  }
  return found;
}

std::vector<AdaptedRows> Decoder::Impl::AdaptedRowsOf(std::span<const AdapterRows> given,
                                                      int64_t rows) const {
  const AdapterRows all{.adapter = kOwnWeights, .rows = rows};
  std::vector<AdaptedRows> adapted;
  int64_t first = 0;
  for (const AdapterRows& run : given.empty() ? std::span(&all, 1) : given) {
    const auto it = adapters.find(run.adapter);
    TP_CHECK(run.rows >= 0 && (run.adapter == kOwnWeights || it != adapters.end()))
        << run.rows << " rows of adapter " << run.adapter << ", which is not here";
    if (it != adapters.end() && run.rows > 0)
      adapted.push_back({.adapter = &it->second, .first = first, .count = run.rows});
    first += run.rows;
  }
  TP_CHECK(first == rows) << "a batch of " << rows << " rows names adapters of " << first;
  return adapted;
}

void Decoder::Impl::TakeNarrow(ActivationArena& arena, int64_t rows, bool training, BlockBuffers& b) const {
  if (training) {
    if (!adapter) return;
    for (size_t which = 0; which < kOfBatch; ++which) {
      const int64_t width = layers[0].adapter[which].shape.t_width();  // all layers are alike
      if (width > 0) b.narrow[which] = arena.Take(rows, width, dtype);
    }
    return;
  }
  int64_t most = 0;
  for (const auto& [id, of] : adapters)
    for (const AdapterMatrix& m : std::span(of.layers[0]).first(kOfBatch))
      most = std::max(most, m.shape.t_width());
  if (most > 0) std::ranges::fill(b.narrow, arena.Take(rows, most, dtype));
}

namespace {

// Products with `a` alone: one band, of all columns of x.
template <typename Args>
Args WithA(const AdapterMatrix& m, const View& x) {
  Args args;
  args.rows = x.rows, args.width = args.n[0] = x.cols, args.rank = m.shape.t_width(), args.bands = 1;
  return args;
}
template <typename Args>
Args WithB(const AdapterMatrix& m, const View& y) {
  Args args;
  static_cast<device::LowRankShape&>(args) = m.shape;
  args.rows = y.rows, args.width = y.cols;
  return args;
}

}  // namespace

template <typename T>
void Decoder::Impl::ToNarrow(const AdapterMatrix& m, const View& x, const View& narrow) const {
  if (m.a < 0) return;
  auto args = WithA<device::LowRankArgs<T>>(m, x);
  args.y = x.As<T>(), args.b[0] = LowRankOf<T>(m, m.a), args.t = narrow.As<T>();
  device.LowRank(args);
}

template <typename T>
void Decoder::Impl::Adapt(int64_t layer, Adapted which, const DeviceBatch& batch, const View& x,
                          const View& narrow, const View& y) const {
  for (const AdaptedRows& rows : batch.adapted) {
    const AdapterMatrix& m = rows.adapter->layers[static_cast<size_t>(layer)][which];
    if (m.a < 0) continue;
    const View of_y = y.Rows(rows.first, rows.count),
               t{narrow.data, rows.count, m.shape.t_width(), narrow.dtype};
    ToNarrow<T>(m, x.Rows(rows.first, rows.count), t);
    AddWide<T>(m, t, of_y);
  }
}

template <typename T>
void Decoder::Impl::AddWide(const AdapterMatrix& m, const View& narrow, const View& y) const {
  auto args = WithB<device::AddLowRankArgs<T>>(m, y);
  args.t = narrow.As<T>(), args.y = y.As<T>();
  for (int64_t i = 0; i < args.bands; ++i) args.b[i] = LowRankOf<T>(m, m.b[i]);
  device.AddLowRank(args);
}

template <typename T>
const T* Decoder::Impl::LowRankOf(const AdapterMatrix& m, int64_t index) const {
  const View all = m.weights->parameter(index);  // an expert has `rank` rows of it
  return all.As<T>() + m.expert * m.shape.rank * all.cols;
}

float* Decoder::Impl::AdapterGradient(const AdapterMatrix& m, int64_t index, Gradients& grads) const {
  const Parameter& p = adapter->layout()[static_cast<size_t>(index)];
  return grads.At(p.offset) + m.expert * m.shape.rank * p.shape[1];
}

template <typename T>
void Decoder::Impl::AddWideBack(const AdapterMatrix& m, const View& narrow, const View& dy,
                                const View& dnarrow, Gradients& grads) const {
  auto back = WithB<device::LowRankArgs<T>>(m, dy);
  auto of_b = WithB<device::LowRankBackWeightArgs<T>>(m, dy);
  back.y = of_b.y = dy.As<T>(), back.t = dnarrow.As<T>(), of_b.t = narrow.As<T>();
  for (int64_t i = 0; i < back.bands; ++i) {
    back.b[i] = LowRankOf<T>(m, m.b[i]);
    of_b.db[i] = AdapterGradient(m, m.b[i], grads);
  }
  device.LowRank(back);
  device.LowRankBackWeight(of_b);
}

template <typename T>
void Decoder::Impl::AddGradients(const AdapterMatrix& m, const View& x, const View& narrow, const View& dy,
                                 const View& dnarrow, Gradients& grads) const {
  AddWideBack<T>(m, narrow, dy, dnarrow, grads);
  auto of_a = WithA<device::LowRankBackWeightArgs<T>>(m, x);
  of_a.t = dnarrow.As<T>(), of_a.y = x.As<T>(), of_a.db[0] = AdapterGradient(m, m.a, grads);
  device.LowRankBackWeight(of_a);
}

template <typename T>
View Decoder::Impl::AdaptGradients(const AdapterMatrix& m, const View& x, const View& narrow, const View& dy,
                                   Gradients& grads) {
  if (m.a < 0) return {};
  const View dnarrow = scratch.Take(dy.rows, m.shape.t_width(), dtype);
  AddGradients<T>(m, x, narrow, dy, dnarrow, grads);
  return dnarrow;
}

template <typename T>
void Decoder::Impl::AdaptBack(const AdapterMatrix& m, const View& dnarrow, const View& dx) const {
  if (m.a < 0) return;
  auto args = WithA<device::AddLowRankArgs<T>>(m, dx);
  args.t = dnarrow.As<T>(), args.b[0] = LowRankOf<T>(m, m.a), args.y = dx.As<T>();
  device.AddLowRank(args);
}

template <typename F>
void Decoder::Impl::EachAdaptedExpert(int64_t layer, Adapted which, const DeviceBatch& batch,
                                      const MoeBuffers& moe, F each) const {
  const auto of = [&](const AdaptedRows& rows) -> const AdapterMatrix& {
    return rows.adapter->layers[static_cast<size_t>(layer)][which];
  };
  if (std::ranges::none_of(batch.adapted, [&](const AdaptedRows& rows) { return of(rows).a >= 0; })) return;
  const std::vector<int32_t> begin = device.Read(moe.begin, spec.moe.experts + 1),
                             row_of = device.Read(moe.row_of, begin.back());
  for (int64_t e = 0; e < spec.moe.experts; ++e) {
    const auto from = row_of.begin() + begin[static_cast<size_t>(e)],
               to = row_of.begin() + begin[static_cast<size_t>(e) + 1];  // ascending between them
    for (const AdaptedRows& rows : batch.adapted) {
      if (of(rows).a < 0) continue;
      const auto first = std::lower_bound(from, to, rows.first),
                 end = std::lower_bound(first, to, rows.first + rows.count);
      if (first == end) continue;
      AdapterMatrix mine = of(rows);
      mine.expert = e;
      each(mine, first - row_of.begin(), end - first);
    }
  }
}

template <typename T>
void Decoder::Impl::AdaptExperts(int64_t layer, Adapted which, const DeviceBatch& batch,
                                 const MoeBuffers& moe, const View& x, const View& y) {
  EachAdaptedExpert(layer, which, batch, moe, [&](const AdapterMatrix& m, int64_t first, int64_t rows) {
    const ActivationArena::Mark mark = scratch.mark();
    const View narrow = scratch.Take(rows, m.shape.rank, dtype);
    ToNarrow<T>(m, x.Rows(first, rows), narrow);
    AddWide<T>(m, narrow, y.Rows(first, rows));
    scratch.Rewind(mark);
  });
}

template <typename T>
View Decoder::Impl::AdaptExpertsGradients(int64_t layer, Adapted which, const DeviceBatch& batch,
                                          const MoeBuffers& moe, const View& x, const View& dy,
                                          Gradients& grads) {
  const AdapterMatrix& of = layers[static_cast<size_t>(layer)].adapter[which];
  if (of.a < 0) return {};
  const View dnarrow = scratch.Take(x.rows, of.shape.rank, dtype);
  EachAdaptedExpert(layer, which, batch, moe, [&](const AdapterMatrix& m, int64_t first, int64_t rows) {
    const ActivationArena::Mark mark = scratch.mark();
    const View narrow = scratch.Take(rows, m.shape.rank, dtype), of_x = x.Rows(first, rows);
    ToNarrow<T>(m, of_x, narrow);
    AddGradients<T>(m, of_x, narrow, dy.Rows(first, rows), dnarrow.Rows(first, rows), grads);
    scratch.Rewind(mark);
  });
  return dnarrow;
}

template <typename T>
void Decoder::Impl::AdaptExpertsBack(int64_t layer, Adapted which, const DeviceBatch& batch,
                                     const MoeBuffers& moe, const View& dnarrow, const View& dx) const {
  if (dnarrow.rows == 0) return;
  EachAdaptedExpert(layer, which, batch, moe, [&](const AdapterMatrix& m, int64_t first, int64_t rows) {
    AdaptBack<T>(m, dnarrow.Rows(first, rows), dx.Rows(first, rows));
  });
}

template <typename T>
View Decoder::Impl::EmbeddingNarrow(const AdapterMatrix& m, const int32_t* ids, int64_t rows) {
  const View table = m.weights->parameter(m.a), narrow = scratch.Take(rows, table.cols, dtype);
  device.GatherRows(device::GatherRowsArgs<T>{.rows = rows,
                                              .d = table.cols,
                                              .table_rows = table.rows,
                                              .ids = ids,
                                              .table = table.As<T>(),
                                              .out = narrow.As<T>()});
  return narrow;
}

template <typename T>
void Decoder::Impl::AdaptEmbedding(const DeviceBatch& batch, const View& x) {
  for (const AdaptedRows& rows : batch.adapted) {
    const AdapterMatrix& m = rows.adapter->embedding;
    if (m.a < 0) continue;
    const ActivationArena::Mark mark = scratch.mark();
    AddWide<T>(m, EmbeddingNarrow<T>(m, batch.ids + rows.first, rows.count), x.Rows(rows.first, rows.count));
    scratch.Rewind(mark);
  }
}

template <typename T>
void Decoder::Impl::AdaptEmbeddingGradients(const DeviceBatch& batch, const View& dx, Gradients& grads) {
  if (of_embedding.a < 0) return;
  const View narrow = EmbeddingNarrow<T>(of_embedding, batch.ids, dx.rows);
  const View dnarrow = scratch.Take(dx.rows, of_embedding.shape.rank, dtype);
  AddWideBack<T>(of_embedding, narrow, dx, dnarrow, grads);
  device.ScatterAddRows(
      device::ScatterAddRowsArgs<T>{.rows = dx.rows,
                                    .d = dnarrow.cols,
                                    .table_rows = spec.vocab_size,
                                    .ids = batch.ids,
                                    .x = dnarrow.As<T>(),
                                    .table = AdapterGradient(of_embedding, of_embedding.a, grads)});
}

template <typename T>
void Decoder::Impl::AdaptHead(const std::vector<AdaptedRows>& adapted, const View& hidden,
                              const View& logits) {
  for (const AdaptedRows& rows : adapted) {
    const AdapterMatrix& m = rows.adapter->head;
    if (m.a < 0) continue;
    const ActivationArena::Mark mark = scratch.mark();
    const View narrow = scratch.Take(rows.count, m.shape.rank, dtype);
    ToNarrow<T>(m, hidden.Rows(rows.first, rows.count), narrow);
    AddWide<T>(m, narrow, logits.Rows(rows.first, rows.count));
    scratch.Rewind(mark);
  }
}

template <typename T>
void Decoder::Impl::AdaptHeadBack(const View& hidden, const View& dlogits, const View& dhidden,
                                  Gradients& grads) {
  if (of_head.a < 0) return;
  const ActivationArena::Mark mark = scratch.mark();
  const View narrow = scratch.Take(hidden.rows, of_head.shape.rank, dtype);
  ToNarrow<T>(of_head, hidden, narrow);
  AdaptBack<T>(of_head, AdaptGradients<T>(of_head, hidden, narrow, dlogits, grads), dhidden);
  scratch.Rewind(mark);
}

#define TIDEPOOL_INSTANTIATE(T)                                                                             \
  template void Decoder::Impl::ToNarrow<T>(const AdapterMatrix&, const View&, const View&) const;           \
  template void Decoder::Impl::Adapt<T>(int64_t, Adapted, const DeviceBatch&, const View&, const View&,     \
                                        const View&) const;                                                 \
  template View Decoder::Impl::AdaptGradients<T>(const AdapterMatrix&, const View&, const View&,            \
                                                 const View&, Gradients&);                                  \
  template void Decoder::Impl::AdaptBack<T>(const AdapterMatrix&, const View&, const View&) const;          \
  template void Decoder::Impl::AdaptExperts<T>(int64_t, Adapted, const DeviceBatch&, const MoeBuffers&,     \
                                               const View&, const View&);                                   \
  template View Decoder::Impl::AdaptExpertsGradients<T>(                                                    \
      int64_t, Adapted, const DeviceBatch&, const MoeBuffers&, const View&, const View&, Gradients&);       \
  template void Decoder::Impl::AdaptExpertsBack<T>(int64_t, Adapted, const DeviceBatch&, const MoeBuffers&, \
                                                   const View&, const View&) const;                         \
  template void Decoder::Impl::AdaptEmbedding<T>(const DeviceBatch&, const View&);                          \
  template void Decoder::Impl::AdaptEmbeddingGradients<T>(const DeviceBatch&, const View&, Gradients&);     \
  template void Decoder::Impl::AdaptHead<T>(const std::vector<AdaptedRows>&, const View&, const View&);     \
  template void Decoder::Impl::AdaptHeadBack<T>(const View&, const View&, const View&, Gradients&);
TIDEPOOL_INSTANTIATE(float)
TIDEPOOL_INSTANTIATE(BF16)
#undef TIDEPOOL_INSTANTIATE

}  // namespace tidepool::model
