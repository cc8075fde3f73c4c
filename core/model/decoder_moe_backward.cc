// Mixture-of-experts layers, backward. With o = sum_k w_k y_k + g s, p = softmax(router . x):
//   d y_k = w_k do, d w_k = do . y_k; through the weights' normalisation and the softmax to the router's
//   logits; the load-balance loss adds E f_e / n to d p_e.
#include "core/model/decoder_impl.h"

namespace tidepool::model {
namespace {

// Share of rows that chose each expert, over all sparse layers.
std::vector<double> Shares(const SavedActivations& saved, const MoeSpec& moe) {
  std::vector<double> share(static_cast<size_t>(moe.experts), 0.0);
  const double rows = static_cast<double>(saved.experts.size()) / static_cast<double>(moe.experts_per_token);
  for (const int32_t e : saved.experts) share[static_cast<size_t>(e)] += 1.0 / rows;
  return share;
}

}  // namespace

double Decoder::LoadBalanceLoss(const SavedPtr& saved) const {
  const MoeSpec& moe = impl_->spec.moe;
  if (saved->experts.empty()) return 0;
  const std::vector<double> share = Shares(*saved, moe);
  const double rows = static_cast<double>(saved->experts.size()) / static_cast<double>(moe.experts_per_token);
  double sum = 0;
  for (size_t e = 0; e < share.size(); ++e) sum += share[e] * saved->prob_sum[e] / rows;
  return static_cast<double>(moe.experts) * sum;
}

template <typename T>
void Decoder::Impl::ExpertsBackward(int64_t layer, const SavedActivations& saved, const BlockBuffers& b,
                                    const View& dx_narrow, double balance_scale, Gradients& grads) {
  const LayerWeights& w = layers[static_cast<size_t>(layer)];
  const int64_t rows = saved.rows, d = spec.hidden_size, experts = spec.moe.experts,
                k = spec.moe.experts_per_token, pairs = rows * k, m = spec.moe.intermediate_size;
  const MoeBuffers& moe = b.moe;
  const bool shared = w.shared_gate_up >= 0;

  const View dy = scratch.Take(pairs, d, dtype), dshared = shared ? scratch.Take(rows, d, dtype) : View();
  auto* dweights = scratch.TakeArray<float>(pairs);
  auto* dgate = shared ? scratch.TakeArray<float>(rows) : nullptr;
  device.CombineExpertsBackward(device::CombineExpertsBackwardArgs<T>{.rows = rows,
                                                                      .d = d,
                                                                      .k = k,
                                                                      .place = moe.place,
                                                                      .weights = moe.weights,
                                                                      .y = moe.y.As<T>(),
                                                                      .gate = moe.gate,
                                                                      .shared = moe.shared.As<T>(),
                                                                      .dout = dx_narrow.As<T>(),
                                                                      .dy = dy.As<T>(),
                                                                      .dweights = dweights,
                                                                      .dshared = dshared.As<T>(),
                                                                      .dgate = dgate});

  // Experts. dy becomes d x of the gathered rows.
  const auto back = [&](const View& dx, const View& dout, int64_t matrix) {
    auto a = OfExperts<device::GroupedMultiplyBackArgs<T>>(moe, pairs, dout.cols, dx.cols);
    const auto [of, strips, blocks] = on_device.stored(matrix);
    a.dy = dout.As<T>(), a.w = of.template As<T>(), a.dx = dx.As<T>(), a.strips = strips, a.blocks = blocks;
    device.GroupedMultiplyBack(a);
  };
  const auto back_weight = [&](const View& dout, const View& x, int64_t matrix) {
    if (adapter) return;
    auto a = OfExperts<device::GroupedMultiplyBackWeightArgs<T>>(moe, pairs, dout.cols, x.cols);
    a.dy = dout.As<T>(), a.x = x.As<T>(), a.dw = Gradient(matrix, grads);
    device.GroupedMultiplyBackWeight(a);
  };
  if (divided()) {
    DividedExpertsBackward<T>(w, dy, *moe.served, grads);
  } else {
    GatherPairs<T>(rows, moe, b.norm);
    device.SwiGlu(device::SwiGluArgs<T>{
        .rows = pairs, .ff = m, .gate_up = moe.gate_up.As<T>(), .act = moe.act.As<T>()});
    back_weight(dy, moe.act, w.experts_down);
    const View of_down = AdaptExpertsGradients<T>(layer, kExpertsDown, saved.batch, moe, moe.act, dy, grads);
    back(moe.act, dy, w.experts_down);
    AdaptExpertsBack<T>(layer, kExpertsDown, saved.batch, moe, of_down, moe.act);
    device.SwiGluBackward(device::SwiGluBackwardArgs<T>{.rows = pairs,
                                                        .ff = m,
                                                        .gate_up = moe.gate_up.As<T>(),
                                                        .dact = moe.act.As<T>(),
                                                        .dgate_up = moe.gate_up.As<T>()});
    back_weight(moe.gate_up, moe.x, w.experts_gate_up);
    const View of_up =
        AdaptExpertsGradients<T>(layer, kExpertsUp, saved.batch, moe, moe.x, moe.gate_up, grads);
    back(dy, moe.gate_up, w.experts_gate_up);
    AdaptExpertsBack<T>(layer, kExpertsUp, saved.batch, moe, of_up, dy);
  }

  // Router, in float32.
  const View dlogits = scratch.Take(rows, experts, DType::kFloat32),
             x = scratch.Take(rows, d, DType::kFloat32), router = scratch.Take(experts, d, DType::kFloat32),
             dnorm = scratch.Take(rows, d, DType::kFloat32);
  const double all_rows = static_cast<double>(saved.experts.size()) / static_cast<double>(k);
  std::vector<double> balance(static_cast<size_t>(experts), 0.0);
  if (balance_scale != 0) {
    balance = Shares(saved, spec.moe);
    for (double& v : balance) v *= balance_scale * static_cast<double>(experts) / all_rows;
  }
  auto* expert_slope = scratch.TakeArray<double>(experts);
  device.Upload(expert_slope, std::span<const double>(balance));
  device.RouteBackward({.rows = rows,
                        .experts = experts,
                        .k = k,
                        .probs = moe.probs.As<float>(),
                        .chosen = moe.chosen,
                        .weights = moe.weights,
                        .dweights = dweights,
                        .expert_slope = expert_slope,
                        .renormalize = spec.moe.renormalize,
                        .dlogits = dlogits.As<float>()});
  device.Widen(device::WidenArgs<T>{.n = rows * d, .x = b.norm.As<T>(), .out = x.As<float>()});
  device.Widen(device::WidenArgs<T>{.n = experts * d, .x = Weight<T>(w.router), .out = router.As<float>()});
  MultiplyBackWeight<float>(Gradient(w.router, grads), dlogits, x);
  MultiplyBack<float>(dnorm, dlogits, {.w = router});

  const View dnorm_narrow = b.out;
  if (shared) {
    device.GateBackward(device::GateBackwardArgs<T>{.rows = rows,
                                                    .d = d,
                                                    .gate = moe.gate,
                                                    .w = Weight<T>(w.shared_gate),
                                                    .dgate = dgate,
                                                    .dx = dnorm.As<float>()});
    MultiplyBackWeight<float>(Gradient(w.shared_gate, grads), {dgate, rows, 1, DType::kFloat32}, x);
    MlpBackward<T>(w, /*shared=*/true, moe.shared_gate_up, moe.shared_act, b.norm, dshared, dnorm_narrow,
                   /*sums=*/{}, grads);
  }
  device.SumExperts(device::SumExpertsArgs<T>{.rows = rows,
                                              .d = d,
                                              .k = k,
                                              .sum = dnorm.As<float>(),
                                              .place = moe.place,
                                              .x = dy.As<T>(),
                                              .shared = shared ? dnorm_narrow.As<T>() : nullptr,
                                              .out = dnorm_narrow.As<T>()});
}

template void Decoder::Impl::ExpertsBackward<float>(int64_t, const SavedActivations&, const BlockBuffers&,
                                                    const View&, double, Gradients&);
template void Decoder::Impl::ExpertsBackward<BF16>(int64_t, const SavedActivations&, const BlockBuffers&,
                                                   const View&, double, Gradients&);

}  // namespace tidepool::model
