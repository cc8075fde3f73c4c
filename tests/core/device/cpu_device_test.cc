// What the CPU's device adds to its kernels: how it divides them, and which it calls for several.
#include "core/device/cpu/cpu_device.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <span>
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
    const bool strips = device.lays_out(2 * ff, k, DType::kBFloat16);
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

}  // namespace
}  // namespace tidepool::device
