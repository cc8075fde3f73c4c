// Mixture-of-experts layers, forward: router in float32, the chosen experts' MLPs, the shared expert.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/model/decoder_impl.h"

namespace tidepool::model {
namespace {

// In place, over a row; in the order of the experts.
void Softmax(float* row, int64_t n) {
  const float top = *std::max_element(row, row + n);
  float sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += row[e] = std::exp(row[e] - top);
  for (int64_t e = 0; e < n; ++e) row[e] /= sum;
}

// The k most probable, the lower id first among equals; NaN counts as least.
void Choose(const float* probs, int64_t experts, int64_t k, std::vector<int32_t>& order, int32_t* chosen) {
  order.resize(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  const auto key = [probs](int32_t e) { return std::isnan(probs[e]) ? -1.0F : probs[e]; };
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
    const float x = key(a), y = key(b);
    return x != y ? x > y : a < b;
  });
  std::copy_n(order.begin(), k, chosen);
}

}  // namespace

template <typename T>
void Decoder::Impl::Experts(int64_t layer, const RaggedBatch& batch, int64_t padded, const BlockBuffers& b) {
  const device::KernelTable<T>& kernels = device::Kernels<T>();
  const LayerWeights& w = layers[static_cast<size_t>(layer)];
  const auto param = [&](int64_t i) { return parameters[static_cast<size_t>(i)]; };
  const auto rows = static_cast<int64_t>(batch.ids.size());
  const int64_t d = spec.hidden_size, experts = spec.moe.experts, k = spec.moe.experts_per_token,
                m = spec.moe.intermediate_size;
  MoeBuffers& moe = *b.moe;
  const auto chosen = static_cast<size_t>(rows * k);

  // Router.
  auto* probs = Ptr<float>(moe.probs);
  moe.experts.resize(chosen);
  moe.weights.resize(chosen);
  const int32_t* replay = batch.experts.empty() ? nullptr : batch.experts.data() + w.sparse * rows * k;
  ParallelItems(rows, (2 * d + 20) * experts, [&](int64_t begin, int64_t end) {
    kernels.router(begin, end, d, experts, Ptr<T>(b.norm), Ptr<T>(param(w.router)), probs);
    std::vector<int32_t> order;
    for (int64_t r = begin; r < end; ++r) {
      float* p = probs + r * experts;
      Softmax(p, experts);
      int32_t* ids = moe.experts.data() + r * k;
      if (replay != nullptr && replay[r * k] >= 0) {
        std::copy_n(replay + r * k, k, ids);
      } else {
        Choose(p, experts, k, order, ids);
      }
      float* weight = moe.weights.data() + r * k;
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += weight[i] = p[ids[i]];
      if (spec.moe.renormalize) {
        for (int64_t i = 0; i < k; ++i) weight[i] /= sum;
      }
    }
  });
  if (batch.routed != nullptr)
    batch.routed->insert(batch.routed->end(), moe.experts.begin(), moe.experts.end());
  if (prob_sum != nullptr) {
    for (int64_t i = 0; i < rows * experts; ++i) (*prob_sum)[static_cast<size_t>(i % experts)] += probs[i];
  }

  // Rows that chose the same expert stand together, in their order.
  moe.begin.assign(static_cast<size_t>(experts) + 1, 0);
  std::vector<int64_t> count(static_cast<size_t>(experts), 0);
  for (const int32_t e : moe.experts) ++count[static_cast<size_t>(e)];
  for (size_t e = 0; e < count.size(); ++e) moe.begin[e + 1] = moe.begin[e] + Padded(count[e]);
  TP_CHECK(moe.begin.back() <= moe.x.size(0))
      << "experts: " << moe.begin.back() << " gathered rows of " << moe.x.size(0);
  moe.place.resize(chosen);
  std::vector<int64_t> next(moe.begin.begin(), moe.begin.end() - 1);
  for (size_t i = 0; i < chosen; ++i)
    moe.place[i] = static_cast<int32_t>(next[static_cast<size_t>(moe.experts[i])]++);
  GatherRows<T>(moe, rows, d, k, Ptr<T>(b.norm));

  for (int64_t e = 0; e < experts; ++e) {
    const int64_t from = moe.begin[static_cast<size_t>(e)], n = moe.begin[static_cast<size_t>(e) + 1] - from;
    if (n == 0) continue;
    at::Tensor gate_up = moe.gate_up.narrow(0, from, n), act = moe.act.narrow(0, from, n),
               y = moe.y.narrow(0, from, n);
    Multiply(gate_up, moe.x.narrow(0, from, n), param(w.experts_gate_up).narrow(0, e * 2 * m, 2 * m));
    ParallelItems(n, 16 * m, [&](int64_t begin, int64_t end) {
      kernels.swiglu(begin, end, m, Ptr<T>(gate_up), Ptr<T>(act));
    });
    Multiply(y, act, param(w.experts_down).narrow(0, e * d, d));
  }

  if (w.shared_gate_up >= 0) {
    const int64_t s = spec.moe.shared_intermediate_size;
    Multiply(moe.shared_gate_up, b.norm, param(w.shared_gate_up));
    ParallelItems(padded, 16 * s, [&](int64_t begin, int64_t end) {
      kernels.swiglu(begin, end, s, Ptr<T>(moe.shared_gate_up), Ptr<T>(moe.shared_act));
    });
    Multiply(moe.shared, moe.shared_act, param(w.shared_down));
    moe.gate.resize(static_cast<size_t>(rows));
    kernels.router(0, rows, d, 1, Ptr<T>(b.norm), Ptr<T>(param(w.shared_gate)), moe.gate.data());
    for (float& g : moe.gate) g = 1.0F / (1.0F + std::exp(-g));
  }
  const device::ExpertArgs<T> args{.d = d,
                           .k = k,
                           .place = moe.place.data(),
                           .weights = moe.weights.data(),
                           .y = Ptr<T>(moe.y),
                           .gate = moe.gate.data(),
                           .shared = Ptr<T>(moe.shared),
                           .out = Ptr<T>(b.out)};
  ParallelItems(rows, 2 * (k + 1) * d,
                [&](int64_t begin, int64_t end) { kernels.combine_experts(begin, end, args); });
  std::memset(static_cast<void*>(Ptr<T>(b.out) + rows * d), 0,
              static_cast<size_t>((padded - rows) * d) * sizeof(T));
}

template void Decoder::Impl::Experts<float>(int64_t, const RaggedBatch&, int64_t, const BlockBuffers&);
template void Decoder::Impl::Experts<device::BF16>(int64_t, const RaggedBatch&, int64_t, const BlockBuffers&);

}  // namespace tidepool::model
