#include "core/train/optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/check.h"

namespace tidepool::train {
namespace {

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TP_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else  // the dynamic linker resolves clones before a sanitizer's run time is ready
#define TP_EVERY_CPU
#endif

constexpr int64_t kBlock = 65536;  // elements a thread takes at a time; also one partial sum of the norm

struct Constants {
  float beta1, rest1, beta2, rest2, eps, decay, step, root, clip;
};

inline __attribute__((always_inline)) float Step(const Constants& c, float g, float p, float& m, float& v) {
  g *= c.clip;
  m = c.beta1 * m + c.rest1 * g;
  v = c.beta2 * v + c.rest2 * g * g;
  return p * c.decay - c.step * m / (std::sqrt(v) * c.root + c.eps);
}

TP_EVERY_CPU void UpdateWide(int64_t n, const Constants c, const float* __restrict g, float* __restrict p,
                             float* __restrict m, float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) p[i] = Step(c, g[i], p[i], m[i], v[i]);
}

TP_EVERY_CPU void UpdateNarrow(int64_t n, const Constants c, const float* __restrict g,
                               uint16_t* __restrict p, int16_t* __restrict rest, float* __restrict m,
                               float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    // Signed rest: master bits = (weight << 16) + rest.
    const uint32_t bits =
        (static_cast<uint32_t>(p[i]) << 16) + static_cast<uint32_t>(static_cast<int32_t>(rest[i]));
    const float next = Step(c, g[i], __builtin_bit_cast(float, bits), m[i], v[i]);
    const auto out = __builtin_bit_cast(uint32_t, next);
    p[i] = static_cast<uint16_t>((out + 0x8000U) >> 16);
    rest[i] = static_cast<int16_t>(out & 0xFFFFU);  // as signed: below half positive, from half on negative
  }
}

TP_EVERY_CPU double SquareSum(const float* x, int64_t n) {
  double lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int64_t l = 0; l < 16; ++l)
      lanes[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
  }
  for (int64_t l = 0; i < n; ++i, ++l) lanes[l] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

double GlobalNorm(std::span<const float> values) {
  const auto n = static_cast<int64_t>(values.size());
  std::vector<double> partial(static_cast<size_t>((n + kBlock - 1) / kBlock));
  at::parallel_for(0, static_cast<int64_t>(partial.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      partial[static_cast<size_t>(b)] =
          SquareSum(values.data() + b * kBlock, std::min(kBlock, n - b * kBlock));
    }
  });
  double sum = 0;
  for (const double p : partial) sum += p;
  return std::sqrt(sum);
}

StatusOr<std::unique_ptr<AdamW>> AdamW::Create(model::Weights& weights, const AdamWOptions& o) {
  if (!(o.beta1 >= 0 && o.beta1 < 1) || !(o.beta2 >= 0 && o.beta2 < 1)) {
    return InvalidArgument("train.beta1 and train.beta2 must be in [0, 1)");
  }
  if (!(o.eps > 0)) return InvalidArgument("train.adam_eps must be above 0");
  if (!(o.weight_decay >= 0)) return InvalidArgument("train.weight_decay must be at least 0");
  if (!(o.max_grad_norm >= 0))
    return InvalidArgument("train.max_grad_norm must be at least 0 (0: no clipping)");
  std::unique_ptr<AdamW> a(new AdamW(weights, o));
  const auto n = static_cast<size_t>(weights.elements());
  TP_ASSIGN_OR_RETURN(a->m_, device::PageBuffer::Create(n * 4));
  TP_ASSIGN_OR_RETURN(a->v_, device::PageBuffer::Create(n * 4));
  if (weights.dtype() == model::DType::kBFloat16) {
    TP_ASSIGN_OR_RETURN(a->rest_, device::PageBuffer::Create(n * 2));
  }
  TP_ASSIGN_OR_RETURN(a->counters_, device::PageBuffer::Create(sizeof(int64_t)));
  a->updates_ = a->counters_.As<int64_t>().data();
  return a;
}

UpdateResult AdamW::Update(std::span<const float> gradients, double learning_rate) {
  TP_CHECK(static_cast<int64_t>(gradients.size()) == weights_.elements())
      << gradients.size() << " gradients for " << weights_.elements() << " parameters";
  UpdateResult result;
  result.grad_norm = GlobalNorm(gradients);
  result.finite = std::isfinite(result.grad_norm);
  if (!result.finite) return result;
  const auto t = static_cast<double>(++*updates_);
  Constants c{};
  c.beta1 = static_cast<float>(options_.beta1);
  c.rest1 = static_cast<float>(1 - options_.beta1);
  c.beta2 = static_cast<float>(options_.beta2);
  c.rest2 = static_cast<float>(1 - options_.beta2);
  c.eps = static_cast<float>(options_.eps);
  c.step = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, t)));
  c.root = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t)));
  const double limit = options_.max_grad_norm;
  c.clip =
      static_cast<float>(limit > 0 && result.grad_norm > limit ? limit / (result.grad_norm + 1e-6) : 1.0);

  struct Piece {
    int64_t offset, size;
    bool matrix;
  };
  std::vector<Piece> pieces;
  for (const model::Parameter& p : weights_.layout()) {
    for (int64_t at = 0; at < p.numel(); at += kBlock) {
      pieces.push_back({p.offset + at, std::min(kBlock, p.numel() - at), p.shape.size() > 1});
    }
  }
  float* m = m_.As<float>().data();
  float* v = v_.As<float>().data();
  const bool wide = weights_.dtype() == model::DType::kFloat32;
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [at, size, matrix] = pieces[static_cast<size_t>(i)];
      Constants mine = c;
      mine.decay = static_cast<float>(1 - (matrix ? learning_rate * options_.weight_decay : 0.0));
      if (wide) {
        UpdateWide(size, mine, gradients.data() + at, reinterpret_cast<float*>(weights_.bytes().data()) + at,
                   m + at, v + at);
      } else {
        UpdateNarrow(size, mine, gradients.data() + at,
                     reinterpret_cast<uint16_t*>(weights_.bytes().data()) + at,
                     rest_.As<int16_t>().data() + at, m + at, v + at);
      }
    }
  });
  return result;
}

std::vector<NamedBytes> AdamW::State() {
  std::vector<NamedBytes> state = {{"weights", weights_.bytes()}};
  if (!rest_.bytes().empty()) state.push_back({"master_rest", rest_.bytes()});
  state.push_back({"m", m_.bytes()});
  state.push_back({"v", v_.bytes()});
  state.push_back({"updates", counters_.bytes()});
  return state;
}

float AdamW::Master(int64_t i) const {
  const std::byte* base = std::as_const(weights_).bytes().data();
  if (weights_.dtype() == model::DType::kFloat32) return reinterpret_cast<const float*>(base)[i];
  const uint32_t weight = reinterpret_cast<const uint16_t*>(base)[i];
  const auto bits = (weight << 16) +
                    static_cast<uint32_t>(static_cast<int32_t>(rest_.As<int16_t>()[static_cast<size_t>(i)]));
  return __builtin_bit_cast(float, bits);
}

}  // namespace tidepool::train
