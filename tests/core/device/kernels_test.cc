#include "core/device/cpu/kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/base/rng.h"

namespace tidepool::device {
namespace {

float ToFloat(float x) { return x; }
float ToFloat(BF16 x) {
  const uint32_t u = uint32_t{x.bits} << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
template <typename T>
T FromFloat(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    BF16 y;
    KernelsFor<BF16>(Isa::kBaseline).narrow(0, 1, &x, &y);
    return y;
  }
}
template <typename T>
std::vector<T> Noise(Rng& rng, int64_t n, double scale = 1.0) {
  std::vector<T> v;
  for (int64_t i = 0; i < n; ++i) v.push_back(FromFloat<T>(static_cast<float>(scale * rng.Normal())));
  return v;
}
std::vector<Isa> Sets() {
  std::vector<Isa> sets = {Isa::kBaseline};
  if (BestIsa() >= Isa::kAvx2) sets.push_back(Isa::kAvx2);
  if (BestIsa() >= Isa::kAvx512) sets.push_back(Isa::kAvx512);
  if (BestIsa() >= Isa::kAvx512Bf16) sets.push_back(Isa::kAvx512Bf16);
  return sets;
}
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 2e-6 : 4e-3;  // one rounding of the result

template <typename T>
class KernelsTest : public testing::Test {};
using Types = testing::Types<float, BF16>;
TYPED_TEST_SUITE(KernelsTest, Types);

TYPED_TEST(KernelsTest, RmsNormAddsThenNormalises) {
  using T = TypeParam;
  Rng rng(1);
  for (const int64_t d : {1, 15, 16, 48, 100, 576}) {
    const int64_t rows = 3;
    const auto x = Noise<T>(rng, rows * d), add = Noise<T>(rng, rows * d), w = Noise<T>(rng, d);
    for (const Isa isa : Sets()) {
      std::vector<T> sum(x.size()), out(x.size());
      std::vector<float> rstd(rows);
      KernelsFor<T>(isa).rms_norm(0, rows,
                                  {.d = d,
                                   .x = x.data(),
                                   .add = add.data(),
                                   .x_out = sum.data(),
                                   .weight = w.data(),
                                   .eps = 1e-5F,
                                   .out = out.data(),
                                   .rstd = rstd.data()});
      for (int64_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (int64_t c = 0; c < d; ++c) {
          const auto i = static_cast<size_t>(r * d + c);
          ASSERT_EQ(ToFloat(sum[i]), ToFloat(FromFloat<T>(ToFloat(x[i]) + ToFloat(add[i]))));
          squares += double{ToFloat(sum[i])} * ToFloat(sum[i]);
        }
        const double want = 1 / std::sqrt(squares / static_cast<double>(d) + 1e-5);
        ASSERT_NEAR(rstd[static_cast<size_t>(r)], want, 1e-6 * want);
        for (int64_t c = 0; c < d; ++c) {
          const auto i = static_cast<size_t>(r * d + c);
          const double y = ToFloat(sum[i]) * want * ToFloat(w[static_cast<size_t>(c)]);
          ASSERT_NEAR(ToFloat(out[i]), y, kTolerance<T> * (std::fabs(y) + 1e-3)) << Name(isa) << " d " << d;
        }
      }
    }
  }
}

template <typename T>
void TokenLogProb(Isa isa, int64_t rows, int64_t vocab, const T* logits, const int32_t* ids, float inverse,
                  float* logprob, float* entropy, float* lse) {
  KernelsFor<T>(isa).token_logprob(0, rows,
                                   TokenLogProbArgs<T>{.rows = rows,
                                                       .vocab = vocab,
                                                       .logits = logits,
                                                       .ids = ids,
                                                       .inv_temperature = inverse,
                                                       .logprob = logprob,
                                                       .entropy = entropy,
                                                       .lse = lse});
}

TYPED_TEST(KernelsTest, LogProbAndEntropyAgreeWithDouble) {
  using T = TypeParam;
  Rng rng(2);
  for (const int64_t vocab : {1, 2, 17, 61, 2048, 5003}) {
    const auto logits = Noise<T>(rng, 2 * vocab, 3.0);
    const std::vector<int32_t> ids = {0, static_cast<int32_t>(vocab - 1)};
    for (const float t : {1.0F, 0.7F}) {
      for (const Isa isa : Sets()) {
        float lp[2], h[2], lse[2];
        TokenLogProb<T>(isa, 2, vocab, logits.data(), ids.data(), 1.0F / t, lp, h, lse);
        for (int64_t r = 0; r < 2; ++r) {
          double total = 0, weighted = 0;
          for (int64_t c = 0; c < vocab; ++c) {
            const double z = ToFloat(logits[static_cast<size_t>(r * vocab + c)]) / double{t};
            total += std::exp(z);
            weighted += std::exp(z) * z;
          }
          const double want = std::log(total);
          ASSERT_NEAR(lse[r], want, 3e-6 * (1 + std::fabs(want)));
          ASSERT_NEAR(
              lp[r],
              ToFloat(logits[static_cast<size_t>(r * vocab + ids[static_cast<size_t>(r)])]) / double{t} -
                  want,
              5e-6);
          ASSERT_NEAR(h[r], want - weighted / total, 2e-5);
        }
      }
    }
  }
}

TEST(LogProbTest, MaskedLogitsHaveNoWeightAndNanIsNotHidden) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const Isa isa : Sets()) {
    std::vector<float> logits(40, -inf);
    logits[3] = 1.0F, logits[33] = 1.0F;
    const int32_t id = 3;
    float lp, h;
    TokenLogProb<float>(isa, 1, 40, logits.data(), &id, 1.0F, &lp, &h, nullptr);
    EXPECT_NEAR(lp, -std::log(2.0), 1e-6);
    EXPECT_NEAR(h, std::log(2.0), 1e-6);
    logits[20] = std::nanf("");
    TokenLogProb<float>(isa, 1, 40, logits.data(), &id, 1.0F, &lp, &h, nullptr);
    EXPECT_TRUE(std::isnan(lp));
  }
}

// A tile of a vocabulary may be masked as a whole.
TEST(LogProbTest, WhereAllIsMaskedThereIsNoMass) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const Isa isa : Sets()) {
    std::vector<float> logits(40, -inf);
    const int32_t id = 3;
    float lp, h, lse;
    TokenLogProb<float>(isa, 1, 40, logits.data(), &id, 1.0F, &lp, &h, &lse);
    EXPECT_TRUE(std::isnan(lp));
    EXPECT_EQ(h, 0);
    EXPECT_EQ(lse, -inf);
    logits[20] = std::nanf("");
    TokenLogProb<float>(isa, 1, 40, logits.data(), &id, 1.0F, &lp, &h, &lse);
    EXPECT_TRUE(std::isnan(lse));
  }
}

// All mass is on the largest, as at temperature 0.
TEST(LogProbTest, ATinyTemperatureIsGreedy) {
  for (const Isa isa : Sets()) {
    for (const float largest : {-2.0F, 0.0F, 30.0F}) {
      std::vector<float> logits(3 * 41, largest - 1.5F);
      const std::vector<int32_t> ids = {7, 40, 3};
      for (const size_t at : {7, 41 + 7, 41 + 40, 2 * 41 + 7}) logits[at] = largest;
      float lp[3], h[3], lse[3];
      TokenLogProb<float>(isa, 3, 41, logits.data(), ids.data(), InverseTemperature(1e-39F), lp, h, lse);
      EXPECT_EQ(lp[0], 0.0F);
      EXPECT_NEAR(lp[1], -std::log(2.0), 1e-6);  // two are largest
      EXPECT_EQ(lp[2], -std::numeric_limits<float>::infinity());
      EXPECT_NEAR(h[0], 0, 1e-6);
      EXPECT_NEAR(h[1], std::log(2.0), 1e-6);
      EXPECT_FALSE(std::isnan(lse[0]));
    }
  }
}

TEST(LogProbTest, BackwardIsTheDerivative) {
  Rng rng(3);
  const int64_t vocab = 37;
  const auto logits = Noise<float>(rng, vocab, 2.0);
  const int32_t id = 35;
  const float inv = 1.0F / 0.8F, dlp = -0.7F, dh = 0.3F;
  const auto value = [&](std::vector<double> z) {
    double total = 0, weighted = 0;
    for (double& v : z) v *= inv;
    for (const double v : z) total += std::exp(v), weighted += std::exp(v) * v;
    return dlp * (z[id] - std::log(total)) + dh * (std::log(total) - weighted / total);
  };
  for (const Isa isa : Sets()) {
    float lp, h, lse;
    TokenLogProb<float>(isa, 1, vocab, logits.data(), &id, inv, &lp, &h, &lse);
    auto grad = logits;
    KernelsFor<float>(isa).token_logprob_backward(0, 1, vocab, grad.data(), &id, inv, &lse, &h, &dlp, &dh);
    for (int64_t c = 0; c < vocab; ++c) {
      std::vector<double> up(logits.begin(), logits.end()), down = up;
      up[static_cast<size_t>(c)] += 1e-5;
      down[static_cast<size_t>(c)] -= 1e-5;
      ASSERT_NEAR(grad[static_cast<size_t>(c)], (value(up) - value(down)) / 2e-5, 1e-5)
          << Name(isa) << " " << c;
    }
  }
}

TEST(LogProbTest, AMaskedLogitHasNoGradient) {
  const std::vector<float> logits = {0.5F, -INFINITY, 1.5F, -1.0F};
  const int32_t id = 2;
  const float dlp = -0.7F, dh = 0.3F;
  for (const Isa isa : Sets()) {
    float lp, h, lse;
    TokenLogProb<float>(isa, 1, 4, logits.data(), &id, 1.0F, &lp, &h, &lse);
    auto grad = logits;
    KernelsFor<float>(isa).token_logprob_backward(0, 1, 4, grad.data(), &id, 1.0F, &lse, &h, &dlp, &dh);
    EXPECT_EQ(grad[1], 0.0F) << Name(isa);
    EXPECT_NEAR(grad[0] + grad[2] + grad[3], 0.0, 1e-6) << Name(isa);  // shifting all logits changes nothing
    const int32_t masked = 1;  // the token itself: log p is -inf, and still nothing becomes NaN
    grad = logits;
    KernelsFor<float>(isa).token_logprob_backward(0, 1, 4, grad.data(), &masked, 1.0F, &lse, &h, &dlp, &dh);
    EXPECT_EQ(grad[1], dlp) << Name(isa);
  }
}

TYPED_TEST(KernelsTest, SwiGluAndItsBackward) {
  using T = TypeParam;
  Rng rng(4);
  const int64_t ff = 37;
  const auto gu = Noise<T>(rng, 2 * ff, 2.0), da = Noise<T>(rng, ff);
  const auto silu = [](double g) { return g / (1 + std::exp(-g)); };
  for (const Isa isa : Sets()) {
    std::vector<T> act(ff), grad(2 * ff);
    KernelsFor<T>(isa).swiglu(0, 1, ff, gu.data(), act.data());
    KernelsFor<T>(isa).swiglu_backward(0, 1, ff, gu.data(), da.data(), grad.data());
    for (size_t i = 0; i < ff; ++i) {
      const double g = ToFloat(gu[i]), u = ToFloat(gu[ff + i]), d = ToFloat(da[i]);
      const double slope = (silu(g + 1e-5) - silu(g - 1e-5)) / 2e-5;
      ASSERT_NEAR(ToFloat(act[i]), silu(g) * u, kTolerance<T> * (1 + std::fabs(silu(g) * u)));
      ASSERT_NEAR(ToFloat(grad[i]), d * u * slope, kTolerance<T> * 2 * (1 + std::fabs(d * u)));
      ASSERT_NEAR(ToFloat(grad[ff + i]), d * silu(g), kTolerance<T> * 2 * (1 + std::fabs(d * g)));
    }
  }
}

TYPED_TEST(KernelsTest, SwiGluTakesWhatExpCannot) {
  using T = TypeParam;
  const auto inf = std::numeric_limits<float>::infinity();
  // gate, up, act
  const std::vector<std::array<float, 3>> cases = {
      {-1e4F, 2, 0}, {-90, 1e30F, 0}, {-3e38F, 1, 0}, {1e4F, 2, 2e4F}, {inf, 1, inf},  {0, 5, 0},
      {88, 1, 88},   {-126, 1, 0},    {NAN, 1, NAN},  {1, NAN, NAN},   {128, 0.5F, 64}};
  const auto ff = static_cast<int64_t>(cases.size());
  std::vector<T> gate_up(static_cast<size_t>(2 * ff)), act(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    gate_up[i] = FromFloat<T>(cases[i][0]);
    gate_up[cases.size() + i] = FromFloat<T>(cases[i][1]);
  }
  for (const Isa isa : Sets()) {
    KernelsFor<T>(isa).swiglu(0, 1, ff, gate_up.data(), act.data());
    for (size_t i = 0; i < cases.size(); ++i) {
      const float got = ToFloat(act[i]), want = cases[i][2];
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << Name(isa) << " case " << i;
      } else if (std::isinf(want)) {
        EXPECT_EQ(got, want) << Name(isa) << " case " << i;
      } else {
        EXPECT_NEAR(got, want, 4e-3 * std::fabs(want) + 1e-6) << Name(isa) << " case " << i;
      }
    }
  }
}

// Rows that are computed side by side have the bits that each has alone, and are the products in double up to
// rounding.
TYPED_TEST(KernelsTest, RouterDoesNotDependOnTheRowsBesideIt) {
  using T = TypeParam;
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed);
  struct Size {
    int64_t rows, d, experts;
  };
  for (const auto& [rows, d, experts] :
       {Size{5, 64, 35}, Size{4, 100, 16}, Size{3, 576, 64}, Size{2, 7, 48}}) {
    const auto x = Noise<T>(rng, rows * d), w = Noise<T>(rng, experts * d);
    for (const Isa isa : Sets()) {
      std::vector<float> all(static_cast<size_t>(rows * experts)), alone(all.size());
      KernelsFor<T>(isa).router(0, rows, d, experts, x.data(), w.data(), all.data());
      for (int64_t r = 0; r < rows; ++r)
        KernelsFor<T>(isa).router(r, r + 1, d, experts, x.data(), w.data(), alone.data());
      ASSERT_EQ(std::memcmp(all.data(), alone.data(), all.size() * sizeof(float)), 0)
          << Name(isa) << ", d " << d;
      for (int64_t i = 0; i < rows * experts; ++i) {
        double sum = 0;
        for (int64_t c = 0; c < d; ++c)
          sum += double{ToFloat(x[static_cast<size_t>(i / experts * d + c)])} *
                 ToFloat(w[static_cast<size_t>(i % experts * d + c)]);
        ASSERT_NEAR(all[static_cast<size_t>(i)], sum, 1e-5 * (1 + std::sqrt(d))) << Name(isa) << ", d " << d;
      }
    }
  }
}

TEST(BFloat16Test, RoundsToNearestEvenAndKeepsNan) {
  const std::vector<std::pair<uint32_t, uint16_t>> cases = {
      {0x3F800000, 0x3F80}, {0x3F808000, 0x3F80}, {0x3F818000, 0x3F82}, {0x3F808001, 0x3F81},
      {0x7F7FFFFF, 0x7F80}, {0x7F800000, 0x7F80}, {0xFF800000, 0xFF80}, {0x00000001, 0x0000},
      {0x7FFFFFFF, 0x7FC0}, {0x7F800001, 0x7FC0}};
  for (const Isa isa : Sets()) {
    for (const auto& [wide, want] : cases) {
      std::vector<float> x(17);
      for (float& v : x) std::memcpy(&v, &wide, 4);
      std::vector<BF16> y(17);
      KernelsFor<BF16>(isa).narrow(0, 17, x.data(), y.data());
      EXPECT_EQ(y[0].bits, want) << std::hex << wide;   // a full chunk
      EXPECT_EQ(y[16].bits, want) << std::hex << wide;  // the tail
    }
  }
}

// Else whoever compares instruction sets measures the best one under another's name.
TEST(IsaTest, AWordThatIsNoInstructionSetEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("TIDEPOOL_CPU_ISA", "avx-512", 1);
        static_cast<void>(BestIsa());
      },
      ::testing::ExitedWithCode(2), "avx-512 is no instruction set.*one of baseline, avx2,.*amx_bf16");
}

}  // namespace
}  // namespace tidepool::device
