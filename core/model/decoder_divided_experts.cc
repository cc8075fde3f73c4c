// Mixture-of-experts layers whose experts are divided between ranks (cut.h, expert parallelism): a row goes
// to the ranks that have its experts, they compute, and what they have computed comes back; backward
// likewise. So a rank's experts compute the rows of all ranks together. All ranks make each of these
// exchanges, those that have no rows of their own, too.
#include <algorithm>
#include <numeric>

#include "core/model/decoder_impl.h"

namespace tidepool::model {

using sharding::Interval;

// Everybody learns how many rows each rank has for each expert, and from that where the rows stand.
void Decoder::Impl::AgreeOnRows(const int32_t* begin, ServedRows& s) const {
  const auto experts = static_cast<size_t>(spec.moe.experts), ranks = static_cast<size_t>(own.of),
             here = static_cast<size_t>(spec.moe.experts_here()), me = static_cast<size_t>(own.rank);
  std::vector<int32_t> counts(ranks * experts);  // [rank, expert]
  if (begin != nullptr) {
    const std::vector<int32_t> mine = device.Read(begin, static_cast<int64_t>(experts) + 1);
    std::adjacent_difference(mine.begin() + 1, mine.end(),
                             counts.begin() + static_cast<int64_t>(me * experts));
  }
  std::vector<Interval> of_rank;
  const auto each = static_cast<int64_t>(experts * sizeof(int32_t));
  for (int64_t r = 0; r < own.of; ++r) of_rank.push_back({r * each, (r + 1) * each});
  others().Gather(std::as_writable_bytes(std::span(counts)), of_rank, "rows of experts");

  const auto count = [&](size_t rank, size_t expert) { return counts[rank * experts + expert]; };
  s.to.clear(), s.from.clear();
  int64_t sent = 0, came = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    int64_t to = 0, from = 0;
    for (size_t e = 0; e < here; ++e) to += count(me, rank * here + e), from += count(rank, me * here + e);
    s.to.push_back({sent, sent + to});
    s.from.push_back({came, came + from});
    sent += to, came += from;
  }
  s.rows = came;
  s.bounds.clear();
  std::vector<int32_t> first, from_zero;  // `begin`, and `bounds` of each expert from its own beginning on
  int32_t at = 0;
  for (size_t e = 0; e < here; ++e) {
    first.push_back(at);
    for (size_t rank = 0; rank <= ranks; ++rank) {
      s.bounds.push_back(at);
      from_zero.push_back(at - first.back());
      at += rank < ranks ? count(rank, me * here + e) : 0;
    }
  }
  first.push_back(at);
  std::vector<int32_t> place(static_cast<size_t>(came)), row_of(place);
  int32_t row = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t e = 0; e < here; ++e) {
      const int32_t to = s.bounds[e * (ranks + 1) + rank];
      for (int32_t i = 0; i < count(rank, me * here + e); ++i, ++row) {
        place[static_cast<size_t>(row)] = to + i;
        row_of[static_cast<size_t>(to + i)] = row;
      }
    }
  }
  for (const auto& [to, values] : {std::pair(&s.begin, &first),
                                   {&s.bounds_on_device, &from_zero},
                                   {&s.place, &place},
                                   {&s.row_of, &row_of}}) {
    if (values->empty()) continue;
    *to = s.arena->TakeArray<int32_t>(static_cast<int64_t>(values->size()));
    device.Upload(*to, std::span<const int32_t>(*values));
  }
}

namespace {

// to[r] = from[ids[r]]
template <typename T>
void Reorder(device::Device& device, const View& from, const int32_t* ids, const View& to) {
  device.GatherRows(device::GatherRowsArgs<T>{.rows = to.rows,
                                              .d = to.cols,
                                              .table_rows = from.rows,
                                              .ids = ids,
                                              .table = from.As<T>(),
                                              .out = to.As<T>()});
}

}  // namespace

template <typename T>
void Decoder::Impl::DividedExperts(const LayerWeights& w, const int32_t* begin, const View& x, const View& y,
                                   ServedRows& s) {
  const int64_t d = spec.hidden_size, m = spec.moe.intermediate_size;
  AgreeOnRows(begin, s);
  if (s.rows > 0) {
    s.x = s.arena->Take(s.rows, d, dtype);
    s.gate_up = s.arena->Take(s.rows, 2 * m, dtype);
  }
  const ActivationArena::Mark mark = scratch.mark();
  const View come = s.rows > 0 ? scratch.Take(s.rows, d, dtype) : View{.dtype = dtype};
  others().Exchange(device, x, s.to, come, s.from, "rows for experts");
  if (s.rows > 0) {
    Reorder<T>(device, come, s.row_of, s.x);
    const View act = scratch.Take(s.rows, m, dtype), out = scratch.Take(s.rows, d, dtype);
    const auto multiply = [&](const View& to, const View& from, int64_t matrix) {
      const auto [of, strips, blocks] = on_device.product(matrix);
      device.GroupedMultiply(device::GroupedMultiplyArgs<T>{.groups = spec.moe.experts_here(),
                                                            .rows = s.rows,
                                                            .n = to.cols,
                                                            .k = from.cols,
                                                            .begin = s.begin,
                                                            .x = from.As<T>(),
                                                            .w = of.template As<T>(),
                                                            .y = to.As<T>(),
                                                            .strips = strips,
                                                            .blocks = blocks});
    };
    multiply(s.gate_up, s.x, w.experts_gate_up);
    device.SwiGlu(
        device::SwiGluArgs<T>{.rows = s.rows, .ff = m, .gate_up = s.gate_up.As<T>(), .act = act.As<T>()});
    multiply(out, act, w.experts_down);
    Reorder<T>(device, out, s.place, come);
  }
  others().Exchange(device, come, s.from, y, s.to, "results of experts");
  scratch.Rewind(mark);
}

template <typename T>
void Decoder::Impl::AddWeightGradient(const View& dy, const View& x, int64_t matrix, const ServedRows& s,
                                      Gradients& grads) {
  device::GroupedMultiplyBackWeightArgs<T> a{.groups = spec.moe.experts_here(),
                                             .rows = s.rows,
                                             .n = dy.cols,
                                             .k = x.cols,
                                             .begin = s.begin,
                                             .dy = dy.As<T>(),
                                             .x = x.As<T>(),
                                             .dw = Gradient(matrix, grads)};
  if (!sums_apart) return device.GroupedMultiplyBackWeight(a);
  const int64_t each = a.n * a.k, ranks = own.of, here = a.groups;
  const ActivationArena::Mark mark = scratch.mark();
  const View sums = scratch.Take(ranks, each, DType::kFloat32);
  const auto add = [&](const float* more, float* to) {
    device.ColumnSum(device::ColumnSumArgs<float>{.rows = 1, .n = each, .x = more, .out = to});
  };
  for (int64_t e = 0; e < here; ++e) {
    const int64_t first = s.bounds[static_cast<size_t>(e * (ranks + 1))],
                  rows = s.bounds[static_cast<size_t>(e * (ranks + 1) + ranks)] - first;
    if (rows == 0) continue;
    device.Zero(sums.data, sums.bytes());
    device.GroupedMultiplyBackWeight(
        device::GroupedMultiplyBackWeightArgs<T>{.groups = ranks,
                                                 .rows = rows,
                                                 .n = a.n,
                                                 .k = a.k,
                                                 .begin = s.bounds_on_device + e * (ranks + 1),
                                                 .dy = a.dy + first * a.n,
                                                 .x = a.x + first * a.k,
                                                 .dw = sums.As<float>()});
    for (int64_t rank = 1; rank < ranks; ++rank) add(sums.As<float>() + rank * each, sums.As<float>());
    add(sums.As<float>(), a.dw + e * each);
  }
  scratch.Rewind(mark);
}

template <typename T>
void Decoder::Impl::DividedExpertsBackward(const LayerWeights& w, const View& dy, const ServedRows& s,
                                           Gradients& grads) {
  const int64_t d = spec.hidden_size, m = spec.moe.intermediate_size;
  const ActivationArena::Mark mark = scratch.mark();
  const View come = s.rows > 0 ? scratch.Take(s.rows, d, dtype) : View{.dtype = dtype};
  others().Exchange(device, dy, s.to, come, s.from, "gradients for experts");
  if (s.rows > 0) {
    const View out = scratch.Take(s.rows, d, dtype), act = scratch.Take(s.rows, m, dtype);
    Reorder<T>(device, come, s.row_of, out);
    const auto back = [&](const View& dx, const View& dout, int64_t matrix) {
      const auto [of, strips, blocks] = on_device.stored(matrix);
      device.GroupedMultiplyBack(device::GroupedMultiplyBackArgs<T>{.groups = spec.moe.experts_here(),
                                                                    .rows = s.rows,
                                                                    .n = dout.cols,
                                                                    .k = dx.cols,
                                                                    .begin = s.begin,
                                                                    .dy = dout.As<T>(),
                                                                    .w = of.template As<T>(),
                                                                    .dx = dx.As<T>(),
                                                                    .strips = strips,
                                                                    .blocks = blocks});
    };
    device.SwiGlu(
        device::SwiGluArgs<T>{.rows = s.rows, .ff = m, .gate_up = s.gate_up.As<T>(), .act = act.As<T>()});
    AddWeightGradient<T>(out, act, w.experts_down, s, grads);
    back(act, out, w.experts_down);
    device.SwiGluBackward(device::SwiGluBackwardArgs<T>{.rows = s.rows,
                                                        .ff = m,
                                                        .gate_up = s.gate_up.As<T>(),
                                                        .dact = act.As<T>(),
                                                        .dgate_up = s.gate_up.As<T>()});
    AddWeightGradient<T>(s.gate_up, s.x, w.experts_gate_up, s, grads);
    back(out, s.gate_up, w.experts_gate_up);
    Reorder<T>(device, out, s.place, come);
  }
  others().Exchange(device, come, s.from, dy, s.to, "gradients of experts' rows");
  scratch.Rewind(mark);
}

// `saved`: gets what a backward reads; null: there is none.
template <typename T>
void Decoder::Impl::ServeForward(SavedActivations* saved) {
  scratch.Reset();
  const View none{.dtype = dtype};
  for (const LayerWeights& w : layers) {
    if (w.sparse < 0) continue;
    ServedRows again{.arena = &scratch};
    const bool keeps = saved != nullptr && !saved->recompute;
    DividedExperts<T>(w, nullptr, none, none,
                      keeps ? saved->served.emplace_back(ServedRows{.arena = saved->arena.get()}) : again);
    scratch.Reset();
  }
}

template <typename T>
void Decoder::Impl::ServeBackward(SavedActivations& saved, Gradients& grads) {
  const View none{.dtype = dtype};
  for (int64_t l = spec.layers - 1; l >= 0; --l) {
    const LayerWeights& w = layers[static_cast<size_t>(l)];
    if (w.sparse < 0) continue;
    scratch.Reset();
    ServedRows again{.arena = &scratch};
    if (saved.recompute) DividedExperts<T>(w, nullptr, none, none, again);
    DividedExpertsBackward<T>(w, none, saved.recompute ? again : saved.served[static_cast<size_t>(w.sparse)],
                              grads);
  }
}

void Decoder::SumEachRankApart() { impl_->sums_apart = true; }

int64_t Decoder::Rounds(int64_t mine) const {
  if (!impl_->divided()) return mine;
  std::vector<int64_t> all(static_cast<size_t>(impl_->own.of));
  std::vector<Interval> of_rank;
  for (int64_t r = 0; r < impl_->own.of; ++r)
    of_rank.push_back({r * int64_t{sizeof(int64_t)}, (r + 1) * int64_t{sizeof(int64_t)}});
  all[static_cast<size_t>(impl_->own.rank)] = mine;
  impl_->others().Gather(std::as_writable_bytes(std::span(all)), of_rank, "rounds");
  return *std::ranges::max_element(all);
}

void Decoder::Serve() const {
  if (!impl_->divided()) return;
  impl_->dtype == DType::kFloat32 ? impl_->ServeForward<float>(nullptr) : impl_->ServeForward<BF16>(nullptr);
}

SavedPtr Decoder::ServeTraining(bool recompute) const {
  Impl& m = *impl_;
  SavedPtr saved = m.NewSaved(recompute);
  if (m.divided())
    m.dtype == DType::kFloat32 ? m.ServeForward<float>(saved.get()) : m.ServeForward<BF16>(saved.get());
  return saved;
}

void Decoder::ServeBackward(SavedPtr saved, Gradients& grads) const {
  if (!impl_->divided()) return;
  impl_->dtype == DType::kFloat32 ? impl_->ServeBackward<float>(*saved, grads)
                                  : impl_->ServeBackward<BF16>(*saved, grads);
}

#define TIDEPOOL_INSTANTIATE(T)                                                                    \
  template void Decoder::Impl::DividedExperts<T>(const LayerWeights&, const int32_t*, const View&, \
                                                 const View&, ServedRows&);                        \
  template void Decoder::Impl::DividedExpertsBackward<T>(const LayerWeights&, const View&,         \
                                                         const ServedRows&, Gradients&);
TIDEPOOL_INSTANTIATE(float)
TIDEPOOL_INSTANTIATE(BF16)
#undef TIDEPOOL_INSTANTIATE

}  // namespace tidepool::model
