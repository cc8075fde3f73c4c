#include "core/policy/mlp.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/check.h"
#include "core/base/rng.h"
#include "core/policy/every_cpu.h"

namespace tidepool::policy {
namespace {

using device::kStripRows;

// y = max(low, y + offset), row by row.
TP_EVERY_CPU void AddOffset(int64_t rows, int64_t n, const float* __restrict offset, float low,
                            float* __restrict y) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = y + r * n;
    for (int64_t i = 0; i < n; ++i) {
      const float v = row[i] + offset[i];
      row[i] = v < low ? low : v;  // NaN stays
    }
  }
}
TP_EVERY_CPU void ReluBack(int64_t n, const float* __restrict y, float* __restrict d) {
  for (int64_t i = 0; i < n; ++i) d[i] = y[i] > 0 ? d[i] : 0.0F;
}
TP_EVERY_CPU void AddRows(int64_t rows, int64_t n, int64_t stride, const float* __restrict d,
                          float* __restrict sum) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) sum[i] += d[r * stride + i];
  }
}
TP_EVERY_CPU void AddAll(int64_t n, const float* __restrict x, float* __restrict sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

}  // namespace

MlpWeights::MlpWeights(device::CpuDevice& device, const model::Weights& weights, const std::string& hidden,
                       const std::string& head)
    : device_(device), weights_(weights) {
  TP_CHECK(weights.dtype() == model::DType::kFloat32);
  const auto find = [&](const std::string& name) {
    const auto it = std::ranges::find(weights.layout(), name, &model::Parameter::name);
    return it == weights.layout().end() ? nullptr : &*it;
  };
  const auto add = [&](const std::string& name) {
    const model::Parameter* w = find(name + ".weight");
    if (w == nullptr) return false;
    Layer layer{.in = w->shape[1],
                .out = w->shape[0],
                .padded = device::RoundUp(w->shape[0], kStripRows),
                .weight = w->offset,
                .bias = find(name + ".bias")->offset};
    layer.strips = device_.Need(layer.padded * layer.in * 4);
    if (layer.padded != layer.out) layer.wide.resize(static_cast<size_t>(layer.padded * layer.in));
    layer.offset.resize(static_cast<size_t>(layer.padded));
    layers_.push_back(std::move(layer));
    return true;
  };
  for (int64_t k = 0; add(hidden + std::to_string(k)); ++k) {
  }
  TP_CHECK(add(head)) << head;
}

const float* MlpWeights::base() const { return reinterpret_cast<const float*>(weights_.bytes().data()); }

void MlpWeights::LayOut() {
  const float* from = base();
  for (Layer& layer : layers_) {
    std::copy_n(from + layer.bias, layer.out, layer.offset.begin());
    if (!layer.wide.empty()) std::copy_n(from + layer.weight, layer.out * layer.in, layer.wide.begin());
    device_.LayOut({.data = const_cast<float*>(layer.matrix(from)), .rows = layer.padded, .cols = layer.in},
                   layer.strips->data());
  }
  stale_ = false;
}

std::span<const float> Mlp::Forward(std::span<const float> x) {
  if (weights_.stale_) weights_.LayOut();
  TP_CHECK(static_cast<int64_t>(x.size()) % weights_.inputs() == 0);
  rows_ = static_cast<int64_t>(x.size()) / weights_.inputs();
  x_ = x.data();
  out_.resize(weights_.layers_.size());
  const float* in = x_;
  for (size_t k = 0; k < out_.size(); ++k) {
    const MlpWeights::Layer& layer = weights_.layers_[k];
    out_[k].resize(static_cast<size_t>(rows_ * layer.padded));
    weights_.device_.Multiply(
        device::MultiplyArgs<float>{.rows = rows_,
                                    .n = layer.padded,
                                    .k = layer.in,
                                    .x = in,
                                    .w = static_cast<const float*>(layer.strips->data()),
                                    .y = out_[k].data(),
                                    .strips = true});
    AddOffset(rows_, layer.padded, layer.offset.data(), k + 1 < out_.size() ? 0.0F : -INFINITY,
              out_[k].data());
    in = out_[k].data();
    if (k + 1 < out_.size() && layer.padded != layer.out) {
      // The next layer reads rows without the places that are left over.
      for (int64_t r = 1; r < rows_; ++r)
        std::memmove(out_[k].data() + r * layer.out, out_[k].data() + r * layer.padded,
                     static_cast<size_t>(layer.out) * 4);
    }
  }
  return out_.back();
}

void Mlp::Backward(std::span<const float> d_out, std::span<float> gradients, std::span<float> d_x) {
  TP_CHECK(static_cast<int64_t>(d_out.size()) == rows_ * stride());
  d_.assign(d_out.begin(), d_out.end());
  for (size_t k = out_.size(); k-- > 0;) {
    const MlpWeights::Layer& layer = weights_.layers_[k];
    const bool wide = !layer.wide.empty();
    if (k + 1 < out_.size()) {
      // d_ came without places that are left over, as the forward left the rows.
      ReluBack(rows_ * layer.out, out_[k].data(), d_.data());
      if (wide) {
        d_.resize(static_cast<size_t>(rows_ * layer.padded));
        for (int64_t r = rows_; r-- > 0;) {
          std::memmove(d_.data() + r * layer.padded, d_.data() + r * layer.out,
                       static_cast<size_t>(layer.out) * 4);
          std::fill_n(d_.data() + r * layer.padded + layer.out, layer.padded - layer.out, 0.0F);
        }
      }
    }
    const float* in = k == 0 ? x_ : out_[k - 1].data();
    if (!gradients.empty()) {
      AddRows(rows_, layer.out, layer.padded, d_.data(), gradients.data() + layer.bias);
      float* dw = gradients.data() + layer.weight;
      if (wide) {
        wide_.assign(layer.wide.size(), 0.0F);
        dw = wide_.data();
      }
      weights_.device_.MultiplyBackWeight(device::MultiplyBackWeightArgs<float>{
          .rows = rows_, .n = layer.padded, .k = layer.in, .dy = d_.data(), .x = in, .dw = dw});
      if (wide) AddAll(layer.out * layer.in, wide_.data(), gradients.data() + layer.weight);
    }
    if (k == 0 && d_x.empty()) return;
    float* dx = d_x.data();
    if (k > 0) {
      below_.resize(static_cast<size_t>(rows_ * layer.in));
      dx = below_.data();
    }
    weights_.device_.MultiplyBack(device::MultiplyBackArgs<float>{.rows = rows_,
                                                                  .n = layer.padded,
                                                                  .k = layer.in,
                                                                  .dy = d_.data(),
                                                                  .w = layer.matrix(weights_.base()),
                                                                  .dx = dx});
    if (k > 0) std::swap(d_, below_);
  }
}

void InitializeLinear(uint64_t seed, model::Weights& weights) {
  const Rng root = Rng(seed).Fork("policy");
  auto* base = reinterpret_cast<float*>(weights.bytes().data());
  std::memset(base, 0, weights.bytes().size());
  double bound = 0;  // of a layer's matrix, which its bias follows
  for (const model::Parameter& p : weights.layout()) {
    if (p.shape.size() == 2) bound = 1 / std::sqrt(static_cast<double>(p.shape[1]));
    Rng rng = root.Fork(p.name);
    for (int64_t i = 0; i < p.numel(); ++i)
      base[p.offset + i] = static_cast<float>((2 * rng.Uniform() - 1) * bound);
  }
}

}  // namespace tidepool::policy
