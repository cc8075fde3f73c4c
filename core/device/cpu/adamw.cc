#include "core/device/cpu/adamw.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/device/cpu/parallel.h"

namespace tidepool::device {
namespace {

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TP_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else  // the dynamic linker resolves clones before a sanitizer's run time is ready
#define TP_EVERY_CPU
#endif

constexpr int64_t kUnit = 1024;    // elements of an update that are never parted
constexpr int64_t kBlock = 65536;  // elements of a partial sum

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
    const uint32_t bits =
        (static_cast<uint32_t>(p[i]) << 16) + static_cast<uint32_t>(static_cast<int32_t>(rest[i]));
    const float next = Step(c, g[i], __builtin_bit_cast(float, bits), m[i], v[i]);
    const auto out = __builtin_bit_cast(uint32_t, next);
    p[i] = static_cast<uint16_t>((out + 0x8000U) >> 16);
    rest[i] = static_cast<int16_t>(out & 0xFFFFU);  // as signed: below half positive, from half on negative
  }
}

void Vectors(const AdamWArgs<float>& a, const Constants& c, int64_t at, int64_t n) {
  UpdateWide(n, c, a.gradients + at, a.weights + at, a.m + at, a.v + at);
}
void Vectors(const AdamWArgs<BF16>& a, const Constants& c, int64_t at, int64_t n) {
  UpdateNarrow(n, c, a.gradients + at, &a.weights[at].bits, a.rest + at, a.m + at, a.v + at);
}

// A compiler may round what is left over behind the last whole vector otherwise (it contracts as it likes),
// and where an element stands depends on how the optimizer is divided. So only whole vectors are updated.
template <typename T>
void Update(const AdamWArgs<T>& a, const Constants& c, int64_t at, int64_t n) {
  constexpr int64_t kVectors = 64;
  const int64_t whole = n / kVectors * kVectors, left = n - whole;
  Vectors(a, c, at, whole);
  if (left == 0) return;
  float g[kVectors] = {}, m[kVectors] = {}, v[kVectors] = {};
  T w[kVectors] = {};
  int16_t rest[kVectors] = {};
  at += whole;
  const auto size = static_cast<size_t>(left);
  std::copy_n(a.gradients + at, size, g);
  std::copy_n(a.weights + at, size, w);
  std::copy_n(a.m + at, size, m);
  std::copy_n(a.v + at, size, v);
  if (a.rest != nullptr) std::copy_n(a.rest + at, size, rest);
  AdamWArgs<T> padded = a;
  padded.gradients = g, padded.weights = w, padded.m = m, padded.v = v, padded.rest = rest;
  Vectors(padded, c, 0, kVectors);
  std::copy_n(w, size, a.weights + at);
  std::copy_n(m, size, a.m + at);
  std::copy_n(v, size, a.v + at);
  if (a.rest != nullptr) std::copy_n(rest, size, a.rest + at);
}

// Adding 1.5 * 2^52 units rounds to a multiple of the unit.
constexpr double kRound = 0x1.8p52;

TP_EVERY_CPU float Largest(const float* x, int64_t n) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t l = 0; l < 16; ++l)
      lanes[l] = std::fabs(x[i + l]) > lanes[l] ? std::fabs(x[i + l]) : lanes[l];
  for (; i < n; ++i) lanes[0] = std::fabs(x[i]) > lanes[0] ? std::fabs(x[i]) : lanes[0];
  return *std::max_element(lanes, lanes + 16);
}

// Of the squares of 16 numbers at a time: what is a multiple of each unit, from the largest on; a square has
// 48 bits, so it is exact, and so are the remainders.
TP_EVERY_CPU void BlockSum(const float* x, int64_t n, double* parts) {
  double lanes[kSquareParts][16] = {};
  // Units of which no square here has half are passed over: most blocks need four of the six.
  const double most = double{Largest(x, n)} * Largest(x, n);
  int largest = 0;
  while (largest + 1 < kSquareParts && kSquareUnits[static_cast<size_t>(largest)] / 2 > most) ++largest;
  for (int64_t i = 0; i < n; i += 16) {
    double square[16] = {};
    if (i + 16 <= n) {
      for (int64_t l = 0; l < 16; ++l)
        square[l] = static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
    } else {
      for (int64_t l = 0; i + l < n; ++l)
        square[l] = static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
    }
    for (int k = largest; k < kSquareParts; ++k) {
      const double round = kRound * kSquareUnits[static_cast<size_t>(k)];
      for (int64_t l = 0; l < 16; ++l) {
        const double whole = (square[l] + round) - round;
        lanes[k][l] += whole;
        square[l] -= whole;
      }
    }
  }
  for (int k = 0; k < kSquareParts; ++k) {
    parts[k] = 0;
    for (const double lane : lanes[k]) parts[k] += lane;
  }
}

}  // namespace

template <typename T>
void AdamW(const AdamWArgs<T>& a) {
  const double norm = std::sqrt(*a.square_sum), limit = a.max_grad_norm;
  if (!std::isfinite(norm)) return;
  const Constants c{.beta1 = a.beta1,
                    .rest1 = a.rest1,
                    .beta2 = a.beta2,
                    .rest2 = a.rest2,
                    .eps = a.eps,
                    .decay = a.decay,
                    .step = a.step,
                    .root = a.root,
                    .clip = static_cast<float>(limit > 0 && norm > limit ? limit / (norm + 1e-6) : 1.0)};
  ParallelItems((a.n + kUnit - 1) / kUnit, 12 * kUnit, [&](int64_t begin, int64_t end) {
    Update(a, c, begin * kUnit, std::min(a.n, end * kUnit) - begin * kUnit);
  });
}
template void AdamW<float>(const AdamWArgs<float>&);
template void AdamW<BF16>(const AdamWArgs<BF16>&);

void SquareSum(const SquareSumArgs& a) {
  std::vector<SquareParts> partial(static_cast<size_t>((a.n + kBlock - 1) / kBlock));
  ParallelItems(static_cast<int64_t>(partial.size()), kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      SquareParts& parts = partial[static_cast<size_t>(b)];
      BlockSum(a.x + b * kBlock, std::min(kBlock, a.n - b * kBlock), parts.data());
      Carry(parts);
    }
  });
  SquareParts all{};
  for (const SquareParts& p : partial)
    for (size_t k = 0; k < all.size(); ++k) all[k] += p[k];
  Carry(all);
  *a.sum = TotalOf(all);
  if (!std::isfinite(*a.sum)) {  // infinity has no rest; the plain sum says which it is
    *a.sum = 0;
    for (int64_t i = 0; i < a.n; ++i) *a.sum += static_cast<double>(a.x[i]) * static_cast<double>(a.x[i]);
    all = {*a.sum};
  }
  if (a.parts != nullptr) std::ranges::copy(all, a.parts);
}

}  // namespace tidepool::device
