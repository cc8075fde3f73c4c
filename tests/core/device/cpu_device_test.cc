// What the CPU's device adds to its kernels: how it divides them, and which it calls for several.
#include "core/device/cpu/cpu_device.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/rng.h"

namespace tidepool::device {
namespace {

std::vector<BF16> Noise(Rng& rng, int64_t n, double scale) {
  std::vector<BF16> values(static_cast<size_t>(n));
  for (BF16& value : values) {
    const auto x = static_cast<float>(scale * rng.Normal());
    KernelsFor<BF16>(Isa::kBaseline).narrow(0, 1, &x, &value);
  }
  return values;
}

// Whatever the processor: where it has no kernel for several, those of each are called.
TEST(CpuDeviceTest, KernelsCalledTogetherGiveTheBitsOfTheKernelsAlone) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  Rng rng(1);
  CpuDevice device;
  // Few rows, some columns for each thread, some rows for each thread, of which 1 and 16 are left at the end;
  // sizes that no tile fits.
  for (const auto& [rows, ff, k] : std::vector<std::array<int64_t, 3>>{{5, 96, 64},
                                                                       {70, 96, 64},
                                                                       {130, 352, 576},
                                                                       {600, 32, 1536},
                                                                       {385, 32, 1536},
                                                                       {400, 32, 1536},
                                                                       {1000, 64, 576},
                                                                       {50, 40, 64},
                                                                       {50, 64, 72}}) {
    SCOPED_TRACE(testing::Message() << "rows " << rows << " ff " << ff << " k " << k);
    const auto take = [&](int64_t r, int64_t c) { return device.Take(r, c, DType::kBFloat16); };
    const auto put = [&](int64_t r, int64_t c, double scale) {
      Array a = take(r, c);
      device.Upload(a.view.As<BF16>(), std::span<const BF16>(Noise(rng, r * c, scale)));
      return a;
    };
    const Array x = put(rows, k, 1), w = put(2 * ff, k, 0.2), weight = put(1, k, 1), norm = take(rows, k),
                gate_up = take(rows, 2 * ff), act = take(rows, ff), want = take(rows, ff);
    const bool strips = device.lays_out(2 * ff, 2 * ff, k, DType::kBFloat16);
    if (strips) device.LayOut(w.view, w.view.data);
    FusedMultiplyArgs<BF16> a{
        .norm = {.rows = rows,
                 .d = k,
                 .x = x.view.As<BF16>(),
                 .weight = weight.view.As<BF16>(),
                 .eps = 1e-5F,
                 .out = norm.view.As<BF16>()},
        .multiply = {.rows = rows,
                     .n = 2 * ff,
                     .k = k,
                     .x = norm.view.As<BF16>(),
                     .w = w.view.As<BF16>(),
                     .y = gate_up.view.As<BF16>(),
                     .strips = strips},
        .glu = {.rows = rows, .ff = ff, .gate_up = gate_up.view.As<BF16>(), .act = want.view.As<BF16>()}};
    device.RmsNorm(a.norm);
    device.Multiply(a.multiply);
    device.SwiGlu(a.glu);
    a.glu.act = act.view.As<BF16>();
    device.FusedMultiply(a);
    EXPECT_EQ(std::memcmp(act.view.data, want.view.data, static_cast<size_t>(act.view.bytes())), 0);
  }
  at::set_num_threads(threads);
}

// y[rows, n] = x w^T by a matrix as it stands, or laid out where that can be.
template <typename T>
std::vector<T> Product(Device& device, int64_t rows, int64_t n, int64_t k, const std::vector<T>& x,
                       const std::vector<T>& w, bool lay_out) {
  const Array on_x = device.Take(rows, k, kDTypeOf<T>), on_w = device.Take(n, k, kDTypeOf<T>),
              y = device.Take(rows, n, kDTypeOf<T>);
  device.Upload(on_x.view.As<T>(), std::span<const T>(x));
  device.Upload(on_w.view.As<T>(), std::span<const T>(w));
  const bool strips = lay_out && device.lays_out(n, n, k, kDTypeOf<T>);
  if (strips) device.LayOut(on_w.view, on_w.view.data);
  device.Multiply(MultiplyArgs<T>{.rows = rows,
                                  .n = n,
                                  .k = k,
                                  .x = on_x.view.As<T>(),
                                  .w = on_w.view.As<T>(),
                                  .y = y.view.As<T>(),
                                  .strips = strips});
  return device.Read(y.view.As<T>(), rows * n);
}

// A part of a vocabulary has whatever number of rows, and a whole one a multiple of sixteen: a column has the
// same bits in both, and in a matrix that is not laid out.
TEST(CpuDeviceTest, AColumnHasTheSameBitsInWhateverMatrix) {
  Rng rng(2);
  CpuDevice device;
  for (const auto& [rows, n, k] : std::vector<std::array<int64_t, 3>>{{1, 61, 64},
                                                                      {3, 53, 24},
                                                                      {40, 97, 96},
                                                                      {70, 33, 576},
                                                                      {5, 7, 32},
                                                                      {20, 50, 33},
                                                                      {1, 3, 5},
                                                                      {33, 16, 7}}) {
    SCOPED_TRACE(testing::Message() << "rows " << rows << " n " << n << " k " << k);
    const std::vector<BF16> x = Noise(rng, rows * k, 1), w = Noise(rng, n * k, 1);
    const std::vector<BF16> as_it_is = Product(device, rows, n, k, x, w, false),
                            laid_out = Product(device, rows, n, k, x, w, true);
    EXPECT_EQ(std::memcmp(as_it_is.data(), laid_out.data(), as_it_is.size() * sizeof(BF16)), 0);
    const int64_t whole = RoundUp(n, 16);
    std::vector<BF16> more = w;
    more.resize(static_cast<size_t>(whole * k));
    const std::vector<BF16> in_whole = Product(device, rows, whole, k, x, more, true);
    for (int64_t r = 0; r < rows; ++r)
      EXPECT_EQ(std::memcmp(as_it_is.data() + r * n, in_whole.data() + r * whole,
                            static_cast<size_t>(n) * sizeof(BF16)),
                0);
    std::vector<float> wide_x(x.size()), wide_w(w.size());
    KernelsFor<BF16>(Isa::kBaseline).widen(0, rows * k, x.data(), wide_x.data());
    KernelsFor<BF16>(Isa::kBaseline).widen(0, n * k, w.data(), wide_w.data());
    const std::vector<float> wide = Product(device, rows, n, k, wide_x, wide_w, false),
                             wide_laid_out = Product(device, rows, n, k, wide_x, wide_w, true);
    EXPECT_EQ(wide, wide_laid_out);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        double want = 0;
        for (int64_t t = 0; t < k; ++t)
          want += double{wide_x[static_cast<size_t>(r * k + t)]} * wide_w[static_cast<size_t>(i * k + t)];
        ASSERT_NEAR(wide[static_cast<size_t>(r * n + i)], want, 1e-5 * std::sqrt(double(k)) + 1e-5);
      }
    }
  }
}

// Of bfloat16 a rank may have an odd number of terms, and tiles that end between the halves of a word.
TEST(CpuDeviceTest, TilesMayEndWithinAWord) {
  Rng rng(5);
  CpuDevice device;
  for (const auto& [rows, n, k] :
       std::vector<std::array<int64_t, 3>>{{1, 24, 9}, {40, 33, 15}, {20, 16, 3}}) {
    const std::vector<BF16> x = Noise(rng, rows * k, 1), w = Noise(rng, n * k, 1);
    SumTiles tiles{.tiles = 2, .end = {{1, k}}};
    std::vector<float> sums(static_cast<size_t>(rows * n)), wide_x(x.size()), wide_w(w.size());
    KernelsFor<BF16>(Isa::kBaseline).widen(0, rows * k, x.data(), wide_x.data());
    KernelsFor<BF16>(Isa::kBaseline).widen(0, n * k, w.data(), wide_w.data());
    device.Multiply(MultiplyArgs<BF16>{
        .rows = rows, .n = n, .k = k, .x = x.data(), .w = w.data(), .tiles = &tiles, .sums = sums.data()});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        double want = 0;
        for (int64_t t = 0; t < k; ++t)
          want += double{wide_x[static_cast<size_t>(r * k + t)]} * wide_w[static_cast<size_t>(i * k + t)];
        ASSERT_NEAR(sums[static_cast<size_t>(r * n + i)], want, 1e-5) << n << " x " << k;
      }
    }
  }
}

// An only expert's matrix may have rows behind its strips.
TEST(CpuDeviceTest, OneGroupMayHaveRowsBehindItsStrips) {
  Rng rng(6);
  CpuDevice device;
  const int64_t rows = 50, n = 24, k = 64;
  const std::vector<BF16> x = Noise(rng, rows * k, 1), w = Noise(rng, n * k, 1);
  const std::vector<BF16> want = Product(device, rows, n, k, x, w, false);
  ASSERT_TRUE(device.lays_out(n, n, k, DType::kBFloat16));
  const Array strips = device.Take(n, k, DType::kBFloat16);
  device.Upload(strips.view.As<BF16>(), std::span<const BF16>(w));
  device.LayOut(strips.view, strips.view.data);
  std::vector<BF16> got(want.size() + 64);  // what lies behind must stay
  const std::vector<int32_t> begin = {0, static_cast<int32_t>(rows)};
  device.GroupedMultiply(GroupedMultiplyArgs<BF16>{.groups = 1,
                                                   .rows = rows,
                                                   .n = n,
                                                   .k = k,
                                                   .begin = begin.data(),
                                                   .x = x.data(),
                                                   .w = strips.view.As<BF16>(),
                                                   .y = got.data(),
                                                   .strips = true});
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(BF16)), 0);
  for (size_t i = want.size(); i < got.size(); ++i) EXPECT_EQ(got[i].bits, 0);
}

// However low the temperature, and where a tile has no mass.
TEST(LogProbTilesTest, AgreeWithOnePassOverTheWholeVocabulary) {
  Rng rng(7);
  CpuDevice device;
  for (const float temperature : {1e-39F, 1e-3F, 0.7F, 1.0F, 5.0F}) {
    for (int round = 0; round < 20; ++round) {
      const int64_t vocab = 53;
      std::vector<float> logits(vocab);
      for (float& l : logits) l = static_cast<float>(30 + 3 * rng.Normal());
      if (rng.Chance(0.3)) std::fill(logits.begin(), logits.begin() + 13, -1e30F);
      SumTiles tiles{.tiles = 4, .end = {{13, 26, 39, vocab}}};
      SampleRow how{.temperature = temperature, .uniform = static_cast<float>(rng.Uniform() * 0.999)};
      const int32_t source = 0;
      int32_t id = -1;
      float kept = 0, in_tiles = 0, whole = 0;
      SampleArgs<float> a{.rows = 1,
                          .logit_rows = 1,
                          .vocab = vocab,
                          .logits = logits.data(),
                          .source = &source,
                          .how = &how,
                          .ids = &id,
                          .log_kept = &kept,
                          .logprob = &whole};
      device.Sample(a);
      a.tiles = &tiles, a.logprob = &in_tiles;
      device.Sample(a);
      EXPECT_NEAR(in_tiles, whole, 2e-6 * (1 + std::fabs(whole))) << temperature;
    }
  }
}

// The optimizer is divided at any places (train.zero, train.mesh), which may not show in the weights.
TEST(AdamWTest, AnElementIsUpdatedAlikeWhereverItStands) {
  const auto check = [](auto type) {
    using T = decltype(type);
    Rng rng(4);
    constexpr int64_t kN = 3000;
    CpuDevice device;
    std::vector<float> g(kN), m(kN), v(kN), wide(kN);
    std::vector<int16_t> rest(kN);
    for (size_t i = 0; i < kN; ++i) {
      g[i] = static_cast<float>(rng.Normal()), m[i] = static_cast<float>(rng.Normal());
      v[i] = static_cast<float>(rng.Uniform()), wide[i] = static_cast<float>(rng.Normal());
      rest[i] = static_cast<int16_t>(rng.Below(60000) - 30000);
    }
    std::vector<T> w(kN);
    Kernels<T>().narrow(0, kN, wide.data(), w.data());
    const double square_sum = 4000;
    const auto update = [&](const std::vector<int64_t>& cuts) {
      std::vector<T> weights = w;
      std::vector<float> m1 = m, v1 = v;
      std::vector<int16_t> rests = rest;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const int64_t at = cuts[i];
        device.AdamW(AdamWArgs<T>{.n = cuts[i + 1] - at,
                                  .gradients = g.data() + at,
                                  .weights = weights.data() + at,
                                  .rest = rests.data() + at,
                                  .m = m1.data() + at,
                                  .v = v1.data() + at,
                                  .beta1 = 0.9F,
                                  .rest1 = 0.1F,
                                  .beta2 = 0.99F,
                                  .rest2 = 0.01F,
                                  .eps = 1e-8F,
                                  .decay = 0.999F,
                                  .step = 3e-3F,
                                  .root = 1.3F,
                                  .square_sum = &square_sum,
                                  .max_grad_norm = 1});
      }
      return std::tuple(std::string(reinterpret_cast<const char*>(weights.data()), kN * sizeof(T)), m1, v1,
                        rests);
    };
    const auto whole = update({0, kN});
    for (int round = 0; round < 30; ++round) {
      std::vector<int64_t> cuts = {0, kN};
      for (int i = 0; i < 6; ++i) cuts.push_back(rng.Below(kN));
      std::ranges::sort(cuts);
      EXPECT_TRUE(update(cuts) == whole) << round;
    }
  };
  check(float{});
  check(BF16{});
}

TEST(SquareSumTest, PartsAreTheSameHoweverTheNumbersAreDivided) {
  Rng rng(3);
  CpuDevice device;
  std::vector<float> x(300000);
  for (float& v : x) v = static_cast<float>(rng.Normal() * std::exp(20 * rng.Uniform() - 18));
  const auto sum = [&](size_t from, size_t to) {
    SquareParts parts{};
    double total = 0;
    if (to > from)
      device.SquareSum(
          {.n = static_cast<int64_t>(to - from), .x = x.data() + from, .sum = &total, .parts = parts.data()});
    return parts;
  };
  const double whole = TotalOf(sum(0, x.size()));
  long double want = 0;
  for (const float v : x) want += static_cast<long double>(v) * v;
  EXPECT_NEAR(whole, static_cast<double>(want), 1e-15 * static_cast<double>(want));
  for (int round = 0; round < 20; ++round) {
    std::vector<size_t> cuts = {0, x.size()};
    for (int i = 0; i < 5; ++i)
      cuts.push_back(static_cast<size_t>(rng.Below(static_cast<int64_t>(x.size()))));
    std::ranges::sort(cuts);
    std::vector<SquareParts> pieces;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) pieces.push_back(sum(cuts[i], cuts[i + 1]));
    if (rng.Chance(0.5)) std::ranges::reverse(pieces);
    SquareParts all{};
    for (const SquareParts& p : pieces)
      for (size_t k = 0; k < all.size(); ++k) all[k] += p[k];
    EXPECT_EQ(TotalOf(all), whole);
  }
  for (const float bad : {INFINITY, NAN}) {
    x[1000] = bad;
    EXPECT_FALSE(std::isfinite(TotalOf(sum(0, x.size()))));
  }
}

}  // namespace
}  // namespace tidepool::device
