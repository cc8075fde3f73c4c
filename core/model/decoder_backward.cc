#include <algorithm>
#include <utility>

#include "core/model/decoder_impl.h"

namespace tidepool::model {

std::vector<std::pair<int64_t, int64_t>> ClosedRanges(const RaggedBatch& batch) {
  const auto rows = static_cast<int64_t>(batch.ids.size());
  std::vector<int64_t> low(static_cast<size_t>(rows)), high(static_cast<size_t>(rows));  // slots a row reads
  for (int64_t r = 0; r < rows; ++r) {
    int64_t left = batch.lengths[static_cast<size_t>(r)], lo = r, hi = r;
    for (auto i = static_cast<size_t>(batch.first_run[static_cast<size_t>(r)]); left > 0; ++i) {
      TP_CHECK(i < batch.runs.size()) << "row " << r << ": its runs end before its length";
      const device::KvRun& run = batch.runs[i];
      const int64_t used = std::min<int64_t>(left, run.count);
      if (used > 0) {
        lo = std::min<int64_t>(lo, run.start);
        hi = std::max<int64_t>(hi, run.start + used - 1);
      }
      left -= used;
    }
    TP_CHECK(lo >= 0 && hi < rows) << "row " << r << " reads slots outside the batch";
    low[static_cast<size_t>(r)] = lo;
    high[static_cast<size_t>(r)] = hi;
  }
  for (int64_t r = rows - 2; r >= 0; --r) {
    low[static_cast<size_t>(r)] = std::min(low[static_cast<size_t>(r)], low[static_cast<size_t>(r + 1)]);
  }
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t begin = 0, reach = -1;
  for (int64_t r = 0; r < rows; ++r) {
    if (r > begin && reach < r && low[static_cast<size_t>(r)] >= r) {
      ranges.emplace_back(begin, r);
      begin = r;
    }
    reach = std::max(reach, high[static_cast<size_t>(r)]);
  }
  if (rows > 0) ranges.emplace_back(begin, rows);
  return ranges;
}

namespace {

template <typename T>
device::MultiplyBackArgs<T> ProductBack(const View& dx, const View& dy, const DeviceWeights::Matrices& w) {
  return {.rows = dy.rows,
          .n = w.w.rows,
          .k = w.w.cols,
          .dy = dy.As<T>(),
          .w = w.w.As<T>(),
          .dx = dx.As<T>(),
          .strips = w.strips,
          .blocks = w.blocks};
}

}  // namespace

template <typename T>
void Decoder::Impl::MultiplyBack(const View& dx, const View& dy, const DeviceWeights::Matrices& w) const {
  device.MultiplyBack(ProductBack<T>(dx, dy, w));
}

template <typename T>
void Decoder::Impl::MultiplyBack(const View& dx, const View& dy, int64_t w, const Sum& sum, const View& sums,
                                 const char* what) const {
  FormSum(ProductBack<T>(dx, dy, on_device.stored(w)), dx, sum, sums, what,
          [&](const device::MultiplyBackArgs<T>& a) { device.MultiplyBack(a); });
}

template <typename T>
void Decoder::Impl::MultiplyBackWeight(float* dw, const View& dy, const View& x) const {
  if (dw == nullptr) return;
  device.MultiplyBackWeight(device::MultiplyBackWeightArgs<T>{
      .rows = dy.rows, .n = dy.cols, .k = x.cols, .dy = dy.As<T>(), .x = x.As<T>(), .dw = dw});
}

float* Decoder::Impl::Gradient(int64_t index, Gradients& grads) const {
  return index < 0 || adapter ? nullptr : grads.At(on_device.layout()[static_cast<size_t>(index)].offset);
}

template <typename T>
void Decoder::Impl::AddBiasGradient(int64_t index, const View& dy, Gradients& grads) const {
  if (index < 0 || adapter) return;
  device.ColumnSum(device::ColumnSumArgs<T>{
      .rows = dy.rows, .n = dy.cols, .x = dy.As<T>(), .out = Gradient(index, grads)});
}

template <typename T>
void Decoder::Impl::MlpBackward(const LayerWeights& w, bool shared, const View& gate_up, const View& act,
                                const View& x, const View& dy, const View& dx, const View& sums,
                                Gradients& grads, const View* narrow) {
  const AdapterMatrix none, &adapt_up = shared ? none : w.adapter[kGateUp],
                            &adapt_down = shared ? none : w.adapter[kDown];
  const int64_t up = shared ? w.shared_gate_up : w.gate_up, down = shared ? w.shared_down : w.down;
  device.SwiGlu(device::SwiGluArgs<T>{
      .rows = act.rows, .ff = act.cols, .gate_up = gate_up.As<T>(), .act = act.As<T>()});
  MultiplyBackWeight<T>(Gradient(down, grads), dy, act);
  const View of_down =
      AdaptGradients<T>(adapt_down, act, narrow == nullptr ? View() : narrow[kDown], dy, grads);
  MultiplyBack<T>(act, dy, on_device.stored(down));
  AdaptBack<T>(adapt_down, of_down, act);
  device.SwiGluBackward(device::SwiGluBackwardArgs<T>{.rows = act.rows,
                                                      .ff = act.cols,
                                                      .gate_up = gate_up.As<T>(),
                                                      .dact = act.As<T>(),
                                                      .dgate_up = gate_up.As<T>()});
  MultiplyBackWeight<T>(Gradient(up, grads), gate_up, x);
  if (shared) return MultiplyBack<T>(dx, gate_up, on_device.stored(up));
  const View of_up =
      AdaptGradients<T>(adapt_up, x, narrow == nullptr ? View() : narrow[kGateUp], gate_up, grads);
  MultiplyBack<T>(dx, gate_up, up, over_gate_up, sums, "feed-forward, backward");
  AdaptBack<T>(adapt_up, of_up, dx);
}

// The experts' backward is in another file.
#define TIDEPOOL_INSTANTIATE(T)                                                                          \
  template void Decoder::Impl::MlpBackward<T>(const LayerWeights&, bool, const View&, const View&,       \
                                              const View&, const View&, const View&, const View&,        \
                                              Gradients&, const View*);                                  \
  template void Decoder::Impl::MultiplyBack<T>(const View&, const View&, const DeviceWeights::Matrices&) \
      const;                                                                                             \
  template void Decoder::Impl::MultiplyBackWeight<T>(float*, const View&, const View&) const;
TIDEPOOL_INSTANTIATE(float)
TIDEPOOL_INSTANTIATE(BF16)
#undef TIDEPOOL_INSTANTIATE

template <typename T>
void Decoder::Impl::BlockBackward(int64_t layer, const SavedActivations& saved, const BlockBuffers& b,
                                  const View& dx, const View& dx_narrow, double balance_scale,
                                  Gradients& grads) {
  const LayerWeights& w = layers[static_cast<size_t>(layer)];
  const int64_t d = spec.hidden_size, rows = saved.rows;
  const auto eps = static_cast<float>(spec.rms_norm_eps);
  const View norm = b.norm, dnorm = b.out;

  const auto renorm = [&](const View& x, int64_t weight) {
    device.RmsNorm(device::RmsNormArgs<T>{
        .rows = rows, .d = d, .x = x.As<T>(), .weight = Weight<T>(weight), .eps = eps, .out = norm.As<T>()});
  };
  const auto norm_backward = [&](const View& x, const View& rstd, int64_t weight) {
    device.RmsNormBackward(device::RmsNormBackwardArgs<T>{.rows = rows,
                                                          .d = d,
                                                          .x = x.As<T>(),
                                                          .weight = Weight<T>(weight),
                                                          .rstd = rstd.As<float>(),
                                                          .dout = dnorm.As<T>(),
                                                          .dx = dx.As<float>(),
                                                          .dx_copy = dx_narrow.As<T>(),
                                                          .dweight = Gradient(weight, grads)});
  };

  // MLP. x_out = x_mid + act · down^T
  renorm(b.x_mid, w.mlp_norm);
  if (w.sparse >= 0) {
    ExpertsBackward<T>(layer, saved, b, dx_narrow, balance_scale, grads);
  } else {
    AddBiasGradient<T>(w.down_bias, dx_narrow, grads);
    MlpBackward<T>(w, /*shared=*/false, b.gate_up, b.act, norm, dx_narrow, dnorm, b.sums, grads, b.narrow);
    AddBiasGradient<T>(w.gate_up_bias, b.gate_up, grads);
  }
  norm_backward(b.x_mid, b.rstd2, w.mlp_norm);

  // Attention. x_mid = x + a · o^T
  AddBiasGradient<T>(w.o_bias, dx_narrow, grads);
  MultiplyBackWeight<T>(Gradient(w.o, grads), dx_narrow, b.a);
  const View of_o = AdaptGradients<T>(w.adapter[kO], b.a, b.narrow[kO], dx_narrow, grads);
  const View da = scratch.Take(rows, spec.heads * spec.head_size, dtype);
  MultiplyBack<T>(da, dx_narrow, on_device.stored(w.o));
  AdaptBack<T>(w.adapter[kO], of_o, da);
  const View dqkv = scratch.Take(rows, qkv_width(), dtype);
  device.AttentionBackward(device::AttentionBackwardArgs<T>{.heads = spec.heads,
                                                            .kv_heads = spec.kv_heads,
                                                            .head_size = spec.head_size,
                                                            .table_rows = positions,
                                                            .keys = saved.batch.keys,
                                                            .q = b.q.As<T>(),
                                                            .k = b.k.As<T>(),
                                                            .v = b.v.As<T>(),
                                                            .out = b.a.As<T>(),
                                                            .lse = b.lse.As<float>(),
                                                            .dout = da.As<T>(),
                                                            .cos = cos.view.As<float>(),
                                                            .sin = sin.view.As<float>(),
                                                            .positions = saved.batch.positions,
                                                            .dqkv = dqkv.As<T>(),
                                                            .work = saved.backward.get()});
  if (spec.qk_norm) {
    const int64_t tiles = head_tiles.tiles;
    const bool alone = part.whole() && tiles == 1 && !adapter;
    const View dq_norm = alone ? View{} : scratch.Take(tiles, spec.head_size, DType::kFloat32),
               dk_norm = alone ? View{} : scratch.Take(tiles, spec.head_size, DType::kFloat32);
    for (const View& of : {dq_norm, dk_norm})
      if (of) device.Zero(of.data, of.bytes());
    device.HeadNormBackward(
        device::HeadNormBackwardArgs<T>{.rows = rows,
                                        .heads = spec.heads,
                                        .kv_heads = spec.kv_heads,
                                        .head_size = spec.head_size,
                                        .qkv = b.qkv.As<T>(),
                                        .bias = Weight<T>(w.qkv_bias),
                                        .q_norm = Weight<T>(w.q_norm),
                                        .k_norm = Weight<T>(w.k_norm),
                                        .eps = eps,
                                        .dqkv = dqkv.As<T>(),
                                        .dq_norm = alone ? Gradient(w.q_norm, grads) : dq_norm.As<float>(),
                                        .dk_norm = alone ? Gradient(w.k_norm, grads) : dk_norm.As<float>(),
                                        .tiles = tiles > 1 ? &head_tiles : nullptr});
    if (!alone && !adapter) AddHeadNorms(w, dq_norm, dk_norm, grads);
  }
  AddBiasGradient<T>(w.qkv_bias, dqkv, grads);
  renorm(b.x, w.attention_norm);
  MultiplyBackWeight<T>(Gradient(w.qkv, grads), dqkv, norm);
  const View of_qkv = AdaptGradients<T>(w.adapter[kQkv], norm, b.narrow[kQkv], dqkv, grads);
  if (layer == lowest_trained && !trains_embedding()) return;  // nothing before it is trained
  MultiplyBack<T>(dnorm, dqkv, w.qkv, over_qkv, b.sums, "attention, backward");
  AdaptBack<T>(w.adapter[kQkv], of_qkv, dnorm);
  norm_backward(b.x, b.rstd1, w.attention_norm);
}

void Decoder::Impl::AddHeadNorms(const LayerWeights& w, const View& dq_norm, const View& dk_norm,
                                 Gradients& grads) const {
  const int64_t size = spec.head_size, tiles = dq_norm.rows;
  // Of each node a row: of q, then of k.
  std::vector<float> nodes;
  const std::vector<float> q = device.Read(dq_norm.As<float>(), tiles * size),
                           k = device.Read(dk_norm.As<float>(), tiles * size);
  for (const SumNode& node : cuts.nodes()[static_cast<size_t>(part.rank)]) {
    std::vector<SumNode> leaves;
    std::vector<std::vector<float>> sums;
    for (int32_t t = 0; t < node.tiles; ++t) {
      const int64_t at = (node.first - cuts.first() + t) * size;
      leaves.push_back({t, 1});
      std::vector<float>& sum = sums.emplace_back(q.begin() + at, q.begin() + at + size);
      sum.insert(sum.end(), k.begin() + at, k.begin() + at + size);
    }
    sharding::AddUpTree(leaves, [&](size_t left, size_t right) {
      for (size_t i = 0; i < sums[left].size(); ++i) sums[left][i] += sums[right][i];
    });
    nodes.insert(nodes.end(), sums[0].begin(), sums[0].end());
  }
  const Array sum = device.Take(1, 2 * size, DType::kFloat32);
  if (part.whole()) {
    device.Upload(sum.view.As<float>(), std::span<const float>(nodes));
  } else {
    const auto rows = static_cast<int64_t>(nodes.size()) / (2 * size);
    const Array mine = device.Take(rows, 2 * size, DType::kFloat32);
    device.Upload(mine.view.As<float>(), std::span<const float>(nodes));
    others().AddUpNodes(device, mine.view, cuts.nodes(), sum.view, "gradients of head norms");
  }
  for (const auto& [norm, at] : {std::pair(w.q_norm, int64_t{0}), {w.k_norm, size}})
    device.ColumnSum(device::ColumnSumArgs<float>{
        .rows = 1, .n = size, .x = sum.view.As<float>() + at, .out = Gradient(norm, grads)});
}

template <typename T>
void Decoder::Impl::Backward(SavedActivations& saved, const View& grad_hidden, double balance_scale,
                             Gradients& grads) {
  const int64_t rows = saved.rows, d = spec.hidden_size;
  TP_CHECK(grad_hidden.rows == rows && grad_hidden.cols == d && grad_hidden.dtype == dtype)
      << "backward: the gradient of the hidden rows has another shape or dtype";
  scratch.Reset();
  BlockBuffers shared;
  if (saved.recompute) shared = TakeBlock(scratch, rows, /*training=*/true, /*layer=*/-1);
  TakeUnsaved(scratch, rows, shared);
  if (saved.recompute && !spec.qk_norm) shared.qkv = scratch.Take(rows, qkv_width(), dtype);
  // The residual stream's gradient is kept in float32; products read it rounded.
  const View dx = scratch.Take(rows, d, DType::kFloat32);
  const View dx_narrow = dtype == DType::kFloat32 ? dx : scratch.Take(rows, d, dtype);
  device.Zero(dx.data, dx.bytes());
  device.RmsNormBackward(device::RmsNormBackwardArgs<T>{.rows = rows,
                                                        .d = d,
                                                        .x = saved.x_last.As<T>(),
                                                        .weight = Weight<T>(final_norm),
                                                        .rstd = saved.rstd_last.As<float>(),
                                                        .dout = grad_hidden.As<T>(),
                                                        .dx = dx.As<float>(),
                                                        .dx_copy = dx_narrow.As<T>(),
                                                        .dweight = Gradient(final_norm, grads)});
  // Elements from `final` on have all of their gradients.
  const auto begin_of = [&](int64_t index) {
    return (adapter ? *adapter : on_device).layout()[static_cast<size_t>(index)].offset;
  };
  int64_t final = (adapter ? *adapter : on_device).elements();
  const auto is_final_from = [&](int64_t index) {  // -1: nothing new is
    if (index < 0) return;
    const int64_t begin = begin_of(index);
    grads.Final(begin, std::exchange(final, begin));
  };
  is_final_from(adapter ? of_head.a : final_norm);
  const ActivationArena::Mark mark = scratch.mark();
  for (int64_t l = spec.layers - 1; l >= lowest_trained; --l) {
    scratch.Rewind(mark);
    BlockBuffers b = saved.recompute ? shared : saved.blocks[static_cast<size_t>(l)];
    ServedRows again{.arena = &scratch};
    if (saved.recompute) b.moe.served = &again;
    b.LendUnsaved(shared);
    if (saved.recompute) {
      b.x = saved.blocks[static_cast<size_t>(l)].x;
      b.moe.chosen = ChosenOf(l, rows, const_cast<int32_t*>(saved.batch.experts));
      Block<T>(l, saved.batch, b, b.x.As<T>(), nullptr, b.k.As<T>(), b.v.As<T>(), /*for_backward=*/true);
    }
    BlockBackward<T>(l, saved, b, dx, dx_narrow, balance_scale, grads);
    const LayerWeights& w = layers[static_cast<size_t>(l)];
    is_final_from(adapter ? w.first_adapted() : w.attention_norm);
  }
  if (!trains_embedding()) return;
  scratch.Rewind(mark);
  if (adapter) {
    AdaptEmbeddingGradients<T>(saved.batch, dx_narrow, grads);
    return grads.Final(0, final);
  }
  device.ScatterAddRows(device::ScatterAddRowsArgs<float>{.rows = rows,
                                                          .d = d,
                                                          .table_rows = spec.vocab_size,
                                                          .ids = saved.batch.ids,
                                                          .x = dx.As<float>(),
                                                          .table = Gradient(embedding, grads)});
  grads.Final(0, final);
}

void Decoder::Backward(SavedPtr saved, const View& grad_hidden, Gradients& grads,
                       double balance_scale) const {
  if (impl_->dtype == DType::kFloat32) {
    impl_->Backward<float>(*saved, grad_hidden, balance_scale, grads);
  } else {
    impl_->Backward<BF16>(*saved, grad_hidden, balance_scale, grads);
  }
}

Array Decoder::LogitsBackward(const View& hidden, const View& dlogits, Gradients& grads) const {
  Impl& m = *impl_;
  Array dhidden = m.device.Take(hidden.rows, hidden.cols, hidden.dtype), sums;
  if (!m.part.whole())
    sums = m.device.Take(static_cast<int64_t>(m.over_vocabulary.size()) * hidden.rows, hidden.cols,
                         DType::kFloat32);
  const auto run = [&]<typename T>(T) {
    m.MultiplyBackWeight<T>(m.Gradient(m.head, grads), dlogits, hidden);
    m.MultiplyBack<T>(dhidden.view, dlogits, m.head, m.over_vocabulary, sums.view, "head, backward");
    m.AdaptHeadBack<T>(hidden, dlogits, dhidden.view, grads);
  };
  m.dtype == DType::kFloat32 ? run(float{}) : run(BF16{});
  return dhidden;
}

}  // namespace tidepool::model
