// Products of rows by a weight matrix, and their gradients, against plain loops in float64; and that a row
// has the same bits in every batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/base/rng.h"
#include "core/device/cpu/kernels.h"
#include "core/sharding/sum_tree.h"

namespace tidepool::device {
#if defined(__x86_64__)
extern const TileKernels kEmulatedTiles;  // emulated_tiles.cc
#endif
namespace {

template <typename T>
struct Way {
  std::string name;
  const ProductTable<T>* product;
};
// All that this processor can run.
template <typename T>
std::vector<Way<T>> Ways() {
  std::vector<Way<T>> ways;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16})
    if (isa <= BestIsa()) ways.push_back({Name(isa), &KernelsFor<T>(isa).product});
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, BF16>) {
    if (BestIsa() >= Isa::kAvx512Bf16) ways.push_back({"emulated tiles", &kEmulatedTiles.product});
  }
#endif
  return ways;
}

float Wide(float x) { return x; }
float Wide(BF16 x) {
  const uint32_t u = uint32_t{x.bits} << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
template <typename T>
std::vector<T> Random(Rng& rng, int64_t n) {
  std::vector<T> v(static_cast<size_t>(n));
  for (T& x : v) {
    const auto f = static_cast<float>(rng.Normal());
    if constexpr (std::is_same_v<T, float>) {
      x = f;
    } else {
      KernelsFor<BF16>(Isa::kBaseline).narrow(0, 1, &f, &x);
    }
  }
  return v;
}

// body(begin, end, scratch) over [0, items), by one thread or two with a cut at any place.
void Cut(int64_t items, int64_t at, int64_t floats,
         const std::function<void(int64_t, int64_t, float*)>& body) {
  std::vector<float> scratch(static_cast<size_t>(floats)), other(static_cast<size_t>(floats));
  std::thread second([&] {
    if (at < items) body(at, items, other.data());
  });
  if (at > 0) body(0, at, scratch.data());
  second.join();
}

template <typename T>
struct Case {
  int64_t rows, n, k;
  std::vector<T> x, w, dy;
  Case(Rng& rng, int64_t rows_in, int64_t n_in, int64_t k_in)
      : rows(rows_in),
        n(n_in),
        k(k_in),
        x(Random<T>(rng, rows * k)),
        w(Random<T>(rng, n * k)),
        dy(Random<T>(rng, rows * n)) {}

  // With w laid out; k is a whole number of words.
  [[nodiscard]] bool InStrips() const {
    return n % kStripRows == 0 && k * static_cast<int64_t>(sizeof(T)) % 4 == 0;
  }
  // Rows [first, first + count) of y; computed in two parts, cut at strip `cut`.
  std::vector<T> Forward(const Way<T>& way, int64_t first, int64_t count, int64_t cut,
                         const SumTiles* tiles = nullptr, float* sums = nullptr) const {
    const ProductTable<T>& product = *way.product;
    const int64_t words = k * static_cast<int64_t>(sizeof(T)) / 4;
    // On a cache line, as a device's memory is.
    constexpr size_t kLine = 64;
    std::vector<T> strips(w.size()), memory(static_cast<size_t>(count * n) + kLine / sizeof(T));
    void* place = memory.data();
    size_t space = memory.size() * sizeof(T);
    T* y = static_cast<T*>(std::align(kLine, static_cast<size_t>(count * n) * sizeof(T), place, space));
    product.lay_out(0, n / kStripRows, words, reinterpret_cast<const uint32_t*>(w.data()),
                    reinterpret_cast<uint32_t*>(strips.data()));
    const MultiplyArgs<T> args{.rows = count,
                               .n = n,
                               .k = k,
                               .x = x.data() + first * k,
                               .w = strips.data(),
                               .y = y,
                               .strips = true,
                               .tiles = tiles,
                               .sums = sums};
    Cut(n, cut * kStripRows, product.multiply_scratch(count, k),
        [&](int64_t begin, int64_t end, float* scratch) {
          product.multiply_strips(begin, end, args, scratch);
        });
    return {y, y + count * n};
  }
  // Where w can be laid out the same is expected of it in strips, which have rows behind them.
  std::vector<T> Dx(const Way<T>& way, int64_t cut, const SumTiles* tiles = nullptr,
                    float* sums = nullptr) const {
    const auto multiply = [&](const std::vector<T>& matrix, bool strips) {
      std::vector<T> dx(static_cast<size_t>(rows * k));
      const MultiplyBackArgs<T> args{.rows = rows,
                                     .n = n,
                                     .k = k,
                                     .dy = dy.data(),
                                     .w = matrix.data(),
                                     .dx = dx.data(),
                                     .strips = strips,
                                     .tiles = tiles,
                                     .sums = sums};
      Cut(rows, cut, MultiplyBackScratch(tiles == nullptr ? 1 : tiles->tiles),
          [&](int64_t begin, int64_t end, float* scratch) {
            way.product->multiply_back(begin, end, args, scratch);
          });
      return dx;
    };
    const int64_t words = k * static_cast<int64_t>(sizeof(T)) / 4;
    if (!FitsStrips(n, k * static_cast<int64_t>(sizeof(T)), /*alone=*/true)) return multiply(w, false);
    std::vector<T> strips = w;
    way.product->lay_out(0, n / kStripRows, words, reinterpret_cast<const uint32_t*>(w.data()),
                         reinterpret_cast<uint32_t*>(strips.data()));
    const auto sums_of = [&](const std::vector<T>& dx) {
      return sums == nullptr ? std::vector<float>() : std::vector<float>(sums, sums + dx.size());
    };
    std::vector<T> of_strips = multiply(strips, true);
    const std::vector<float> sums_of_strips = sums_of(of_strips);
    std::vector<T> dx = multiply(w, false);
    EXPECT_EQ(std::memcmp(dx.data(), of_strips.data(), dx.size() * sizeof(T)), 0)
        << way.name << ": dx of strips, n " << n << ", k " << k;
    EXPECT_EQ(sums_of_strips, sums_of(dx)) << way.name << ": sums of strips, n " << n << ", k " << k;
    return dx;
  }
  std::vector<float> Dw(const Way<T>& way, int64_t cut) const {
    std::vector<float> dw(static_cast<size_t>(n * k), 0.5F);
    const MultiplyBackWeightArgs<T> args{
        .rows = rows, .n = n, .k = k, .dy = dy.data(), .x = x.data(), .dw = dw.data()};
    Cut(n, cut, MultiplyBackScratch(), [&](int64_t begin, int64_t end, float* scratch) {
      way.product->multiply_back_weight(begin, end, args, scratch);
    });
    return dw;
  }
};

template <typename T>
std::vector<T> Rounded(const std::vector<float>& wide) {
  if constexpr (std::is_same_v<T, float>) return wide;
  std::vector<T> narrow(wide.size());
  if constexpr (!std::is_same_v<T, float>)
    KernelsFor<BF16>(Isa::kBaseline).narrow(0, static_cast<int64_t>(wide.size()), wide.data(), narrow.data());
  return narrow;
}
template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// A chain of additions is off by more than sums that begin in several places.
constexpr double kChain = 3;
// |got - want| against the size of the terms: `roundings` of the sum in float32, and one of the result.
template <typename Out>
void ExpectNear(Out got, double want, double terms, const char* what) {
  const double tolerance = 1e-6 * terms + (std::is_same_v<Out, float> ? 1e-6 : 4e-3) * std::fabs(want);
  ASSERT_NEAR(Wide(got), want, tolerance + 1e-6) << what;
}

template <typename T>
class ProductsTest : public testing::Test {};
using Types = testing::Types<float, BF16>;
TYPED_TEST_SUITE(ProductsTest, Types);

TYPED_TEST(ProductsTest, AgreeWithPlainLoopsOnRaggedSizes) {
  using T = TypeParam;
  Rng rng(7);
  std::vector<std::array<int64_t, 3>> sizes = {
      {1, 1, 1},     {1, 8, 32},    {2, 3, 5},    {3, 16, 34},   {5, 4, 31},    {7, 64, 96},  {16, 33, 127},
      {17, 130, 65}, {13, 5, 1031}, {200, 3, 17}, {65, 51, 257}, {1, 16, 2},    {9, 64, 30},  {4, 48, 576},
      {19, 112, 94}, {16, 96, 64},  {31, 80, 96}, {70, 48, 32},  {33, 20, 416}, {5, 530, 33}, {530, 5, 33}};
  for (int i = 0; i < 6; ++i) sizes.push_back({1 + rng.Below(40), 1 + rng.Below(90), 1 + rng.Below(600)});
  for (int i = 0; i < 6; ++i)
    sizes.push_back({1 + rng.Below(40), 16 * (1 + rng.Below(9)), 2 * (1 + rng.Below(300))});
  for (const auto& [rows, n, k] : sizes) {
    const Case<T> c(rng, rows, n, k);
    std::vector<double> y(static_cast<size_t>(rows * n)), dx(static_cast<size_t>(rows * k)),
        dw(static_cast<size_t>(n * k), 0.5);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        const double g = Wide(c.dy[static_cast<size_t>(r * n + i)]);
        for (int64_t j = 0; j < k; ++j) {
          const double x = Wide(c.x[static_cast<size_t>(r * k + j)]),
                       w = Wide(c.w[static_cast<size_t>(i * k + j)]);
          y[static_cast<size_t>(r * n + i)] += x * w;
          dx[static_cast<size_t>(r * k + j)] += g * w;
          dw[static_cast<size_t>(i * k + j)] += g * x;
        }
      }
    }
    for (const Way<T>& way : Ways<T>()) {
      SCOPED_TRACE(testing::Message() << way.name << " rows " << rows << " n " << n << " k " << k);
      const auto got_dx = c.Dx(way, rng.Below(rows + 1));
      const auto got_dw = c.Dw(way, rng.Below(n + 1));
      if (c.InStrips()) {
        const auto got = c.Forward(way, 0, rows, rng.Below(n / kStripRows + 1));
        for (size_t i = 0; i < y.size(); ++i) ExpectNear(got[i], y[i], kChain * std::sqrt(double(k)), "y");
      }
      for (size_t i = 0; i < dx.size(); ++i) ExpectNear(got_dx[i], dx[i], std::sqrt(double(n)), "dx");
      for (size_t i = 0; i < dw.size(); ++i) ExpectNear(got_dw[i], dw[i], std::sqrt(double(rows)), "dw");
    }
  }
}

// Places of `tiles` tiles among n terms, all multiples of `unit`.
SumTiles Tiles(Rng& rng, int64_t n, int32_t tiles, int64_t unit) {
  SumTiles t{.tiles = tiles, .unit = unit};
  for (int32_t i = 0; i < tiles; ++i) {
    const int64_t before = i == 0 ? 0 : t.end[0][i - 1];
    // At least one unit for each tile that follows.
    const int64_t room = (n - before) / unit - (tiles - i - 1);
    t.end[0][i] = i + 1 == tiles ? n : before + unit * (1 + rng.Below(std::max<int64_t>(room - 1, 1)));
  }
  return t;
}

// Rows of blocks with random numbers and small scales.
std::vector<uint8_t> RandomBlocks(Rng& rng, BlockType type, int64_t n, int64_t k) {
  std::vector<uint8_t> bytes(static_cast<size_t>(BlockRowBytes(type, n, k)));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng.Below(256));
  const int64_t scales = type == BlockType::kQ4_1 ? 4 : 2;
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(BlockBytes(type))) {
    // Halves of either sign, some of them below the normal ones, below 2^-2.
    for (int64_t i = 1; i < scales; i += 2) {
      uint8_t& high = bytes[at + static_cast<size_t>(i)];
      high = static_cast<uint8_t>(high & 0x80U) | static_cast<uint8_t>(rng.Below(0x35));
    }
  }
  return bytes;
}
double HalfOf(const uint8_t* p) {
  const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}
// As core/device/blocks.h has it.
template <typename T>
std::vector<T> Numbers(const std::vector<uint8_t>& bytes, BlockType type) {
  std::vector<float> values;
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(BlockBytes(type))) {
    const uint8_t* p = bytes.data() + at;
    const auto d = static_cast<float>(HalfOf(p));
    for (int i = 0; i < kBlockValues; ++i) {
      const auto nibble = [&](int offset) {
        return static_cast<float>(i < 16 ? p[offset + i] & 15 : p[offset + i - 16] >> 4);
      };
      values.push_back(type == BlockType::kQ8_0   ? d * static_cast<float>(static_cast<int8_t>(p[2 + i]))
                       : type == BlockType::kQ4_0 ? d * (nibble(2) - 8)
                                                  : d * nibble(4) + static_cast<float>(HalfOf(p + 2)));
    }
  }
  return Rounded<T>(values);
}

TYPED_TEST(ProductsTest, BlocksHaveTheBitsOfTheMatrixThatTheyStandFor) {
  using T = TypeParam;
  Rng rng(15);
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_0, BlockType::kQ4_1}) {
    for (int round = 0; round < 10; ++round) {
      const int64_t n = 16 * (1 + rng.Below(round < 2 ? 40 : 5)),
                    k = 32 * (1 + rng.Below(round < 2 ? 20 : 5)), rows = 1 + rng.Below(70);
      const std::vector<uint8_t> bytes = RandomBlocks(rng, type, n, k);
      Case<T> c(rng, rows, n, k);
      c.w = Numbers<T>(bytes, type);
      const SumTiles of_n = Tiles(rng, n, 3, 1);
      for (const Way<T>& way : Ways<T>()) {
        SCOPED_TRACE(testing::Message() << way.name << " type " << static_cast<int>(type) << " rows " << rows
                                        << " n " << n << " k " << k);
        std::vector<T> read(c.w.size()), strips(c.w.size()), want(c.w.size());
        way.product->read_blocks(0, n, k, type, bytes.data(), read.data());
        ASSERT_TRUE(SameBits(read, c.w)) << "numbers";
        way.product->lay_out_blocks(0, n / kStripRows, k, type, bytes.data(), strips.data());
        way.product->lay_out(0, n / kStripRows, k * static_cast<int64_t>(sizeof(T)) / 4,
                             reinterpret_cast<const uint32_t*>(c.w.data()),
                             reinterpret_cast<uint32_t*>(want.data()));
        ASSERT_TRUE(SameBits(strips, want)) << "strips";
        for (const SumTiles* tiles : {static_cast<const SumTiles*>(nullptr), &of_n}) {
          const std::vector<T> dx = c.Dx(way, rng.Below(rows + 1), tiles);
          std::vector<T> got(dx.size());
          std::vector<float> scratch(static_cast<size_t>(MultiplyBackScratch(3)));
          way.product->multiply_back(0, rows,
                                     {.rows = rows,
                                      .n = n,
                                      .k = k,
                                      .dy = c.dy.data(),
                                      .w = reinterpret_cast<const T*>(bytes.data()),
                                      .dx = got.data(),
                                      .blocks = type,
                                      .tiles = tiles},
                                     scratch.data());
          EXPECT_TRUE(SameBits(got, dx)) << "dx";
        }
      }
    }
  }
}

// Generation multiplies a row alone, a prefill with its prompt and training with the whole batch.
TYPED_TEST(ProductsTest, ARowHasTheSameBitsInEveryBatchAndForEveryThread) {
  using T = TypeParam;
  Rng rng(8);
  constexpr int64_t kRows = 300;
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{80, 106}, {16, 1100}, {80, 96}, {32, 3072}, {1024, 32}}) {
    const Case<T> c(rng, kRows, n, k);
    for (const Way<T>& way : Ways<T>()) {
      const std::vector<T> all = c.Forward(way, 0, kRows, n / kStripRows);
      for (int64_t rows = 1; rows <= kRows; rows += n * k > 30000 ? 37 : rows < 20 ? 1 : 7) {
        const int64_t first = rng.Below(kRows - rows + 1);
        const std::vector<T> want(all.begin() + first * n, all.begin() + (first + rows) * n);
        ASSERT_TRUE(SameBits(c.Forward(way, first, rows, rng.Below(n / kStripRows + 1)), want))
            << way.name << ", k " << k << ": rows " << first << " to " << first + rows;
      }
    }
  }
}

// A prefill applies the gate while it multiplies; training and decoding apply it to the rounded product.
TEST(GatedProductTest, HasTheBitsOfTheProductAndTheGateAfterIt) {
  Rng rng(10);
  const auto check = [&](const Way<BF16>& way, int64_t rows, int64_t n, int64_t k, double scale) {
    SCOPED_TRACE(testing::Message() << way.name << " rows " << rows << " n " << n << " k " << k);
    Case<BF16> c(rng, rows, n, k);
    for (BF16& x : c.x) {  // up to gates beyond what exp can take, and some that are no number
      const float scaled = rng.Chance(1e-4) ? NAN : static_cast<float>(Wide(x) * scale);
      KernelsFor<BF16>(Isa::kBaseline).narrow(0, 1, &scaled, &x);
    }
    const int64_t ff = n / 2;
    const std::vector<BF16> y = c.Forward(way, 0, rows, n / kStripRows);
    std::vector<BF16> want(static_cast<size_t>(rows * ff)), got(want.size());
    KernelsFor<BF16>(Isa::kAvx512Bf16).swiglu(0, rows, ff, y.data(), want.data());
    std::vector<BF16> strips(c.w.size());
    way.product->lay_out(0, n / kStripRows, k / 2, reinterpret_cast<const uint32_t*>(c.w.data()),
                         reinterpret_cast<uint32_t*>(strips.data()));
    const MultiplyArgs<BF16> args{
        .rows = rows, .n = n, .k = k, .x = c.x.data(), .w = strips.data(), .strips = true};
    Cut(ff, rng.Below(ff / 32 + 1) * 32, way.product->multiply_scratch(rows, k),
        [&](int64_t begin, int64_t end, float* scratch) {
          way.product->multiply_glu(begin, end, args, got.data(), scratch);
        });
    EXPECT_TRUE(SameBits(got, want));
  };
  for (const Way<BF16>& way : Ways<BF16>()) {
    if (way.product->multiply_glu == nullptr) continue;
    for (const auto& [rows, n, k] : std::vector<std::array<int64_t, 3>>{{1, 64, 96},
                                                                        {16, 128, 64},
                                                                        {17, 64, 32},
                                                                        {31, 192, 64},
                                                                        {32, 64, 576},
                                                                        {33, 128, 608},
                                                                        {100, 320, 96}})
      check(way, rows, n, k, 1 + rng.Below(20));
    for (int i = 0; i < 4; ++i)
      check(way, 1 + rng.Below(76), 64 * (1 + rng.Below(4)), 32 * (1 + rng.Below(30)), 1 + rng.Below(20));
    if (way.name == "emulated tiles") continue;  // which take seconds
    check(way, 300, 64 * 12, 576, 2);            // several groups of columns
    check(way, 70, 64 * 8, 32 * 40, 2);          // and blocks of terms
  }
}

// `some` tiles of them from `first` on.
SumTiles Some(const SumTiles& all, int32_t first, int32_t some) {
  SumTiles t{.tiles = some, .unit = all.unit};
  t.begin[0] = first == 0 ? all.begin[0] : all.end[0][first - 1];
  for (int32_t i = 0; i < some; ++i) t.end[0][i] = all.end[0][first + i];
  return t;
}
// What a number of ranks may have by itself: nodes of the tree over the tiles.
const std::vector<std::vector<std::pair<int32_t, int32_t>>> kNodes[] = {
    {},
    {{{0, 1}}},
    {{{0, 2}}, {{0, 1}, {1, 1}}},
    {{{0, 3}}, {{0, 2}, {2, 1}}, {{0, 1}, {1, 1}, {2, 1}}},
    {{{0, 4}}, {{0, 2}, {2, 2}}, {{0, 1}, {1, 1}, {2, 2}}},
    {},
    {{{0, 6}}, {{0, 4}, {4, 2}}, {{0, 2}, {2, 1}, {3, 1}, {4, 2}}, {{0, 2}, {2, 2}, {4, 2}}}};
std::vector<float> AddUp(const std::vector<std::pair<int32_t, int32_t>>& nodes,
                         std::vector<std::vector<float>> sums) {
  std::vector<sharding::SumNode> tree;
  for (const auto& [first, tiles] : nodes) tree.push_back({first, tiles});
  sharding::AddUpTree(tree, [&](size_t left, size_t right) {
    for (size_t i = 0; i < sums[left].size(); ++i) sums[left][i] += sums[right][i];
  });
  return sums[0];
}

// What ranks add up of a sum, and others after them, has the bits of the sum that one forms alone.
TYPED_TEST(ProductsTest, TilesHaveTheSameBitsWhereverTheyAreAddedUp) {
  using T = TypeParam;
  Rng rng(13);
  for (int round = 0; round < 24; ++round) {
    const int32_t tiles = std::array{1, 2, 3, 4, 6}[static_cast<size_t>(rng.Below(5))];
    const int64_t unit = round % 2 == 0 ? 32 : 2,
                  k = unit * (tiles + rng.Below(1 + (round % 3 == 0 ? 1400 : 300) / unit)),
                  rows = 1 + rng.Below(rng.Chance(0.5) ? 16 : 90), n = 16 * (1 + rng.Below(5));
    const Case<T> c(rng, rows, n, k);
    const SumTiles of_k = Tiles(rng, k, tiles, unit), of_n = Tiles(rng, n, std::min<int32_t>(tiles, 4), 1);
    for (const Way<T>& way : Ways<T>()) {
      SCOPED_TRACE(testing::Message() << way.name << " rows " << rows << " n " << n << " k " << k << " tiles "
                                      << tiles << " unit " << unit);
      const std::vector<T> y = c.Forward(way, 0, rows, rng.Below(n / kStripRows + 1), &of_k);
      for (size_t i = 0; i < y.size(); ++i) {
        double want = 0;
        for (int64_t t = 0; t < k; ++t)
          want += double{Wide(
                      c.x[i / static_cast<size_t>(n) * static_cast<size_t>(k) + static_cast<size_t>(t)])} *
                  Wide(c.w[i % static_cast<size_t>(n) * static_cast<size_t>(k) + static_cast<size_t>(t)]);
        ExpectNear(y[i], want, kChain * std::sqrt(double(k)), "y in tiles");
      }
      const std::vector<T> dx = c.Dx(way, rng.Below(rows + 1), &of_n);
      for (const auto& nodes : kNodes[tiles]) {
        std::vector<std::vector<float>> sums;
        for (const auto& [first, some] : nodes) {
          const SumTiles here = Some(of_k, first, some);
          std::vector<float>& sum = sums.emplace_back(static_cast<size_t>(rows * n));
          c.Forward(way, 0, rows, rng.Below(n / kStripRows + 1), &here, sum.data());
        }
        EXPECT_TRUE(SameBits(Rounded<T>(AddUp(nodes, sums)), y)) << nodes.size() << " nodes";
      }
      for (const auto& nodes : kNodes[of_n.tiles]) {
        std::vector<std::vector<float>> sums;
        for (const auto& [first, some] : nodes) {
          const SumTiles here = Some(of_n, first, some);
          c.Dx(way, rng.Below(rows + 1), &here, sums.emplace_back(static_cast<size_t>(rows * k)).data());
        }
        EXPECT_TRUE(SameBits(Rounded<T>(AddUp(nodes, sums)), dx)) << nodes.size() << " nodes, backward";
      }
    }
  }
}

// Of q, k and v beside each other a tile has some of each.
TYPED_TEST(ProductsTest, ATileHasTermsOfSeveralSegments) {
  using T = TypeParam;
  Rng rng(14);
  const Case<T> c(rng, 37, 160, 90);
  SumTiles whole{.tiles = 2, .segments = 3, .begin = {0, 96, 128}, .end = {{48, 96}, {112, 128}, {144, 160}}};
  for (const Way<T>& way : Ways<T>()) {
    const std::vector<T> dx = c.Dx(way, 20, &whole);
    std::vector<std::vector<float>> sums;
    for (int tile = 0; tile < 2; ++tile) {  // as a rank has them: its own rows of w alone
      Case<T> part(rng, 37, 80, 90);
      SumTiles own{.tiles = 1, .segments = 3, .begin = {0, 48, 64}, .end = {{48}, {64}, {80}}};
      int64_t at = 0;
      for (int s = 0; s < 3; ++s) {
        const int64_t from = tile == 0 ? whole.begin[s] : whole.end[s][0], n = whole.end[s][tile] - from;
        std::copy_n(c.w.data() + from * c.k, n * c.k, part.w.data() + at * c.k);
        for (int64_t r = 0; r < c.rows; ++r)
          std::copy_n(c.dy.data() + r * c.n + from, n, part.dy.data() + r * part.n + at);
        at += n;
      }
      part.Dx(way, 11, &own, sums.emplace_back(static_cast<size_t>(c.rows * c.k)).data());
    }
    EXPECT_TRUE(SameBits(Rounded<T>(AddUp({{0, 1}, {1, 1}}, sums)), dx)) << way.name;
  }
}

TYPED_TEST(ProductsTest, GradientsDoNotDependOnTheThreads) {
  using T = TypeParam;
  Rng rng(9);
  const Case<T> c(rng, 230, 67, 601);
  for (const Way<T>& way : Ways<T>()) {
    const auto dx = c.Dx(way, c.rows);
    const auto dw = c.Dw(way, c.n);
    for (const int64_t cut : {1, 12, 37, 66}) {
      EXPECT_TRUE(SameBits(c.Dx(way, cut), dx)) << way.name << " cut " << cut;
      EXPECT_TRUE(SameBits(c.Dw(way, cut), dw)) << way.name << " cut " << cut;
    }
  }
}

}  // namespace
}  // namespace tidepool::device
