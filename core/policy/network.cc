#include "core/policy/network.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/check.h"
#include "core/base/rng.h"
#include "core/policy/every_cpu.h"

namespace tidepool::policy {
namespace {

constexpr int64_t kLane = 16;   // outputs are padded to whole vectors
constexpr int64_t kBlock = 64;  // rows whose gradients are summed together

// The rational function of Eigen's and ATen's vectorised tanh (odd, degree 13 over 6, clamped where tanh is 1
// in float32): below 5e-7 off, and made of arithmetic alone, so it runs in vectors and is the same for every
// row.
inline __attribute__((always_inline)) float Tanh(float x) {
  x = std::min(std::max(x, -7.90531110763549805F), 7.90531110763549805F);
  const float y = x * x;
  float p = -2.76076847742355e-16F;
  p = p * y + 2.00018790482477e-13F;
  p = p * y + -8.60467152213735e-11F;
  p = p * y + 5.12229709037114e-08F;
  p = p * y + 1.48572235717979e-05F;
  p = p * y + 6.37261928875436e-04F;
  p = p * y + 4.89352455891786e-03F;
  float q = 1.19825839466702e-06F;
  q = q * y + 1.18534705686654e-04F;
  q = q * y + 2.26843463243900e-03F;
  q = q * y + 4.89352518554385e-03F;
  return x * p / q;
}

// out[r, :] = offset + sum_i in[r, i] across[i, :], one lane of outputs at a time, inputs in order.
TP_EVERY_CPU void Product(int64_t rows, int64_t in, int64_t padded, const float* __restrict x, int64_t stride,
                          const float* __restrict across, const float* __restrict offset,
                          float* __restrict out) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * stride;
    for (int64_t o = 0; o < padded; o += kLane) {
      float sum[kLane];
      for (int64_t l = 0; l < kLane; ++l) sum[l] = offset[o + l];
      for (int64_t i = 0; i < in; ++i) {
        const float a = row[i];
        const float* w = across + i * padded + o;
        for (int64_t l = 0; l < kLane; ++l) sum[l] += a * w[l];
      }
      for (int64_t l = 0; l < kLane; ++l) out[r * padded + o + l] = sum[l];
    }
  }
}

TP_EVERY_CPU void TanhAll(int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = Tanh(x[i]);
}

TP_EVERY_CPU void TanhBack(int64_t n, const float* __restrict y, float* __restrict d) {
  for (int64_t i = 0; i < n; ++i) d[i] *= 1.0F - y[i] * y[i];
}

// to[i, :] += sum_r x[r, i] d[r, :]: the gradient of `across`.
TP_EVERY_CPU void Outer(int64_t rows, int64_t in, int64_t padded, const float* __restrict x, int64_t stride,
                        const float* __restrict d, float* __restrict to) {
  for (int64_t i = 0; i < in; ++i) {
    for (int64_t o = 0; o < padded; o += kLane) {
      float sum[kLane];
      for (int64_t l = 0; l < kLane; ++l) sum[l] = to[i * padded + o + l];
      for (int64_t r = 0; r < rows; ++r) {
        const float a = x[r * stride + i];
        for (int64_t l = 0; l < kLane; ++l) sum[l] += a * d[r * padded + o + l];
      }
      for (int64_t l = 0; l < kLane; ++l) to[i * padded + o + l] = sum[l];
    }
  }
}

// into[r, i] += sum_o d[r, o] weight[o, i] with rows of the matrix as stored.
TP_EVERY_CPU void ProductBack(int64_t rows, int64_t in, int64_t out, int64_t padded,
                              const float* __restrict d, const float* __restrict weight,
                              float* __restrict into, int64_t into_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    float* to = into + r * into_stride;
    for (int64_t o = 0; o < out; ++o) {
      const float a = d[r * padded + o];
      const float* w = weight + o * in;
      for (int64_t i = 0; i < in; ++i) to[i] += a * w[i];
    }
  }
}

int64_t Padded(int64_t n) { return (n + kLane - 1) / kLane * kLane; }

// Rows of an orthonormal set times `gain`: Gram-Schmidt, twice for accuracy, on rows or columns, whichever
// are fewer.
void Orthogonal(int64_t rows, int64_t columns, double gain, Rng rng, float* out) {
  const int64_t few = std::min(rows, columns), many = std::max(rows, columns);
  std::vector<std::vector<double>> v(static_cast<size_t>(few),
                                     std::vector<double>(static_cast<size_t>(many)));
  for (auto& a : v) {
    for (double& x : a) x = rng.Normal();
  }
  for (size_t i = 0; i < v.size(); ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t j = 0; j < i; ++j) {
        double dot = 0;
        for (size_t k = 0; k < v[i].size(); ++k) dot += v[i][k] * v[j][k];
        for (size_t k = 0; k < v[i].size(); ++k) v[i][k] -= dot * v[j][k];
      }
    }
    double norm = 0;
    for (const double x : v[i]) norm += x * x;
    norm = std::sqrt(norm);
    for (double& x : v[i]) x /= norm;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[r * columns + c] =
          static_cast<float>(gain * (rows <= columns ? v[static_cast<size_t>(r)][static_cast<size_t>(c)]
                                                     : v[static_cast<size_t>(c)][static_cast<size_t>(r)]));
    }
  }
}

}  // namespace

void InitializePolicy(const PolicySpec& spec, uint64_t seed, model::Weights& weights) {
  if (spec.squashed) return InitializeLinear(seed, weights);
  const Rng root = Rng(seed).Fork("policy");
  auto* base = reinterpret_cast<float*>(weights.bytes().data());
  std::memset(base, 0, weights.bytes().size());
  for (const model::Parameter& p : weights.layout()) {
    if (p.name == "log_std") {
      std::fill_n(base + p.offset, p.numel(), static_cast<float>(spec.initial_log_std));
    } else if (p.name.ends_with(".weight")) {
      const double gain = p.name == "policy_head.weight"  ? 0.01
                          : p.name == "value_head.weight" ? 1.0
                                                          : std::sqrt(2.0);
      Orthogonal(p.shape[0], p.shape[1], gain, root.Fork(p.name), base + p.offset);
    }
  }
}

Network::Network(const PolicySpec& spec, const model::Weights& weights) : spec_(spec), weights_(weights) {
  TP_CHECK(weights.dtype() == model::DType::kFloat32);
  if (spec_.squashed) {
    device_ = std::make_unique<device::CpuDevice>();
    actor_weights_ = std::make_unique<MlpWeights>(*device_, weights, "actor.", "policy_head");
    squashed_ = std::make_unique<Mlp>(*actor_weights_);
    return;
  }
  const auto find = [&](const std::string& name) -> const model::Parameter& {
    const auto it = std::ranges::find(weights.layout(), name, &model::Parameter::name);
    TP_CHECK(it != weights.layout().end()) << name;
    return *it;
  };
  const auto dense = [&](const std::string& name, bool tanh) {
    const model::Parameter& w = find(name + ".weight");
    return Dense{.in = w.shape[1],
                 .out = w.shape[0],
                 .padded = Padded(w.shape[0]),
                 .weight = w.offset,
                 .bias = find(name + ".bias").offset,
                 .tanh = tanh,
                 .across = {},
                 .offset = {}};
  };
  for (size_t k = 0; k < spec_.hidden.size(); ++k) {
    actor_.push_back(dense("actor." + std::to_string(k), true));
    if (!spec_.shared) critic_.push_back(dense("critic." + std::to_string(k), true));
  }
  policy_ = dense("policy_head", false);
  value_ = dense("value_head", false);
  if (spec_.continuous) log_std_ = find("log_std").offset;
}

std::span<const float> Network::log_std() const {
  if (log_std_ < 0) return {};
  return {reinterpret_cast<const float*>(weights_.bytes().data()) + log_std_,
          static_cast<size_t>(spec_.actions)};
}

void Network::Arrange() {
  const auto* base = reinterpret_cast<const float*>(weights_.bytes().data());
  const auto arrange = [&](Dense& d) {
    d.across.assign(static_cast<size_t>(d.in * d.padded), 0.0F);
    d.offset.assign(static_cast<size_t>(d.padded), 0.0F);
    for (int64_t o = 0; o < d.out; ++o) {
      d.offset[static_cast<size_t>(o)] = base[d.bias + o];
      for (int64_t i = 0; i < d.in; ++i)
        d.across[static_cast<size_t>(i * d.padded + o)] = base[d.weight + o * d.in + i];
    }
  };
  for (Dense& d : actor_) arrange(d);
  for (Dense& d : critic_) arrange(d);
  arrange(policy_);
  arrange(value_);
  stale_ = false;
}

void Network::Run(const Dense& d, const float* in, int64_t stride, int64_t rows,
                  std::vector<float>& out) const {
  out.resize(static_cast<size_t>(rows * d.padded));
  at::parallel_for(0, (rows + kBlock - 1) / kBlock, 4, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * kBlock, n = std::min(rows, end * kBlock) - from;
    Product(n, d.in, d.padded, in + from * stride, stride, d.across.data(), d.offset.data(),
            out.data() + from * d.padded);
    if (d.tanh) TanhAll(n * d.padded, out.data() + from * d.padded);
  });
}

void Network::Forward(std::span<const float> observations, std::vector<float>& heads,
                      std::vector<float>& values) {
  if (squashed_ != nullptr) {
    const std::span<const float> out = squashed_->Forward(observations);
    const int64_t width = spec_.head_size(), stride = squashed_->stride();
    rows_ = static_cast<int64_t>(out.size()) / stride;
    heads.resize(static_cast<size_t>(rows_ * width));
    values.clear();
    for (int64_t r = 0; r < rows_; ++r) std::copy_n(out.data() + r * stride, width, heads.data() + r * width);
    return;
  }
  if (stale_) Arrange();
  const int64_t width = spec_.observation_size;
  TP_CHECK(static_cast<int64_t>(observations.size()) % width == 0);
  rows_ = static_cast<int64_t>(observations.size()) / width;
  observations_.assign(observations.begin(), observations.end());
  actor_out_.resize(actor_.size());
  critic_out_.resize(critic_.size());
  const auto trunk = [&](const std::vector<Dense>& layers, std::vector<std::vector<float>>& out) {
    const float* in = observations_.data();
    int64_t stride = width;
    for (size_t k = 0; k < layers.size(); ++k) {
      Run(layers[k], in, stride, rows_, out[k]);
      in = out[k].data();
      stride = layers[k].padded;
    }
  };
  trunk(actor_, actor_out_);
  trunk(critic_, critic_out_);
  const std::vector<float>& last = actor_out_.back();
  const std::vector<float>& judged = spec_.shared ? actor_out_.back() : critic_out_.back();
  Run(policy_, last.data(), actor_.back().padded, rows_, policy_out_);
  Run(value_, judged.data(), actor_.back().padded, rows_, value_out_);
  heads.resize(static_cast<size_t>(rows_ * spec_.actions));
  values.resize(static_cast<size_t>(rows_));
  for (int64_t r = 0; r < rows_; ++r) {
    std::memcpy(heads.data() + r * spec_.actions, policy_out_.data() + r * policy_.padded,
                static_cast<size_t>(spec_.actions) * sizeof(float));
    values[static_cast<size_t>(r)] = value_out_[static_cast<size_t>(r * value_.padded)];
  }
}

void Network::RunBack(const Dense& d, const float* in, int64_t stride, const std::vector<float>& out,
                      std::vector<float>& d_out, std::vector<float>* d_in, int64_t d_stride, int64_t rows,
                      std::span<float> gradients) const {
  const auto* weight = reinterpret_cast<const float*>(weights_.bytes().data()) + d.weight;
  const int64_t blocks = (rows + kBlock - 1) / kBlock;
  const size_t piece = static_cast<size_t>((d.in + 1) * d.padded);  // of the matrix, then of the bias
  std::vector<float> sums(static_cast<size_t>(blocks) * piece, 0.0F);
  at::parallel_for(0, blocks, 2, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t from = b * kBlock, n = std::min(rows, from + kBlock) - from;
      float* delta = d_out.data() + from * d.padded;
      if (d.tanh) TanhBack(n * d.padded, out.data() + from * d.padded, delta);
      float* sum = sums.data() + static_cast<size_t>(b) * piece;
      Outer(n, d.in, d.padded, in + from * stride, stride, delta, sum);
      float* bias = sum + d.in * d.padded;
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t o = 0; o < d.out; ++o) bias[o] += delta[r * d.padded + o];
      }
      if (d_in != nullptr)
        ProductBack(n, d.in, d.out, d.padded, delta, weight, d_in->data() + from * d_stride, d_stride);
    }
  });
  for (int64_t b = 0; b < blocks; ++b) {
    const float* sum = sums.data() + static_cast<size_t>(b) * piece;
    for (int64_t o = 0; o < d.out; ++o) {
      float* to = gradients.data() + d.weight + o * d.in;
      for (int64_t i = 0; i < d.in; ++i) to[i] += sum[i * d.padded + o];
      gradients[static_cast<size_t>(d.bias + o)] += sum[d.in * d.padded + o];
    }
  }
}

void Network::Backward(std::span<const float> d_heads, std::span<const float> d_values,
                       std::span<float> gradients) {
  TP_CHECK(static_cast<int64_t>(d_heads.size()) == rows_ * spec_.actions &&
           static_cast<int64_t>(d_values.size()) == rows_);
  const int64_t stride = actor_.back().padded;
  std::vector<float> by_head(static_cast<size_t>(rows_ * policy_.padded), 0.0F),
      by_value(static_cast<size_t>(rows_ * value_.padded), 0.0F);
  for (int64_t r = 0; r < rows_; ++r) {
    std::memcpy(by_head.data() + r * policy_.padded, d_heads.data() + r * spec_.actions,
                static_cast<size_t>(spec_.actions) * sizeof(float));
    by_value[static_cast<size_t>(r * value_.padded)] = d_values[static_cast<size_t>(r)];
  }
  std::vector<float> by_actor(static_cast<size_t>(rows_ * stride), 0.0F), by_critic;
  if (!spec_.shared) by_critic.assign(by_actor.size(), 0.0F);
  const std::vector<float>& judged = spec_.shared ? actor_out_.back() : critic_out_.back();
  RunBack(policy_, actor_out_.back().data(), stride, policy_out_, by_head, &by_actor, stride, rows_,
          gradients);
  RunBack(value_, judged.data(), stride, value_out_, by_value, spec_.shared ? &by_actor : &by_critic, stride,
          rows_, gradients);
  const auto trunk = [&](const std::vector<Dense>& layers, const std::vector<std::vector<float>>& out,
                         std::vector<float> delta) {
    for (size_t k = layers.size(); k-- > 0;) {
      const float* in = k == 0 ? observations_.data() : out[k - 1].data();
      const int64_t in_stride = k == 0 ? spec_.observation_size : layers[k - 1].padded;
      std::vector<float> below;
      if (k > 0) below.assign(static_cast<size_t>(rows_ * in_stride), 0.0F);
      RunBack(layers[k], in, in_stride, out[k], delta, k > 0 ? &below : nullptr, in_stride, rows_, gradients);
      delta = std::move(below);
    }
  };
  trunk(actor_, actor_out_, std::move(by_actor));
  if (!spec_.shared) trunk(critic_, critic_out_, std::move(by_critic));
}

}  // namespace tidepool::policy
