#pragma once
// A decoder in plain double loops, one sequence at a time, to compare the product's with; and small
// models and batches for tests.

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/rng.h"
#include "core/device/cpu/kernels.h"
#include "core/model/adapter.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"
#include "tests/core/model/on_device.h"

namespace tidepool::model {

inline ModelSpec TinySpec(const std::string& architecture = "llama") {
  ModelSpec s;
  s.architecture = architecture;
  s.vocab_size = 61;
  s.hidden_size = 48;
  s.intermediate_size = 72;
  s.layers = 2;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_size = 24;
  s.max_position = 64;
  s.qkv_bias = architecture == "qwen2";
  s.qk_norm = architecture == "qwen3";
  s.tie_embeddings = architecture != "qwen3";
  if (architecture == "qwen2_moe" || architecture == "qwen3_moe") {
    s.layers = 3;
    s.qkv_bias = architecture == "qwen2_moe";
    s.qk_norm = architecture == "qwen3_moe";
    s.moe.experts = 5;
    s.moe.experts_per_token = architecture == "qwen2_moe" ? 2 : 3;
    s.moe.intermediate_size = 40;
    s.moe.renormalize = architecture == "qwen3_moe";
    if (architecture == "qwen2_moe") s.moe.shared_intermediate_size = 56;
    s.moe.dense_layers = {1};
  }
  if (architecture == "llama_biased") {
    s.architecture = "llama";
    s.qkv_bias = s.o_bias = s.mlp_bias = true;
  }
  return s;
}

using Flat = std::vector<double>;  // all parameters by the layout's index

inline Flat FlatOf(const Weights& w) {
  Flat flat(static_cast<size_t>(w.elements()), 0.0);
  for (size_t i = 0; i < w.layout().size(); ++i) {
    const at::Tensor t = w.Get(static_cast<int64_t>(i)).to(at::kFloat).contiguous();
    const float* p = t.const_data_ptr<float>();
    for (int64_t k = 0; k < t.numel(); ++k) flat[static_cast<size_t>(w.layout()[i].offset + k)] = p[k];
  }
  return flat;
}

// Random norms and biases too, so that a test sees them.
inline void Randomize(Weights& w, uint64_t seed, double std) {
  w.Initialize(seed, std);
  Rng rng(seed + 1);
  for (size_t i = 0; i < w.layout().size(); ++i) {
    if (w.layout()[i].shape.size() != 1) continue;
    const double base = w.layout()[i].name.ends_with("_norm") ? 1.0 : 0.0;
    at::Tensor t = w.Get(static_cast<int64_t>(i));
    for (int64_t k = 0; k < t.numel(); ++k) t[k].fill_(base + 0.3 * rng.Normal());
  }
}

// An adapter with noise in A and B, of every target that the base may have where none is named.
inline std::unique_ptr<Weights> Adapted(std::shared_ptr<const Weights> base, uint64_t seed, int64_t rank = 3,
                                        double alpha = 5, const std::vector<AdapterTarget>& targets = {}) {
  AdapterSpec spec{.rank = rank, .alpha = alpha, .targets = targets};
  const bool sparse = base->spec().sparse_layers() > 0;
  for (const AdapterTarget target : AllOf<AdapterTarget>())
    if (targets.empty() && !(sparse ? OfDenseMlp(target) : OfExperts(target))) spec.targets.push_back(target);
  auto made = Weights::Adapt(std::move(base), spec);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  Rng rng(seed);
  for (size_t i = 0; i < (*made)->layout().size(); ++i) {
    at::Tensor t = (*made)->Get(static_cast<int64_t>(i)).flatten();
    for (int64_t k = 0; k < t.numel(); ++k) t[k].fill_(0.15 * rng.Normal());
  }
  return std::move(made).value();
}

// Of what an adapter and its base together are: embedding and head are two matrices.
inline ModelSpec MergedSpec(const Weights& w) {
  ModelSpec spec = w.spec();
  spec.tie_embeddings = false;
  return spec;
}
// The parameters of the base with those of the adapter, `low_rank`, put into its matrices, with the index of
// Layout(MergedSpec(w)).
inline Flat Merged(const Weights& w, const Flat& low_rank) {
  const std::vector<Parameter> layout = Layout(MergedSpec(w));
  Flat flat = FlatOf(*w.base());
  if (w.spec().tie_embeddings) {
    flat.resize(static_cast<size_t>(layout.back().offset), 0.0);
    flat.insert(flat.end(), flat.begin(), flat.begin() + layout.front().numel());
  }
  const auto find = [](const std::vector<Parameter>& of, const std::string& name) -> const Parameter& {
    return *std::ranges::find_if(of, [&](const Parameter& p) { return p.name == name; });
  };
  const int64_t rank = w.adapter()->rank;
  std::map<std::string, int64_t> bands;  // of the matrix, so far
  for (const auto& [layer, target] : SitesOf(w.spec(), w.adapter()->targets)) {
    const std::string at = layer < 0 ? "" : "layers." + std::to_string(layer) + ".";
    const AdapterPlace place = PlaceOf(w.spec(), target);
    const bool table = target == AdapterTarget::kEmbedding;  // W is [k, n], and so is A^T
    const int64_t a = find(w.layout(), at + place.matrix + ".a").offset +
                      bands[at + place.matrix]++ * rank * place.k,
                  b = find(w.layout(), at + Name(target) + ".b").offset,
                  matrix = find(layout, at + place.matrix).offset + place.row * place.k;
    for (int64_t e = 0; e < place.count; ++e)
      for (int64_t i = 0; i < place.n; ++i)
        for (int64_t j = 0; j < place.k; ++j)
          for (int64_t r = 0; r < rank; ++r)
            flat[static_cast<size_t>(matrix + e * place.n * place.k +
                                     (table ? j * place.n + i : i * place.k + j))] +=
                w.adapter()->scale() * low_rank[static_cast<size_t>(b + (e * rank + r) * place.n + i)] *
                low_rank[static_cast<size_t>(a + (table ? j * rank + r : (e * rank + r) * place.k + j))];
  }
  return flat;
}

// Logits [n, vocab] of every position of one sequence.
inline std::vector<Flat> ReferenceLogits(const ModelSpec& s, const Flat& w, const std::vector<int32_t>& ids) {
  const std::vector<Parameter> layout = Layout(s);
  const auto at = [&](const std::string& name) -> const double* {
    for (const Parameter& p : layout) {
      if (p.name == name) return w.data() + p.offset;
    }
    return nullptr;
  };
  const auto d = static_cast<size_t>(s.hidden_size), ff = static_cast<size_t>(s.intermediate_size);
  const auto hq = static_cast<size_t>(s.heads), hk = static_cast<size_t>(s.kv_heads),
             size = static_cast<size_t>(s.head_size);
  const auto vocab = static_cast<size_t>(s.vocab_size);
  const size_t n = ids.size();
  const auto norm = [&](const double* x, const double* weight, size_t m) {
    double sum = 0;
    for (size_t i = 0; i < m; ++i) sum += x[i] * x[i];
    const double r = 1.0 / std::sqrt(sum / static_cast<double>(m) + s.rms_norm_eps);
    Flat y(m);
    for (size_t i = 0; i < m; ++i) y[i] = x[i] * r * weight[i];
    return y;
  };
  const auto product = [](const double* matrix, const Flat& x, size_t rows) {
    Flat y(rows, 0.0);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t k = 0; k < x.size(); ++k) y[i] += matrix[i * x.size() + k] * x[k];
    }
    return y;
  };
  const auto plus = [](Flat y, const double* bias) {
    for (size_t i = 0; bias != nullptr && i < y.size(); ++i) y[i] += bias[i];
    return y;
  };
  std::vector<Flat> x(n);
  for (size_t t = 0; t < n; ++t) {
    const double* row = at("embedding") + static_cast<size_t>(ids[t]) * d;
    x[t].assign(row, row + d);
  }
  for (int64_t l = 0; l < s.layers; ++l) {
    const std::string pre = "layers." + std::to_string(l) + ".";
    std::vector<Flat> qkv(n);
    for (size_t t = 0; t < n; ++t) {
      qkv[t] =
          product(at(pre + "qkv"), norm(x[t].data(), at(pre + "attention_norm"), d), (hq + 2 * hk) * size);
      if (const double* bias = at(pre + "qkv_bias"); bias != nullptr) {
        for (size_t i = 0; i < qkv[t].size(); ++i) qkv[t][i] += bias[i];
      }
      for (size_t h = 0; h < hq + hk; ++h) {
        double* head = qkv[t].data() + h * size;
        if (const double* weight = at(pre + (h < hq ? "q_norm" : "k_norm")); weight != nullptr) {
          const Flat y = norm(head, weight, size);
          std::copy(y.begin(), y.end(), head);
        }
        for (size_t i = 0; i < size / 2; ++i) {
          const double angle = static_cast<double>(t) * std::pow(s.rope_theta, -2.0 * static_cast<double>(i) /
                                                                                   static_cast<double>(size));
          const double a = head[i], b = head[i + size / 2];
          head[i] = a * std::cos(angle) - b * std::sin(angle);
          head[i + size / 2] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    for (size_t t = 0; t < n; ++t) {
      Flat out(hq * size, 0.0);
      for (size_t h = 0; h < hq; ++h) {
        const size_t kv = h / (hq / hk);
        Flat p(t + 1);
        double top = -1e300, total = 0;
        for (size_t j = 0; j <= t; ++j) {
          double dot = 0;
          for (size_t i = 0; i < size; ++i) dot += qkv[t][h * size + i] * qkv[j][(hq + kv) * size + i];
          p[j] = dot / std::sqrt(static_cast<double>(size));
          top = std::max(top, p[j]);
        }
        for (double& v : p) total += v = std::exp(v - top);
        for (size_t j = 0; j <= t; ++j) {
          for (size_t i = 0; i < size; ++i)
            out[h * size + i] += p[j] / total * qkv[j][(hq + hk + kv) * size + i];
        }
      }
      const Flat o = plus(product(at(pre + "o"), out, d), at(pre + "o_bias"));
      for (size_t i = 0; i < d; ++i) x[t][i] += o[i];
    }
    const auto mlp = [&](const Flat& in, const double* gate_up, const double* gate_up_bias,
                         const double* down, const double* down_bias, size_t m) {
      const Flat gu = plus(product(gate_up, in, 2 * m), gate_up_bias);
      Flat act(m);
      for (size_t i = 0; i < m; ++i) act[i] = gu[i] / (1.0 + std::exp(-gu[i])) * gu[m + i];
      return plus(product(down, act, d), down_bias);
    };
    for (size_t t = 0; t < n; ++t) {
      const Flat in = norm(x[t].data(), at(pre + "mlp_norm"), d);
      Flat y(d, 0.0);
      if (!s.IsSparse(l)) {
        y = mlp(in, at(pre + "gate_up"), at(pre + "gate_up_bias"), at(pre + "down"), at(pre + "down_bias"),
                ff);
      } else {
        const auto experts = static_cast<size_t>(s.moe.experts),
                   k = static_cast<size_t>(s.moe.experts_per_token),
                   m = static_cast<size_t>(s.moe.intermediate_size);
        Flat p = product(at(pre + "router"), in, experts);
        double total = 0, kept = 0;
        for (double& v : p) total += v = std::exp(v);
        for (double& v : p) v /= total;
        std::vector<size_t> order(experts);
        for (size_t e = 0; e < experts; ++e) order[e] = e;
        std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
        for (size_t i = 0; i < k; ++i) kept += p[order[i]];
        for (size_t i = 0; i < k; ++i) {
          const size_t e = order[i];
          const Flat out = mlp(in, at(pre + "experts_gate_up") + e * 2 * m * d, nullptr,
                               at(pre + "experts_down") + e * d * m, nullptr, m);
          const double weight = s.moe.renormalize ? p[e] / kept : p[e];
          for (size_t c = 0; c < d; ++c) y[c] += weight * out[c];
        }
        if (s.moe.shared_intermediate_size > 0) {
          const Flat out = mlp(in, at(pre + "shared_gate_up"), nullptr, at(pre + "shared_down"), nullptr,
                               static_cast<size_t>(s.moe.shared_intermediate_size));
          const double gate = 1.0 / (1.0 + std::exp(-product(at(pre + "shared_gate"), in, 1)[0]));
          for (size_t c = 0; c < d; ++c) y[c] += gate * out[c];
        }
      }
      for (size_t i = 0; i < d; ++i) x[t][i] += y[i];
    }
  }
  std::vector<Flat> logits(n);
  const double* head = s.tie_embeddings ? at("embedding") : at("head");
  for (size_t t = 0; t < n; ++t) logits[t] = product(head, norm(x[t].data(), at("final_norm"), d), vocab);
  return logits;
}

inline double ReferenceLogProb(const Flat& logits, int32_t id) {
  double top = -1e300, total = 0;
  for (const double v : logits) top = std::max(top, v);
  for (const double v : logits) total += std::exp(v - top);
  return logits[static_cast<size_t>(id)] - top - std::log(total);
}

// Owns the arrays of a RaggedBatch.
struct BatchArrays {
  std::vector<int32_t> ids, positions, slots, first_run, lengths;
  std::vector<device::KvRun> runs;
  [[nodiscard]] RaggedBatch view() const { return {ids, positions, slots, first_run, lengths, runs}; }

  // Adds rows [from, to) of a sequence whose runs begin at `run`; slots follow on `next_slot`.
  void Add(const std::vector<int32_t>& tokens, size_t from, size_t to, int32_t run, int32_t next_slot) {
    for (size_t i = from; i < to; ++i) {
      ids.push_back(tokens[i]);
      positions.push_back(static_cast<int32_t>(i));
      slots.push_back(next_slot++);
      first_run.push_back(run);
      lengths.push_back(static_cast<int32_t>(i) + 1);
    }
  }
};

// Whole sequences one after the other, each with one run.
inline BatchArrays PackWhole(const std::vector<std::vector<int32_t>>& sequences) {
  BatchArrays b;
  for (const auto& s : sequences) {
    const auto start = static_cast<int32_t>(b.ids.size());
    b.runs.push_back({start, static_cast<int32_t>(s.size())});
    b.Add(s, 0, s.size(), static_cast<int32_t>(b.runs.size()) - 1, start);
  }
  return b;
}

// One prompt and its continuations: the prompt's rows stand once, a response's runs are
// [prompt, own rows].
inline BatchArrays PackShared(const std::vector<int32_t>& prompt,
                              const std::vector<std::vector<int32_t>>& responses) {
  BatchArrays b;
  const auto p = static_cast<int32_t>(prompt.size());
  b.runs.push_back({0, p});
  b.Add(prompt, 0, prompt.size(), 0, 0);
  for (const auto& r : responses) {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), r.begin(), r.end());
    const auto start = static_cast<int32_t>(b.ids.size());
    b.runs.push_back({0, p});
    b.runs.push_back({start, static_cast<int32_t>(r.size())});
    b.Add(all, prompt.size(), all.size(), static_cast<int32_t>(b.runs.size()) - 2, start);
  }
  return b;
}

inline std::vector<int32_t> RandomIds(Rng& rng, int64_t n, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.Below(vocab)));
  return ids;
}

}  // namespace tidepool::model
