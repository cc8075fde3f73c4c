// Grouped products against the CPU's product of each group.

#include <algorithm>
#include <memory>

#include "core/cuda/kernels/few_rows_multiply.h"
#include "core/cuda/kernels/product_chain.h"
#include "tests/core/cuda/device_array.h"

namespace tidepool::cuda {
namespace {

template <typename T>
void CompareProducts(uint64_t seed) {
  TP_NEEDS_DEVICE();
  const auto& cpu = device::KernelsFor<T>(device::BestIsa()).product;
  FuzzRng rng(seed + 800);
  const int64_t groups = rng.OneOf({1, 3, 5}), n = rng.OneOf({8, 40, 72, 30}),
                k = rng.OneOf({16, 64, 104, 33});
  const std::string what = std::string(TypeName<T>()) + ", seed " + std::to_string(seed) + ", " +
                           std::to_string(n) + " x " + std::to_string(k);
  std::vector<int32_t> begin = {0};
  for (int64_t g = 0; g < groups; ++g) {
    begin.push_back(begin.back() + static_cast<int32_t>(rng.OneOf({0, 1, 5, 16, 64, 90})));
  }
  const int64_t used = begin.back(), rows = used + rng.Below(3);  // rows past the last group stay as they are
  const std::vector<T> x = RandomValues<T>(rng, rows * k), w = RandomValues<T>(rng, groups * n * k),
                       dy = RandomValues<T>(rng, rows * n), y0 = RandomValues<T>(rng, rows * n),
                       dx0 = RandomValues<T>(rng, rows * k);
  const std::vector<float> dw0 = RandomValues<float>(rng, groups * n * k);
  std::vector<T> y = y0, dx = dx0;
  std::vector<float> dw = dw0;
  std::vector<float> scratch(static_cast<size_t>(device::MultiplyBackScratch()));
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = begin[static_cast<size_t>(g)], m = begin[static_cast<size_t>(g) + 1] - at;
    if (m == 0) continue;
    for (int64_t r = at; r < at + m; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t c = 0; c < k; ++c)
          sum += double{AsFloat(x[static_cast<size_t>(r * k + c)])} *
                 AsFloat(w[static_cast<size_t>((g * n + i) * k + c)]);
        RoundTo(static_cast<float>(sum), &y[static_cast<size_t>(r * n + i)]);
      }
    }
    cpu.multiply_back(0, m,
                      {.rows = m,
                       .n = n,
                       .k = k,
                       .dy = dy.data() + at * n,
                       .w = w.data() + g * n * k,
                       .dx = dx.data() + at * k},
                      scratch.data());
    cpu.multiply_back_weight(0, n,
                             {.rows = m,
                              .n = n,
                              .k = k,
                              .dy = dy.data() + at * n,
                              .x = x.data() + at * k,
                              .dw = dw.data() + g * n * k},
                             scratch.data());
  }
  const DeviceArray<int32_t> d_begin(begin);
  const DeviceArray<T> d_x(x), d_w(w), d_dy(dy);
  std::vector<T> got_y;
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<T> d_y(y0), d_dx(dx0);
    const DeviceArray<float> d_dw(dw0);
    const auto run = [&](auto kernel, auto args) {
      args.groups = groups, args.rows = rows, args.n = n, args.k = k, args.begin = d_begin.data();
      RunKernel(what, [&](Launcher& l) { return kernel(args, l); });
    };
    run(GroupedMultiply<T>,
        device::GroupedMultiplyArgs<T>{.x = d_x.data(), .w = d_w.data(), .y = d_y.data()});
    run(GroupedMultiplyBack<T>,
        device::GroupedMultiplyBackArgs<T>{.dy = d_dy.data(), .w = d_w.data(), .dx = d_dx.data()});
    run(GroupedMultiplyBackWeight<T>,
        device::GroupedMultiplyBackWeightArgs<T>{.dy = d_dy.data(), .x = d_x.data(), .dw = d_dw.data()});
    got_y = d_y.Read();
    ExpectNear(got_y, y, 2e-5F, Relative<T>(), what + " y");
    ExpectNear(d_dx.Read(), dx, 2e-5F, Relative<T>(), what + " dx");
    ExpectNear(d_dw.Read(), dw, 5e-5F, 2e-5F, what + " dw");
    return BytesOf(got_y, d_dx.Read(), d_dw.Read());
  });
  if (used == 0) return;
  // A row alone, as the only one of its group, has the same bits.
  const int64_t row = rng.Below(used);
  int64_t group = 0;
  while (begin[static_cast<size_t>(group) + 1] <= row) ++group;
  const DeviceArray<int32_t> one(std::vector<int32_t>{0, 1});
  const DeviceArray<T> alone(n), x_row(std::vector<T>(x.begin() + row * k, x.begin() + (row + 1) * k)),
      matrix(std::vector<T>(w.begin() + group * n * k, w.begin() + (group + 1) * n * k));
  const device::GroupedMultiplyArgs<T> of_row{.groups = 1,
                                              .rows = 1,
                                              .n = n,
                                              .k = k,
                                              .begin = one.data(),
                                              .x = x_row.data(),
                                              .w = matrix.data(),
                                              .y = alone.data()};
  RunKernel(what, [&](Launcher& l) { return GroupedMultiply(of_row, l); });
  EXPECT_TRUE(std::memcmp(alone.Read().data(), got_y.data() + row * n, static_cast<size_t>(n) * sizeof(T)) ==
              0)
      << what << ": row " << row << " depends on its batch";

  // The product of a whole batch is that of one group.
  const int64_t first = begin[static_cast<size_t>(group)], last = begin[static_cast<size_t>(group) + 1];
  const DeviceArray<T> y_batch((last - first) * n),
      x_batch(std::vector<T>(x.begin() + first * k, x.begin() + last * k));
  const device::MultiplyArgs<T> batch{
      .rows = last - first, .n = n, .k = k, .x = x_batch.data(), .w = matrix.data(), .y = y_batch.data()};
  RunKernel(what, [&](Launcher& l) { return Multiply(batch, l); });
  const std::vector<T> y_of_batch = y_batch.Read();
  EXPECT_TRUE(std::memcmp(y_of_batch.data(), got_y.data() + first * n, y_of_batch.size() * sizeof(T)) == 0)
      << what << ": Multiply has other bits than a group";
}
TEST(MultiplyKernelTest, GroupedProductsAgreeWithTheCpuAndARowHasTheSameBitsInEveryBatch) {
  for (int64_t seed = 0; seed < FuzzSeeds(8); ++seed) {
    CompareProducts<float>(static_cast<uint64_t>(seed));
    CompareProducts<BF16>(static_cast<uint64_t>(seed));
  }
}

// Norm, product and gate in one kernel against one kernel each: the same roundings on the way, so that only
// the order of a product's sum differs.
void CompareFused(uint64_t seed) {
  TP_NEEDS_DEVICE();
  FuzzRng rng(seed + 1700);
  const bool glu = rng.Below(2) == 0, norm = rng.Below(2) == 0, add = rng.Below(2) == 0;
  const int64_t rows = rng.OneOf({1, 2, 7, 8, 9, 16, 17, 32}), ff = rng.OneOf({2, 8, 30, 72, 300}),
                n = glu ? 2 * ff : ff, k = rng.OneOf({8, 64, 72, 200, 896, 2304});
  const std::string what = "seed " + std::to_string(seed) + ", " + std::to_string(rows) + " rows, " +
                           std::to_string(n) + " x " + std::to_string(k) + (norm ? ", norm" : "") +
                           (add ? ", add" : "") + (glu ? ", gate" : "");
  const DeviceArray<BF16> x(RandomValues<BF16>(rng, rows * k)), add_x(RandomValues<BF16>(rng, rows * k)),
      weight(RandomValues<BF16>(rng, k)),
      w(RandomValues<BF16>(rng, n * k, 2.0F / std::sqrt(static_cast<float>(k))));
  weight.Settle();
  w.Settle();
  const DeviceArray<BF16> sum(rows * k), normed(rows * k), y(rows * n), act(rows * ff);
  device::FusedMultiplyArgs<BF16> f;
  f.multiply = {
      .rows = rows, .n = n, .k = k, .x = norm ? normed.data() : x.data(), .w = w.data(), .y = y.data()};
  if (norm) {
    f.norm = {.rows = rows,
              .d = k,
              .x = x.data(),
              .add = add ? add_x.data() : nullptr,
              .x_out = sum.data(),
              .weight = weight.data(),
              .eps = 1e-5F,
              .out = normed.data()};
    RunKernel(what, [&](Launcher& l) { return RmsNorm(f.norm, l); });
  }
  RunKernel(what, [&](Launcher& l) { return Multiply(f.multiply, l); });
  if (glu) {
    f.glu = {.rows = rows, .ff = ff, .gate_up = y.data(), .act = act.data()};
    RunKernel(what, [&](Launcher& l) { return SwiGlu(f.glu, l); });
  }
  const std::vector<BF16> want = (glu ? act : y).Read(), want_sum = sum.Read();
  EXPECT_TRUE(TakesFewRows(f.multiply)) << what;
  if (norm && !TakesNorm(f.norm, f.multiply)) f.norm = {};
  const int64_t first = rng.Below(rows);
  std::vector<BF16> got;
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<BF16> out(rows * (glu ? ff : n)), new_sum(rows * k);
    f.norm.x_out = new_sum.data();
    (glu ? f.glu.act : f.multiply.y) = out.data();
    RunKernel(what, [&](Launcher& l) { return FewRowsFused(f, l.stream()); });
    got = out.Read();
    ExpectNear(got, want, 2e-2F, 2.0F / 128, what);
    if (f.norm.rows > 0 && add) {
      EXPECT_TRUE(BytesOf(new_sum.Read()) == BytesOf(want_sum)) << what;
    }
    return BytesOf(got);
  });
  // A row alone has the same bits, where as many warps share its terms.
  if (rows > 8 || f.norm.rows > 0) return;
  const int64_t width = glu ? ff : n;
  const DeviceArray<BF16> alone(width), other_sum(k);
  f.multiply.rows = 1, f.multiply.x += first * k;
  (glu ? f.glu.act : f.multiply.y) = alone.data();
  if (glu) f.glu.rows = 1;
  if (f.norm.rows > 0) {
    f.norm.rows = 1, f.norm.x += first * k, f.norm.x_out = other_sum.data();
    if (add) f.norm.add += first * k;
  }
  RunKernel(what, [&](Launcher& l) { return FewRowsFused(f, l.stream()); });
  EXPECT_TRUE(std::memcmp(alone.Read().data(), got.data() + first * width, static_cast<size_t>(width) * 2) ==
              0)
      << what << ": row " << first << " depends on those beside it";
}
#ifdef TIDEPOOL_CUDA_EMULATION
TEST(MultiplyKernelTest, AProductThatAGpuHasNoRoomForIsNotTaken) {
  const DeviceArray<BF16> any(8);
  const device::MultiplyArgs<BF16> a{
      .rows = 8, .n = 64, .k = 6000, .x = any.data(), .w = any.data(), .y = any.data()};
  EXPECT_TRUE(TakesFewRows(a));
  const SmallGpu small;
  EXPECT_FALSE(TakesFewRows(a));
}
#endif

TEST(MultiplyKernelTest, FewRowsWithTheirNormAndGateAgreeWithOneKernelEach) {
  for (int64_t seed = 0; seed < FuzzSeeds(40); ++seed) CompareFused(static_cast<uint64_t>(seed));
}

// A chain against one kernel each. Its products are those of a decoder: x of one is y of the one before, or
// its norm with what was before that.
void CompareChain(uint64_t seed) {
  TP_NEEDS_DEVICE();
  FuzzRng rng(seed + 2300);
  const int64_t rows = rng.OneOf({1, 2, 3, 4}), count = rng.OneOf({1, 1, 2, 3, 4, 8});
  std::string what = "chain, seed " + std::to_string(seed) + ", " + std::to_string(rows) + " rows";
  std::vector<std::unique_ptr<DeviceArray<BF16>>> held;
  const auto put = [&](int64_t n, float scale, bool settled) {
    held.push_back(std::make_unique<DeviceArray<BF16>>(RandomValues<BF16>(rng, n, scale)));
    if (settled) held.back()->Settle();
    return held.back()->data();
  };
  std::vector<device::FusedMultiplyArgs<BF16>> chain;
  int64_t k = rng.OneOf({8, 64, 72, 200, 896, 2304});
  const BF16* x = put(rows * k, 1.0F, false);
  const BF16* add = nullptr;
  for (int64_t i = 0; i < count; ++i) {
    const bool glu = rng.Below(2) == 0, norm = rng.Below(2) == 0;
    const int64_t ff = i + 1 < count ? rng.OneOf({8, 32, 72, 296, 1032}) : rng.OneOf({8, 30, 77, 296}),
                  n = glu ? 2 * ff : ff;
    what += ", " + std::to_string(n) + " x " + std::to_string(k) + (norm ? " norm" : "") +
            (add != nullptr && norm ? " add" : "") + (glu ? " gate" : "");
    device::FusedMultiplyArgs<BF16> f;
    f.multiply = {
        .rows = rows, .n = n, .k = k, .x = x, .w = put(n * k, 2.0F / std::sqrt(static_cast<float>(k)), true)};
    if (norm) {
      f.norm = {.rows = rows, .d = k, .x = x, .add = add, .weight = put(k, 1.0F, true), .eps = 1e-5F};
      f.multiply.x = nullptr;
    }
    if (glu) f.glu = {.rows = rows, .ff = ff};
    chain.push_back(f);
    // The norm of the next one may add something.
    add = nullptr;
    k = ff, x = nullptr;
    if (rng.Below(2) == 0) add = put(rows * k, 1.0F, false);
  }
  // Where each product reads and writes; arrays of their own, but y of one is what the next one reads.
  struct Arrays {
    std::vector<std::unique_ptr<DeviceArray<BF16>>> y, act, normed, sum;
  };
  const auto place = [&](Arrays& a) {
    std::vector<device::FusedMultiplyArgs<BF16>> placed = chain;
    const BF16* before = nullptr;
    for (size_t i = 0; i < placed.size(); ++i) {
      device::FusedMultiplyArgs<BF16>& f = placed[i];
      const auto take = [&](auto& of, int64_t n) {
        of.push_back(std::make_unique<DeviceArray<BF16>>(n));
        return of.back()->data();
      };
      if (f.norm.rows > 0) {
        if (before != nullptr) f.norm.x = before;
        f.norm.x_out = take(a.sum, rows * f.multiply.k);
        f.multiply.x = f.norm.out = take(a.normed, rows * f.multiply.k);
      } else if (before != nullptr) {
        f.multiply.x = before;
      }
      f.multiply.y = take(a.y, rows * f.multiply.n);
      before = f.multiply.y;
      if (f.glu.rows > 0) {
        f.glu.gate_up = f.multiply.y;
        before = f.glu.act = take(a.act, rows * f.glu.ff);
      }
    }
    return placed;
  };
  Arrays want;
  for (const device::FusedMultiplyArgs<BF16>& f : place(want)) {
    if (f.norm.rows > 0) RunKernel(what, [&](Launcher& l) { return RmsNorm(f.norm, l); });
    RunKernel(what, [&](Launcher& l) { return Multiply(f.multiply, l); });
    if (f.glu.rows > 0) RunKernel(what, [&](Launcher& l) { return SwiGlu(f.glu, l); });
  }
  // Blocks of the emulation cannot meet, so more than one have one product.
  const GpuOf several(count == 1 ? static_cast<int>(rng.OneOf({1, 3, 7, 150})) : 1);
  Bytes first;
  for (uint64_t order = 0; order < kOrders; ++order) {
    NewOrder(seed * 1000 + order);
    Arrays got;
    const std::vector<device::FusedMultiplyArgs<BF16>> placed = place(got);
    for (const device::FusedMultiplyArgs<BF16>& f : placed) EXPECT_TRUE(TakesInChain(f)) << what;
    RunKernel(what, [&](Launcher& l) {
      const int code = ProductChain(placed, l);
      return code != 0 ? code : ProductChain(placed, l);  // where the blocks have met before
    });
    Bytes now;
    size_t sums = 0, acts = 0;
    for (size_t i = 0; i < placed.size(); ++i) {
      // Errors of one product go through the next ones.
      const float off = 2e-2F * static_cast<float>(i + 1);
      const bool glu = placed[i].glu.rows > 0;
      const std::vector<BF16> y = (glu ? got.act[acts] : got.y[i])->Read();
      ExpectNear(y, (glu ? want.act[acts] : want.y[i])->Read(), off, 2.0F / 128,
                 what + ", product " + std::to_string(i));
      acts += glu ? 1 : 0;
      const Bytes bytes = BytesOf(y);
      now.insert(now.end(), bytes.begin(), bytes.end());
      if (placed[i].norm.rows > 0) {
        if (placed[i].norm.add != nullptr)
          ExpectNear(got.sum[sums]->Read(), want.sum[sums]->Read(), off, 2.0F / 128,
                     what + ", sum " + std::to_string(i));
        ++sums;
      }
    }
    if (order == 0) first = now;
    EXPECT_TRUE(now == first) << what << ": another result in another order of threads";
  }
}
TEST(MultiplyKernelTest, AChainOfProductsAgreesWithOneKernelEach) {
  for (int64_t seed = 0; seed < FuzzSeeds(20); ++seed) CompareChain(static_cast<uint64_t>(seed));
}

}  // namespace
}  // namespace tidepool::cuda
