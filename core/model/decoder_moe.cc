// Mixture-of-experts layers, forward: router in float32, the chosen experts' MLPs, the shared expert.
#include "core/model/decoder_impl.h"

namespace tidepool::model {

template <typename T>
void Decoder::Impl::Experts(int64_t layer, const DeviceBatch& batch, const BlockBuffers& b) {
  const LayerWeights& w = layers[static_cast<size_t>(layer)];
  const int64_t rows = batch.rows, d = spec.hidden_size, experts = spec.moe.experts,
                k = spec.moe.experts_per_token, pairs = rows * k, m = spec.moe.intermediate_size;
  const MoeBuffers& moe = b.moe;

  device.Router(device::RouterArgs<T>{.rows = rows,
                                      .d = d,
                                      .experts = experts,
                                      .x = b.norm.As<T>(),
                                      .w = Weight<T>(w.router),
                                      .logits = moe.probs.As<float>()});
  device.Route({.rows = rows,
                .experts = experts,
                .k = k,
                .probs = moe.probs.As<float>(),
                .replay = batch.experts == nullptr ? nullptr : batch.experts + w.sparse * pairs,
                .renormalize = spec.moe.renormalize,
                .chosen = moe.chosen,
                .weights = moe.weights});
  if (prob_sum != nullptr)
    device.AddProbs({.rows = rows, .experts = experts, .probs = moe.probs.As<float>(), .sum = prob_sum});
  device.GroupRows({.rows = rows,
                    .experts = experts,
                    .k = k,
                    .chosen = moe.chosen,
                    .begin = moe.begin,
                    .place = moe.place,
                    .row_of = moe.row_of});
  GatherPairs<T>(rows, moe, b.norm);
  const auto multiply = [&](const View& y, const View& x, int64_t matrix) {
    auto a = OfExperts<device::GroupedMultiplyArgs<T>>(moe, pairs, y.cols, x.cols);
    const auto [w, strips, blocks] = on_device.product(matrix);
    a.x = x.As<T>(), a.w = w.template As<T>(), a.y = y.As<T>(), a.strips = strips, a.blocks = blocks;
    device.GroupedMultiply(a);
  };
  if (divided()) {
    DividedExperts<T>(w, moe.begin, moe.x, moe.y, *moe.served);
  } else {
    multiply(moe.gate_up, moe.x, w.experts_gate_up);
    AdaptExperts<T>(layer, kExpertsUp, batch, moe, moe.x, moe.gate_up);
    device.SwiGlu(device::SwiGluArgs<T>{
        .rows = pairs, .ff = m, .gate_up = moe.gate_up.As<T>(), .act = moe.act.As<T>()});
    multiply(moe.y, moe.act, w.experts_down);
    AdaptExperts<T>(layer, kExpertsDown, batch, moe, moe.act, moe.y);
  }

  if (w.shared_gate_up >= 0) {
    Multiply<T>(moe.shared_gate_up, b.norm, w.shared_gate_up);
    device.SwiGlu(device::SwiGluArgs<T>{.rows = rows,
                                        .ff = spec.moe.shared_intermediate_size,
                                        .gate_up = moe.shared_gate_up.As<T>(),
                                        .act = moe.shared_act.As<T>()});
    Multiply<T>(moe.shared, moe.shared_act, w.shared_down);
    device.Router(device::RouterArgs<T>{.rows = rows,
                                        .d = d,
                                        .experts = 1,
                                        .x = b.norm.As<T>(),
                                        .w = Weight<T>(w.shared_gate),
                                        .logits = moe.gate});
    device.Sigmoid({.n = rows, .x = moe.gate});
  }
  device.CombineExperts(device::CombineExpertsArgs<T>{.rows = rows,
                                                      .d = d,
                                                      .k = k,
                                                      .place = moe.place,
                                                      .weights = moe.weights,
                                                      .y = moe.y.As<T>(),
                                                      .gate = moe.gate,
                                                      .shared = moe.shared.As<T>(),
                                                      .out = b.out.As<T>()});
}

template <typename T>
void Decoder::Impl::GatherPairs(int64_t rows, const MoeBuffers& moe, const View& norm) const {
  device.GatherRows(device::GatherRowsArgs<T>{.rows = rows * spec.moe.experts_per_token,
                                              .d = spec.hidden_size,
                                              .table_rows = rows,
                                              .ids = moe.row_of,
                                              .table = norm.As<T>(),
                                              .out = moe.x.As<T>()});
}

#define TIDEPOOL_INSTANTIATE(T)                                                              \
  template void Decoder::Impl::Experts<T>(int64_t, const DeviceBatch&, const BlockBuffers&); \
  template void Decoder::Impl::GatherPairs<T>(int64_t, const MoeBuffers&, const View&) const;
TIDEPOOL_INSTANTIATE(float)
TIDEPOOL_INSTANTIATE(BF16)
#undef TIDEPOOL_INSTANTIATE

}  // namespace tidepool::model
