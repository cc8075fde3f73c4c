// What a decoder computes of an adapter: t = x A^T, y += scale t B^T for each target that reads x, and back.
#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/model/adapter.h"
#include "core/model/decoder_impl.h"

namespace tidepool::model {

void Decoder::Impl::FindAdapter(const AdapterSpec& of) {
  std::unordered_map<std::string_view, int64_t> by_name;
  for (size_t i = 0; i < adapter->layout().size(); ++i)
    by_name.emplace(adapter->layout()[i].name, static_cast<int64_t>(i));
  constexpr std::string_view kMatrices[kAdapted] = {"qkv", "o", "gate_up", "down"};
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::string at = "layers." + std::to_string(l) + ".";
    for (const AdapterTarget target : of.targets) {
      const AdapterPlace place = PlaceOf(spec, target);
      const auto which = std::ranges::find(kMatrices, std::string_view(place.matrix)) - kMatrices;
      AdapterMatrix& m = layers[l].adapter[which];
      m.a = by_name.at(at + place.matrix + ".a");
      m.b[m.shape.bands] = by_name.at(at + Name(target) + ".b");
      m.shape.first[m.shape.bands] = place.row;
      m.shape.n[m.shape.bands] = place.n;
      ++m.shape.bands;
      m.shape.rank = of.rank;
      m.shape.scale = static_cast<float>(of.scale());
    }
  }
}

void Decoder::Impl::TakeNarrow(ActivationArena& arena, int64_t rows, bool training, BlockBuffers& b) const {
  if (!adapter) return;
  const auto& matrices = layers[0].adapter;  // all layers are alike
  int64_t most = 0;
  for (const AdapterMatrix& m : matrices) most = std::max(most, m.shape.t_width());
  const View shared = training ? View() : arena.Take(rows, most, dtype);
  for (int which = 0; which < kAdapted; ++which) {
    const int64_t width = matrices[which].shape.t_width();
    if (width > 0)
      b.narrow[which] = training ? arena.Take(rows, width, dtype) : View{shared.data, rows, width, dtype};
  }
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
  args.y = x.As<T>(), args.b[0] = adapter->parameter(m.a).As<T>(), args.t = narrow.As<T>();
  device.LowRank(args);
}

template <typename T>
void Decoder::Impl::Adapt(const AdapterMatrix& m, const View& x, const View& narrow, const View& y) const {
  if (m.a < 0) return;
  ToNarrow<T>(m, x, narrow);
  auto args = WithB<device::AddLowRankArgs<T>>(m, y);
  args.t = narrow.As<T>(), args.y = y.As<T>();
  for (int64_t i = 0; i < args.bands; ++i) args.b[i] = adapter->parameter(m.b[i]).As<T>();
  device.AddLowRank(args);
}

template <typename T>
View Decoder::Impl::AdaptGradients(const AdapterMatrix& m, const View& x, const View& narrow, const View& dy,
                                   Gradients& grads) {
  if (m.a < 0) return {};
  const auto gradient = [&](int64_t index) {
    return grads.At(adapter->layout()[static_cast<size_t>(index)].offset);
  };
  const View dnarrow = scratch.Take(x.rows, m.shape.t_width(), dtype);
  auto back = WithB<device::LowRankArgs<T>>(m, dy);
  auto of_b = WithB<device::LowRankBackWeightArgs<T>>(m, dy);
  back.y = of_b.y = dy.As<T>(), back.t = dnarrow.As<T>(), of_b.t = narrow.As<T>();
  for (int64_t i = 0; i < back.bands; ++i) {
    back.b[i] = adapter->parameter(m.b[i]).As<T>();
    of_b.db[i] = gradient(m.b[i]);
  }
  device.LowRank(back);
  device.LowRankBackWeight(of_b);
  auto of_a = WithA<device::LowRankBackWeightArgs<T>>(m, x);
  of_a.t = dnarrow.As<T>(), of_a.y = x.As<T>(), of_a.db[0] = gradient(m.a);
  device.LowRankBackWeight(of_a);
  return dnarrow;
}

template <typename T>
void Decoder::Impl::AdaptBack(const AdapterMatrix& m, const View& dnarrow, const View& dx) const {
  if (m.a < 0) return;
  auto args = WithA<device::AddLowRankArgs<T>>(m, dx);
  args.t = dnarrow.As<T>(), args.b[0] = adapter->parameter(m.a).As<T>(), args.y = dx.As<T>();
  device.AddLowRank(args);
}

#define TIDEPOOL_INSTANTIATE(T)                                                                             \
  template void Decoder::Impl::ToNarrow<T>(const AdapterMatrix&, const View&, const View&) const;           \
  template void Decoder::Impl::Adapt<T>(const AdapterMatrix&, const View&, const View&, const View&) const; \
  template View Decoder::Impl::AdaptGradients<T>(const AdapterMatrix&, const View&, const View&,            \
                                                 const View&, Gradients&);                                  \
  template void Decoder::Impl::AdaptBack<T>(const AdapterMatrix&, const View&, const View&) const;
TIDEPOOL_INSTANTIATE(float)
TIDEPOOL_INSTANTIATE(BF16)
#undef TIDEPOOL_INSTANTIATE

}  // namespace tidepool::model
