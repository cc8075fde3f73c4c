// Mixture-of-experts layers, backward. With o = sum_k w_k y_k + g s, p = softmax(router . x):
//   d y_k = w_k do, d w_k = do . y_k; through the weights' normalisation and the softmax to the router's
//   logits; the load-balance loss adds E f_e / n to d p_e.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>

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
                                    const at::Tensor& dx_narrow, double balance_scale, Gradients& grads) {
  const device::KernelTable<T>& kernels = device::Kernels<T>();
  const LayerWeights& w = layers[static_cast<size_t>(layer)];
  const auto param = [&](int64_t i) { return parameters[static_cast<size_t>(i)]; };
  const int64_t rows = saved.rows, padded = saved.padded, d = spec.hidden_size;
  const int64_t experts = spec.moe.experts, k = spec.moe.experts_per_token;
  const at::ScalarType t = wide ? at::kFloat : at::kBFloat16;
  MoeBuffers& moe = *b.moe;
  const bool shared = w.shared_gate_up >= 0;

  const int64_t gathered = std::max<int64_t>(moe.begin.back(), 1);
  at::Tensor dy = scratch.Take({gathered, d}, t),
             dshared = shared ? scratch.Take({padded, d}, t) : at::Tensor();
  std::memset(dy.data_ptr(), 0,
              static_cast<size_t>(gathered * d) * sizeof(T));  // rows of padding add nothing
  if (shared) std::memset(dshared.data_ptr(), 0, static_cast<size_t>(padded * d) * sizeof(T));
  std::vector<float> dweights(static_cast<size_t>(rows * k)), dgate(static_cast<size_t>(rows));
  const device::ExpertArgs<T> args{.d = d,
                           .k = k,
                           .place = moe.place.data(),
                           .weights = moe.weights.data(),
                           .y = Ptr<T>(moe.y),
                           .gate = moe.gate.data(),
                           .shared = Ptr<T>(moe.shared),
                           .dout = Ptr<T>(dx_narrow),
                           .dy = Ptr<T>(dy),
                           .dweights = dweights.data(),
                           .dshared = Ptr<T>(dshared),
                           .dgate = dgate.data()};
  ParallelItems(rows, 4 * (k + 1) * d,
                [&](int64_t begin, int64_t end) { kernels.combine_experts_backward(begin, end, args); });

  // Experts. dy becomes d x of the gathered rows.
  GatherRows<T>(moe, rows, d, k, Ptr<T>(b.norm));
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t from = moe.begin[static_cast<size_t>(e)], n = moe.begin[static_cast<size_t>(e) + 1] - from;
    if (n == 0) continue;
    const at::Tensor of_rows = dy.narrow(0, from, n);
    MlpBackward<T>(w.experts_gate_up, w.experts_down, e, moe.gate_up.narrow(0, from, n),
                   moe.act.narrow(0, from, n), moe.x.narrow(0, from, n), of_rows, of_rows, grads);
  }

  // Router, in float32.
  at::Tensor dlogits = scratch.Take({padded, experts}, at::kFloat), x = scratch.Take({padded, d}, at::kFloat),
             router = scratch.Take({experts, d}, at::kFloat), dnorm = scratch.Take({padded, d}, at::kFloat);
  std::memset(dlogits.data_ptr(), 0, static_cast<size_t>(padded * experts) * sizeof(float));
  const double all_rows = static_cast<double>(saved.experts.size()) / static_cast<double>(k);
  std::vector<double> balance(static_cast<size_t>(experts), 0.0);
  if (balance_scale != 0) {
    balance = Shares(saved, spec.moe);
    for (double& v : balance) v *= balance_scale * static_cast<double>(experts) / all_rows;
  }
  ParallelItems(rows, 8 * experts, [&](int64_t begin, int64_t end) {
    std::vector<double> dp(static_cast<size_t>(experts));
    for (int64_t r = begin; r < end; ++r) {
      const float* p = Ptr<float>(moe.probs) + r * experts;
      const int32_t* ids = moe.experts.data() + r * k;
      const float* weight = moe.weights.data() + r * k;
      const float* dw = dweights.data() + r * k;
      dp = balance;
      double sum = 1, inner = 0;  // w_k = p_k / sum: d p_k = (d w_k - sum_j w_j d w_j) / sum
      if (spec.moe.renormalize) {
        sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += p[ids[i]], inner += double{weight[i]} * dw[i];
      }
      for (int64_t i = 0; i < k; ++i) dp[static_cast<size_t>(ids[i])] += (dw[i] - inner) / sum;
      double mean = 0;
      for (int64_t e = 0; e < experts; ++e) mean += p[e] * dp[static_cast<size_t>(e)];
      for (int64_t e = 0; e < experts; ++e) {
        Ptr<float>(dlogits)[r * experts + e] = static_cast<float>(p[e] * (dp[static_cast<size_t>(e)] - mean));
      }
    }
  });
  ParallelItems(padded, d, [&](int64_t begin, int64_t end) {
    kernels.widen(begin * d, end * d, Ptr<T>(b.norm), Ptr<float>(x));
  });
  kernels.widen(0, experts * d, Ptr<T>(param(w.router)), Ptr<float>(router));
  MultiplyBackWeight(Ptr<float>(grads.Get(w.router)), dlogits, x);
  MultiplyBack(dnorm, dlogits, router);

  at::Tensor dnorm_narrow = b.out;
  if (shared) {
    at::Tensor dgates = scratch.Take({padded, 1}, at::kFloat), gate = scratch.Take({1, d}, at::kFloat);
    std::memset(dgates.data_ptr(), 0, static_cast<size_t>(padded) * sizeof(float));
    for (int64_t r = 0; r < rows; ++r) {
      const float g = moe.gate[static_cast<size_t>(r)];
      Ptr<float>(dgates)[r] = dgate[static_cast<size_t>(r)] * g * (1.0F - g);
    }
    kernels.widen(0, d, Ptr<T>(param(w.shared_gate)), Ptr<float>(gate));
    MultiplyBackWeight(Ptr<float>(grads.Get(w.shared_gate)), dgates, x);
    for (int64_t i = 0; i < padded * d; ++i)
      Ptr<float>(dnorm)[i] += Ptr<float>(dgates)[i / d] * Ptr<float>(gate)[i % d];
    MlpBackward<T>(w.shared_gate_up, w.shared_down, /*expert=*/0, moe.shared_gate_up, moe.shared_act, b.norm,
                   dshared, dnorm_narrow, grads);
  }
  ParallelItems(padded, 2 * (k + 1) * d, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* sum = Ptr<float>(dnorm) + r * d;
      if (r < rows) {
        for (int64_t i = 0; i < k; ++i)
          kernels.accumulate(0, d, Ptr<T>(dy) + moe.place[static_cast<size_t>(r * k + i)] * d, sum);
      }
      if (shared) kernels.accumulate(0, d, Ptr<T>(dnorm_narrow) + r * d, sum);
      kernels.narrow(0, d, sum, Ptr<T>(dnorm_narrow) + r * d);
    }
  });
}

template void Decoder::Impl::ExpertsBackward<float>(int64_t, const SavedActivations&, const BlockBuffers&,
                                                    const at::Tensor&, double, Gradients&);
template void Decoder::Impl::ExpertsBackward<device::BF16>(int64_t, const SavedActivations&, const BlockBuffers&,
                                                   const at::Tensor&, double, Gradients&);

}  // namespace tidepool::model
