// Grouped products against the CPU's product of each group.

#include <algorithm>

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
  std::vector<float> scratch(static_cast<size_t>(
      std::max(cpu.multiply_scratch(std::max<int64_t>(rows, 1), k), device::MultiplyBackScratch())));
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = begin[static_cast<size_t>(g)], m = begin[static_cast<size_t>(g) + 1] - at;
    if (m == 0) continue;
    cpu.multiply(0, n,
                 {.rows = m,
                  .n = n,
                  .k = k,
                  .x = x.data() + at * k,
                  .w = w.data() + g * n * k,
                  .y = y.data() + at * n},
                 scratch.data());
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

}  // namespace
}  // namespace tidepool::cuda
