// AdamW, the embedding and experts against the CPU.

#include <algorithm>
#include <iterator>
#include <numeric>

#include "core/base/hash.h"
#include "tests/core/cuda/device_array.h"

namespace tidepool::cuda {
namespace {

// core/train/optimizer.cc's step in float64, from the master copy on.
template <typename T>
void CompareAdamW(uint64_t seed) {
  TP_NEEDS_DEVICE();
  FuzzRng rng(seed + 100);
  // Below and above what a block adds up, with 16 bytes at a time and without.
  constexpr int64_t kSizes[] = {70000, 3001, 1024, 255, 65537, 1};
  const int64_t n = kSizes[seed % std::size(kSizes)];
  const std::string what = std::string(TypeName<T>()) + ", seed " + std::to_string(seed);
  const std::vector<float> g = RandomValues<float>(rng, n, 0.1F), m0 = RandomValues<float>(rng, n, 0.1F);
  std::vector<float> v0 = RandomValues<float>(rng, n, 0.01F);
  for (float& v : v0) v = std::abs(v);
  const std::vector<T> w0 = RandomValues<T>(rng, n);
  std::vector<int16_t> rest0(static_cast<size_t>(n));
  for (int16_t& r : rest0) r = static_cast<int16_t>(rng.Next());
  device::AdamWArgs<T> a{.n = n,
                         .beta1 = 0.9F,
                         .rest1 = 0.1F,
                         .beta2 = 0.999F,
                         .rest2 = 0.001F,
                         .eps = 1e-8F,
                         .decay = 0.9999F,
                         .step = 1e-3F / 0.4F,
                         .root = 1.0F / std::sqrt(0.005F),
                         .max_grad_norm = rng.Below(2) == 0 ? 0.0 : 0.5};
  double squares = 0;
  for (const float x : g) squares += static_cast<double>(x) * x;
  const double norm = std::sqrt(squares);
  const float clip = static_cast<float>(
      a.max_grad_norm > 0 && norm > a.max_grad_norm ? a.max_grad_norm / (norm + 1e-6) : 1.0);
  const auto master = [](const std::vector<T>& w, const std::vector<int16_t>& rest) {
    std::vector<float> out;
    for (size_t i = 0; i < w.size(); ++i) {
      out.push_back(sizeof(T) == 4
                        ? AsFloat(w[i])
                        : std::bit_cast<float>(std::bit_cast<uint32_t>(AsFloat(w[i])) +
                                               static_cast<uint32_t>(static_cast<int32_t>(rest[i]))));
    }
    return out;
  };
  std::vector<float> want_m, want_v, want;
  const std::vector<float> p0 = master(w0, rest0);
  for (size_t i = 0; i < g.size(); ++i) {
    const double x = static_cast<double>(g[i]) * clip;
    const double m = a.beta1 * static_cast<double>(m0[i]) + a.rest1 * x,
                 v = a.beta2 * static_cast<double>(v0[i]) + a.rest2 * x * x;
    want_m.push_back(static_cast<float>(m));
    want_v.push_back(static_cast<float>(v));
    want.push_back(static_cast<float>(static_cast<double>(p0[i]) * a.decay -
                                      a.step * m / (std::sqrt(v) * a.root + a.eps)));
  }
  const DeviceArray<float> d_g(g);
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<float> m(m0), v(v0);
    const DeviceArray<T> w(w0);
    const DeviceArray<int16_t> rest(rest0);
    const DeviceArray<double> sum(1);
    a.gradients = d_g.data();
    a.weights = w.data();
    a.rest = sizeof(T) == 2 ? rest.data() : nullptr;
    a.m = m.data();
    a.v = v.data();
    a.square_sum = sum.data();
    RunKernel(what, [&](Launcher& l) {
      return SquareSum(device::SquareSumArgs{.n = n, .x = d_g.data(), .sum = sum.data()}, l);
    });
    EXPECT_NEAR(sum.Read()[0], squares, 1e-12 * squares) << what;
    RunKernel(what, [&](Launcher& l) { return AdamW(a, l); });
    ExpectNear(m.Read(), want_m, 1e-8F, 1e-6F, what + " m");
    ExpectNear(v.Read(), want_v, 1e-10F, 1e-6F, what + " v");
    ExpectNear(master(w.Read(), rest.Read()), want, 1e-7F, 1e-6F, what + " master");
    if constexpr (sizeof(T) == 2) {  // the weight is the master copy, rounded, a tie away from zero
      const std::vector<T> got = w.Read();
      const std::vector<float> masters = master(got, rest.Read());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(got[i].bits == (std::bit_cast<uint32_t>(masters[i]) + 0x8000U) >> 16)
            << what << " weight " << i;
      }
    }
    return BytesOf(m.Read(), v.Read(), w.Read(), rest.Read());
  });
  // Gradients that are not finite change nothing.
  const DeviceArray<T> w(w0);
  const DeviceArray<double> nan(std::vector<double>{NAN});
  a.weights = w.data();
  a.square_sum = nan.data();
  RunKernel(what, [&](Launcher& l) { return AdamW(a, l); });
  ExpectNear(w.Read(), w0, 0.0F, 0.0F, what + " untouched");
}
TEST(UpdateKernelTest, AdamWIsTheFormula) {
  for (int64_t seed = 0; seed < FuzzSeeds(6); ++seed) {
    CompareAdamW<float>(static_cast<uint64_t>(seed));
    CompareAdamW<BF16>(static_cast<uint64_t>(seed));
  }
}

// core/base/hash.h's sum, a bucket at a time.
void CompareSaltedSums(uint64_t seed) {
  TP_NEEDS_DEVICE();
  FuzzRng rng(seed + 150);
  const int64_t words = rng.OneOf({1, 31, 300, 16384, 50001});
  device::SaltedSumsArgs a{.words = words,
                           .bucket_words = rng.OneOf({words, 2 * words, words / 3 + 1, words / 7 + 5})};
  std::vector<uint64_t> x, want;
  for (int64_t i = 0; i < words; ++i) x.push_back(rng.Next());
  for (int64_t i = 0; i < words; ++i) {
    const int64_t bucket = i / a.bucket_words, place = i % a.bucket_words;
    if (place == 0) want.push_back(0);
    want.back() += Mix64(x[static_cast<size_t>(i)] ^ Mix64(static_cast<uint64_t>(bucket + place)));
  }
  const DeviceArray<uint64_t> d_x(x);
  SameInEveryOrder(seed, "salted sums", [&] {
    const DeviceArray<uint64_t> sums(a.buckets());
    a.x = d_x.data();
    a.sums = sums.data();
    RunKernel("salted sums", [&](Launcher& l) { return SaltedSums(a, l); });
    EXPECT_TRUE(sums.Read() == want) << words << " words in buckets of " << a.bucket_words;
    return BytesOf(sums.Read());
  });
}
TEST(UpdateKernelTest, DigestsOfBucketsAreTheHosts) {
  for (int64_t seed = 0; seed < FuzzSeeds(5); ++seed) CompareSaltedSums(static_cast<uint64_t>(seed));
}

template <typename T>
void CompareEmbedding(uint64_t seed) {
  TP_NEEDS_DEVICE();
  FuzzRng rng(seed + 200);
  const int64_t rows = rng.OneOf({1, 9, 300, 600}), d = rng.OneOf({1, 24, 100, 264}),
                vocab = rng.OneOf({3, 50, 1000});
  const std::string what = std::string(TypeName<T>()) + ", seed " + std::to_string(seed);
  std::vector<int32_t> ids;
  const int64_t elsewhere = rng.OneOf({0, 0, 4});  // one id in so many is of another part of the table
  for (int64_t r = 0; r < rows; ++r)
    ids.push_back(elsewhere > 0 && rng.Below(elsewhere) == 0 ? -1 : static_cast<int32_t>(rng.Below(vocab)));
  const std::vector<T> table = RandomValues<T>(rng, vocab * d), zeros(static_cast<size_t>(d));
  const std::vector<T> dx = RandomValues<T>(rng, rows * d);
  const std::vector<float> dtable0 = RandomValues<float>(rng, vocab * d);
  std::vector<float> dtable = dtable0;
  device::KernelsFor<T>(device::BestIsa())
      .scatter_add_rows(0, d, rows, d, ids.data(), dx.data(), dtable.data());
  const DeviceArray<int32_t> d_ids(ids);
  const DeviceArray<T> d_table(table), d_dx(dx);
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<T> out(rows * d);
    const DeviceArray<float> d_dtable(dtable0);
    const device::GatherRowsArgs<T> gather{.rows = rows,
                                           .d = d,
                                           .table_rows = vocab,
                                           .ids = d_ids.data(),
                                           .table = d_table.data(),
                                           .out = out.data()};
    RunKernel(what, [&](Launcher& l) { return GatherRows(gather, l); });
    const device::ScatterAddRowsArgs<T> scatter{.rows = rows,
                                                .d = d,
                                                .table_rows = vocab,
                                                .ids = d_ids.data(),
                                                .x = d_dx.data(),
                                                .table = d_dtable.data()};
    RunKernel(what, [&](Launcher& l) { return ScatterAddRows(scatter, l); });
    const std::vector<T> got = out.Read();
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t id = ids[static_cast<size_t>(r)];
      EXPECT_TRUE(std::memcmp(got.data() + r * d, id < 0 ? zeros.data() : table.data() + id * d,
                              static_cast<size_t>(d) * sizeof(T)) == 0)
          << what;
    }
    ExpectNear(d_dtable.Read(), dtable, 0.0F, 0.0F, what + " gradient");  // rows in order on both: equal bits
    return BytesOf(d_dtable.Read());
  });
}
TEST(UpdateKernelTest, TheEmbeddingsGradientIsTheCpusBitForBit) {
  for (int64_t seed = 0; seed < FuzzSeeds(5); ++seed) {
    CompareEmbedding<float>(static_cast<uint64_t>(seed));
    CompareEmbedding<BF16>(static_cast<uint64_t>(seed));
  }
}

template <typename T>
void CompareExperts(uint64_t seed) {
  TP_NEEDS_DEVICE();
  const auto& cpu = device::KernelsFor<T>(device::BestIsa());
  FuzzRng rng(seed + 300);
  const int64_t rows = rng.OneOf({1, 5, 20}), d = rng.OneOf({8, 30, 64, 2056}),
                experts = rng.OneOf({2, 8, 60, 128}), k = std::min<int64_t>(experts, rng.Between(1, 8));
  const std::string what = std::string(TypeName<T>()) + ", seed " + std::to_string(seed);
  const std::vector<T> x = RandomValues<T>(rng, rows * d);
  std::vector<T> w = RandomValues<T>(rng, experts * d);
  if (rng.Below(2) == 0) {  // pairs of experts alike: equal probabilities
    for (int64_t e = 1; e < experts; e += 2) std::copy_n(w.begin() + (e - 1) * d, d, w.begin() + e * d);
  }
  std::vector<float> logits(static_cast<size_t>(rows * experts));
  cpu.router(0, rows, d, experts, x.data(), w.data(), logits.data());
  const DeviceArray<T> d_x(x), d_w(w);
  std::vector<int32_t> replay(static_cast<size_t>(rows * k), -1);
  const bool with_replay = rng.Below(2) == 0, in_place = rng.Below(2) == 0, renormalize = rng.Below(2) == 0;
  for (int64_t i = 0; i < k; ++i)
    replay[static_cast<size_t>(i)] = static_cast<int32_t>((i * 3 + 1) % experts);  // row 0
  const DeviceArray<int32_t> d_replay(replay);
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<float> probs(rows * experts), weights(rows * k);
    const DeviceArray<int32_t> chosen(replay);  // may be what is replayed
    const device::RouterArgs<T> router{
        .rows = rows, .d = d, .experts = experts, .x = d_x.data(), .w = d_w.data(), .logits = probs.data()};
    RunKernel(what, [&](Launcher& l) { return Router(router, l); });
    const std::vector<float> z = probs.Read();
    ExpectNear(z, logits, 2e-4F, 2e-5F, what + " router");
    const device::RouteArgs a{.rows = rows,
                              .experts = experts,
                              .k = k,
                              .probs = probs.data(),
                              .replay = !with_replay ? nullptr
                                        : in_place   ? chosen.data()
                                                     : d_replay.data(),
                              .renormalize = renormalize,
                              .chosen = chosen.data(),
                              .weights = weights.data()};
    RunKernel(what, [&](Launcher& l) { return Route(a, l); });
    const std::vector<float> p = probs.Read(), got = weights.Read();
    const std::vector<int32_t> ids = chosen.Read();
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      const float* row = z.data() + r * experts;
      const float top = *std::max_element(row, row + experts);
      for (int64_t e = 0; e < experts; ++e) sum += std::exp(static_cast<double>(row[e]) - top);
      for (int64_t e = 0; e < experts; ++e) {
        EXPECT_NEAR(p[static_cast<size_t>(r * experts + e)],
                    std::exp(static_cast<double>(row[e]) - top) / sum, 2e-6)
            << what;
      }
      std::vector<int32_t> order(static_cast<size_t>(experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t i, int32_t j) {
        return p[static_cast<size_t>(r * experts + i)] > p[static_cast<size_t>(r * experts + j)];
      });
      double all = 0;
      for (int64_t i = 0; i < k; ++i) {
        const bool given = with_replay && r == 0;
        const int32_t want = given ? replay[static_cast<size_t>(i)] : order[static_cast<size_t>(i)];
        EXPECT_EQ(ids[static_cast<size_t>(r * k + i)], want) << what;
        all += p[static_cast<size_t>(r * experts + want)];
      }
      for (int64_t i = 0; i < k; ++i) {
        const double want = p[static_cast<size_t>(r * experts + ids[static_cast<size_t>(r * k + i)])] /
                            (renormalize ? all : 1.0);
        EXPECT_NEAR(got[static_cast<size_t>(r * k + i)], want, 1e-5) << what;
      }
    }
    return BytesOf(z, p, ids, got);
  });

  const int64_t gathered = rows * k + 3;
  std::vector<int32_t> place(static_cast<size_t>(gathered));
  std::iota(place.begin(), place.end(), 0);
  for (size_t i = place.size() - 1; i > 0; --i)
    std::swap(place[i], place[static_cast<size_t>(rng.Below(static_cast<int64_t>(i) + 1))]);
  place.resize(static_cast<size_t>(rows * k));
  const std::vector<T> y = RandomValues<T>(rng, gathered * d), shared = RandomValues<T>(rng, rows * d),
                       dout = RandomValues<T>(rng, rows * d);
  const std::vector<float> weights = RandomValues<float>(rng, rows * k),
                           gate = RandomValues<float>(rng, rows);
  const bool with_shared = rng.Below(2) == 0;
  std::vector<T> out(dout.size()), dshared(dout.size()), dy = y;
  std::vector<float> dweights(weights.size()), dgate(gate.size());
  cpu.combine_experts(0, rows,
                      {.rows = rows,
                       .d = d,
                       .k = k,
                       .place = place.data(),
                       .weights = weights.data(),
                       .y = y.data(),
                       .gate = gate.data(),
                       .shared = with_shared ? shared.data() : nullptr,
                       .out = out.data()});
  cpu.combine_experts_backward(0, rows,
                               {.rows = rows,
                                .d = d,
                                .k = k,
                                .place = place.data(),
                                .weights = weights.data(),
                                .y = y.data(),
                                .gate = gate.data(),
                                .shared = with_shared ? shared.data() : nullptr,
                                .dout = dout.data(),
                                .dy = dy.data(),
                                .dweights = dweights.data(),
                                .dshared = dshared.data(),
                                .dgate = dgate.data()});
  const DeviceArray<int32_t> d_place(place);
  const DeviceArray<T> d_y(y), d_shared(shared), d_dout(dout);
  const DeviceArray<float> d_weights(weights), d_gate(gate);
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<T> d_out(rows * d), d_dshared(rows * d), d_dy(y);
    const DeviceArray<float> d_dweights(rows * k), d_dgate(rows);
    const device::CombineExpertsArgs<T> forward{.rows = rows,
                                                .d = d,
                                                .k = k,
                                                .place = d_place.data(),
                                                .weights = d_weights.data(),
                                                .y = d_y.data(),
                                                .gate = d_gate.data(),
                                                .shared = with_shared ? d_shared.data() : nullptr,
                                                .out = d_out.data()};
    RunKernel(what, [&](Launcher& l) { return CombineExperts(forward, l); });
    const device::CombineExpertsBackwardArgs<T> back{.rows = rows,
                                                     .d = d,
                                                     .k = k,
                                                     .place = d_place.data(),
                                                     .weights = d_weights.data(),
                                                     .y = d_y.data(),
                                                     .gate = d_gate.data(),
                                                     .shared = with_shared ? d_shared.data() : nullptr,
                                                     .dout = d_dout.data(),
                                                     .dy = d_dy.data(),
                                                     .dweights = d_dweights.data(),
                                                     .dshared = d_dshared.data(),
                                                     .dgate = d_dgate.data()};
    RunKernel(what, [&](Launcher& l) { return CombineExpertsBackward(back, l); });
    ExpectNear(d_out.Read(), out, 1e-6F, Relative<T>(), what + " out");
    ExpectNear(d_dy.Read(), dy, 0.0F, 0.0F, what + " dy");
    ExpectNear(d_dweights.Read(), dweights, 1e-4F, 2e-5F, what + " dweights");
    if (with_shared) {
      ExpectNear(d_dshared.Read(), dshared, 0.0F, 0.0F, what + " dshared");
      ExpectNear(d_dgate.Read(), dgate, 1e-4F, 2e-5F, what + " dgate");
    }
    return BytesOf(d_out.Read(), d_dweights.Read());
  });
}
TEST(UpdateKernelTest, ExpertsAgreeWithTheCpu) {
  for (int64_t seed = 0; seed < FuzzSeeds(6); ++seed) {
    CompareExperts<float>(static_cast<uint64_t>(seed));
    CompareExperts<BF16>(static_cast<uint64_t>(seed));
  }
}

}  // namespace
}  // namespace tidepool::cuda
