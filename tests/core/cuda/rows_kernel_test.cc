// Norms, head norms and rotation, SwiGLU, biases and column sums against the CPU kernels.

#include "tests/core/cuda/device_array.h"

namespace tidepool::cuda {
namespace {

// A case: the CPU's table, and a seed.
template <typename T>
struct Case {
  const device::KernelTable<T>& cpu = device::KernelsFor<T>(device::BestIsa());
  FuzzRng rng;
  uint64_t seed;
  std::string what;
};
template <typename T>
using CaseFunction = void(Case<T>&);

template <typename T>
void RunCase(uint64_t seed, CaseFunction<T>* run) {
  TP_NEEDS_DEVICE();
  Case<T> c{.rng = FuzzRng(seed),
            .seed = seed,
            .what = std::string(TypeName<T>()) + ", seed " + std::to_string(seed)};
  run(c);
}
template <template <typename> class F>
void Fuzz(int64_t seeds) {
  for (int64_t seed = 0; seed < FuzzSeeds(seeds); ++seed) {
    RunCase<float>(static_cast<uint64_t>(seed), F<float>::Run);
    RunCase<BF16>(static_cast<uint64_t>(seed), F<BF16>::Run);
  }
}

template <typename T>
struct Norm {
  static void Run(Case<T>& c) {
    FuzzRng& rng = c.rng;
    const int64_t rows = rng.OneOf({1, 2, 3, 35}), d = rng.OneOf({1, 8, 24, 100, 576, 1001, 2056});
    const bool add = rng.Below(2) == 0, in_place = rng.Below(2) == 0;
    const std::string what = c.what + ", d " + std::to_string(d);
    const std::vector<T> x = RandomValues<T>(rng, rows * d), residual = RandomValues<T>(rng, rows * d),
                         weight = RandomValues<T>(rng, d, 2.0F), dout = RandomValues<T>(rng, rows * d);
    std::vector<T> sum = x, out(x.size());
    std::vector<float> rstd(static_cast<size_t>(rows));
    device::RmsNormArgs<T> a{.rows = rows,
                             .d = d,
                             .x = sum.data(),
                             .weight = weight.data(),
                             .eps = 1e-5F,
                             .out = out.data(),
                             .rstd = rstd.data()};
    if (add) {
      a.add = residual.data();
      a.x_out = sum.data();
    }
    c.cpu.rms_norm(0, rows, a);
    const DeviceArray<T> d_residual(residual), d_weight(weight), d_dout(dout);
    DeviceArray<T> d_x(x), d_sum(x);
    SameInEveryOrder(c.seed, what, [&] {
      d_x.Write(x);
      const DeviceArray<T> d_out(rows * d), d_other(rows * d);
      const DeviceArray<float> d_rstd(rows);
      device::RmsNormArgs<T> b{.rows = rows,
                               .d = d,
                               .x = d_x.data(),
                               .weight = d_weight.data(),
                               .eps = 1e-5F,
                               .out = d_out.data(),
                               .rstd = d_rstd.data()};
      T* const sum_at = in_place ? d_x.data() : d_other.data();
      if (add) {
        b.add = d_residual.data();
        b.x_out = sum_at;
      }
      RunKernel(what, [&](Launcher& l) { return RmsNorm(b, l); });
      ExpectNear(d_out.Read(), out, 1e-6F, Relative<T>(), what + " norm");
      ExpectNear(d_rstd.Read(), rstd, 0.0F, 1e-5F, what + " rstd");
      if (add) ExpectNear(in_place ? d_x.Read() : d_other.Read(), sum, 0.0F, 0.0F, what + " sum");
      return BytesOf(d_out.Read(), d_rstd.Read());
    });

    const std::vector<float> dx0 = RandomValues<float>(rng, rows * d), dw0 = RandomValues<float>(rng, d);
    std::vector<float> dx = dx0, dw = dw0;
    std::vector<T> copy(x.size());
    c.cpu.rms_norm_backward(0, rows, d, sum.data(), weight.data(), rstd.data(), dout.data(), dx.data(),
                            copy.data());
    c.cpu.rms_norm_backward_weight(0, d, rows, d, sum.data(), rstd.data(), dout.data(), dw.data());
    d_sum.Write(sum);
    const DeviceArray<float> d_rstd(rstd);
    DeviceArray<float> d_dx(dx0), d_dw(dw0);
    const bool with_copy = rng.Below(2) == 0;
    SameInEveryOrder(c.seed, what, [&] {
      d_dx.Write(dx0);
      d_dw.Write(dw0);
      const DeviceArray<T> d_copy(rows * d);
      const device::RmsNormBackwardArgs<T> b{.rows = rows,
                                             .d = d,
                                             .x = d_sum.data(),
                                             .weight = d_weight.data(),
                                             .rstd = d_rstd.data(),
                                             .dout = d_dout.data(),
                                             .dx = d_dx.data(),
                                             .dx_copy = with_copy ? d_copy.data() : nullptr,
                                             .dweight = d_dw.data()};
      RunKernel(what, [&](Launcher& l) { return RmsNormBackward(b, l); });
      ExpectNear(d_dx.Read(), dx, 1e-5F, 2e-5F, what + " dx");
      ExpectNear(d_dw.Read(), dw, 1e-5F, 2e-5F, what + " dweight");
      if (with_copy) ExpectNear(d_copy.Read(), copy, 1e-5F, Relative<T>(), what + " copy of dx");
      return BytesOf(d_dx.Read(), d_dw.Read());
    });
  }
};
TEST(RowsKernelTest, NormsAgreeWithTheCpu) { Fuzz<Norm>(10); }

template <typename T>
struct Heads {
  static void Run(Case<T>& c) {
    FuzzRng& rng = c.rng;
    const int64_t kv = rng.Between(1, 2), heads = kv * rng.Between(1, 3),
                  size = rng.OneOf({16, 22, 64, 128, 512});
    const int64_t rows = rng.OneOf({1, 5, 37}), slots = rows + 3, width = (heads + 2 * kv) * size,
                  positions = 50;
    const std::string what = c.what + ", head size " + std::to_string(size);
    const std::vector<T> qkv = RandomValues<T>(rng, rows * width), bias = RandomValues<T>(rng, width),
                         q_norm = RandomValues<T>(rng, size, 2.0F), k_norm = RandomValues<T>(rng, size, 2.0F);
    std::vector<float> cos, sin;
    for (int64_t i = 0; i < positions * size / 2; ++i) {
      const float angle = 6.3F * rng.Uniform();
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    std::vector<int32_t> position, slot;
    for (int64_t r = 0; r < rows; ++r) {
      position.push_back(static_cast<int32_t>(rng.Below(positions)));
      slot.push_back(static_cast<int32_t>(slots % 3 == 0 ? r : (r * 3 + 1) % slots));
    }
    const bool with_bias = rng.Below(2) == 0, normed = rng.Below(2) == 0;
    const auto n = static_cast<size_t>(rows * heads * size), m = static_cast<size_t>(slots * kv * size);
    std::vector<T> q(n), k = RandomValues<T>(rng, static_cast<int64_t>(m)), v = k;
    const std::vector<T> k0 = k;
    device::RotaryArgs<T> a{.heads = heads,
                            .kv_heads = kv,
                            .head_size = size,
                            .qkv = qkv.data(),
                            .eps = 1e-6F,
                            .cos = cos.data(),
                            .sin = sin.data(),
                            .positions = position.data(),
                            .slots = slot.data(),
                            .q = q.data(),
                            .k = k.data(),
                            .v = v.data()};
    if (with_bias) a.bias = bias.data();
    if (normed) {
      a.q_norm = q_norm.data();
      a.k_norm = k_norm.data();
    }
    c.cpu.rotary(0, rows, a);
    const DeviceArray<T> d_qkv(qkv), d_bias(bias), d_q_norm(q_norm), d_k_norm(k_norm);
    const DeviceArray<float> d_cos(cos), d_sin(sin);
    const DeviceArray<int32_t> d_position(position), d_slot(slot);
    SameInEveryOrder(c.seed, what, [&] {
      const DeviceArray<T> d_q(static_cast<int64_t>(n));
      const DeviceArray<T> d_k(k0), d_v(k0);
      const device::RotaryArgs<T> b{.rows = rows,
                                    .heads = heads,
                                    .kv_heads = kv,
                                    .head_size = size,
                                    .qkv = d_qkv.data(),
                                    .bias = with_bias ? d_bias.data() : nullptr,
                                    .q_norm = normed ? d_q_norm.data() : nullptr,
                                    .k_norm = normed ? d_k_norm.data() : nullptr,
                                    .eps = 1e-6F,
                                    .cos = d_cos.data(),
                                    .sin = d_sin.data(),
                                    .positions = d_position.data(),
                                    .slots = d_slot.data(),
                                    .q = d_q.data(),
                                    .k = d_k.data(),
                                    .v = d_v.data()};
      RunKernel(what, [&](Launcher& l) { return Rotary(b, l); });
      ExpectNear(d_q.Read(), q, 2e-6F, Relative<T>(), what + " q");
      ExpectNear(d_k.Read(), k, 2e-6F, Relative<T>(), what + " k");
      ExpectNear(d_v.Read(), v, 0.0F, 0.0F, what + " v");
      return BytesOf(d_q.Read(), d_k.Read());
    });

    const std::vector<T> dqkv0 = RandomValues<T>(rng, rows * width);
    const std::vector<float> dw0 = RandomValues<float>(rng, 2 * size);
    std::vector<T> dqkv = dqkv0;
    std::vector<float> dw = dw0;
    device::HeadNormBackwardArgs<T> back{.heads = heads,
                                         .kv_heads = kv,
                                         .head_size = size,
                                         .qkv = qkv.data(),
                                         .q_norm = q_norm.data(),
                                         .k_norm = k_norm.data(),
                                         .eps = 1e-6F,
                                         .dqkv = dqkv.data()};
    if (with_bias) back.bias = bias.data();
    c.cpu.head_norm_backward(0, rows, back, dw.data());
    DeviceArray<T> d_dqkv(dqkv0);
    const std::vector<float> dq0(dw0.begin(), dw0.begin() + size), dk0(dw0.begin() + size, dw0.end());
    const std::vector<float> dq(dw.begin(), dw.begin() + size), dk(dw.begin() + size, dw.end());
    DeviceArray<float> d_dq(dq0), d_dk(dk0);
    SameInEveryOrder(c.seed, what, [&] {
      d_dqkv.Write(dqkv0);
      d_dq.Write(dq0);
      d_dk.Write(dk0);
      const device::HeadNormBackwardArgs<T> b{.rows = rows,
                                              .heads = heads,
                                              .kv_heads = kv,
                                              .head_size = size,
                                              .qkv = d_qkv.data(),
                                              .bias = with_bias ? d_bias.data() : nullptr,
                                              .q_norm = d_q_norm.data(),
                                              .k_norm = d_k_norm.data(),
                                              .eps = 1e-6F,
                                              .dqkv = d_dqkv.data(),
                                              .dq_norm = d_dq.data(),
                                              .dk_norm = d_dk.data()};
      RunKernel(what, [&](Launcher& l) { return HeadNormBackward(b, l); });
      ExpectNear(d_dqkv.Read(), dqkv, 2e-5F, Relative<T>(), what + " dqkv");
      ExpectNear(d_dq.Read(), dq, 1e-4F, 2e-5F, what + " dweight of queries");
      ExpectNear(d_dk.Read(), dk, 1e-4F, 2e-5F, what + " dweight of keys");
      return BytesOf(d_dqkv.Read(), d_dq.Read(), d_dk.Read());
    });
  }
};
TEST(RowsKernelTest, HeadNormsAndRotationAgreeWithTheCpu) { Fuzz<Heads>(8); }

template <typename T>
struct Glu {
  static void Run(Case<T>& c) {
    FuzzRng& rng = c.rng;
    const int64_t rows = rng.Between(1, 3), ff = rng.OneOf({1, 8, 33, 1536, 2056});
    const std::vector<T> gate_up = RandomValues<T>(rng, rows * 2 * ff, 8.0F),
                         dact = RandomValues<T>(rng, rows * ff);
    std::vector<T> act(dact.size()), dgate_up(gate_up.size());
    c.cpu.swiglu(0, rows, ff, gate_up.data(), act.data());
    c.cpu.swiglu_backward(0, rows, ff, gate_up.data(), dact.data(), dgate_up.data());
    const DeviceArray<T> d_dact(dact);
    DeviceArray<T> d_gate_up(gate_up);
    SameInEveryOrder(c.seed, c.what, [&] {
      d_gate_up.Write(gate_up);
      const DeviceArray<T> d_act(rows * ff);
      const device::SwiGluArgs<T> forward{
          .rows = rows, .ff = ff, .gate_up = d_gate_up.data(), .act = d_act.data()};
      RunKernel(c.what, [&](Launcher& l) { return SwiGlu(forward, l); });
      const device::SwiGluBackwardArgs<T> back{.rows = rows,
                                               .ff = ff,
                                               .gate_up = d_gate_up.data(),
                                               .dact = d_dact.data(),
                                               .dgate_up = d_gate_up.data()};
      RunKernel(c.what, [&](Launcher& l) { return SwiGluBackward(back, l); });
      ExpectNear(d_act.Read(), act, 1e-6F, Relative<T>(), c.what + " act");
      ExpectNear(d_gate_up.Read(), dgate_up, 5e-6F, Relative<T>(), c.what + " dgate_up");
      return BytesOf(d_act.Read(), d_gate_up.Read());
    });
  }
};
TEST(RowsKernelTest, SwiGluAgreesWithTheCpu) { Fuzz<Glu>(6); }

template <typename T>
struct Rest {
  static void Run(Case<T>& c) {
    FuzzRng& rng = c.rng;
    const int64_t rows = rng.OneOf({7, 40, 100, 333}), n = rng.OneOf({1, 31, 64, 100}), all = rows * n;
    const std::vector<T> x = RandomValues<T>(rng, all), bias = RandomValues<T>(rng, n),
                         y0 = RandomValues<T>(rng, all);
    const std::vector<float> sums0 = RandomValues<float>(rng, all);
    std::vector<float> column(sums0.begin(), sums0.begin() + n), wide(sums0.size());
    std::vector<T> y = y0, narrow(y.size());
    c.cpu.column_sum(0, n, rows, n, x.data(), column.data());
    c.cpu.add_bias(0, rows, n, bias.data(), y.data());
    c.cpu.widen(0, all, y0.data(), wide.data());
    c.cpu.narrow(0, all, sums0.data(), narrow.data());
    const DeviceArray<T> d_x(x), d_bias(bias), d_y0(y0);
    const DeviceArray<float> d_sums0(sums0);
    SameInEveryOrder(c.seed, c.what, [&] {
      const DeviceArray<float> d_column(std::vector<float>(sums0.begin(), sums0.begin() + n)), d_wide(all);
      const DeviceArray<T> d_y(y0), d_narrow(all);
      const auto run = [&](auto kernel, auto args) {
        RunKernel(c.what, [&](Launcher& l) { return kernel(args, l); });
      };
      run(ColumnSum<T>,
          device::ColumnSumArgs<T>{.rows = rows, .n = n, .x = d_x.data(), .out = d_column.data()});
      run(AddBias<T>, device::AddBiasArgs<T>{.rows = rows, .n = n, .bias = d_bias.data(), .x = d_y.data()});
      run(Widen<T>, device::WidenArgs<T>{.n = all, .x = d_y0.data(), .out = d_wide.data()});
      run(Narrow<T>, device::NarrowArgs<T>{.n = all, .x = d_sums0.data(), .out = d_narrow.data()});
      ExpectNear(d_column.Read(), column, 2e-5F, 2e-5F, c.what + " column sums");
      ExpectNear(d_y.Read(), y, 0.0F, 0.0F, c.what + " bias");
      ExpectNear(d_wide.Read(), wide, 0.0F, 0.0F, c.what + " widen");
      ExpectNear(d_narrow.Read(), narrow, 0.0F, 0.0F, c.what + " narrow");
      return BytesOf(d_column.Read());
    });
  }
};
TEST(RowsKernelTest, BiasesSumsAndTypesAgreeWithTheCpu) { Fuzz<Rest>(6); }

}  // namespace
}  // namespace tidepool::cuda
