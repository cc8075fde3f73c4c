// What stands beside the products of experts, against loops that say what is meant: the order of pairs, the
// backward of routing and of the gate, sums.

#include <algorithm>
#include <numeric>

#include "tests/core/cuda/device_array.h"

namespace tidepool::cuda {
namespace {

struct Sizes {
  int64_t rows, experts, k;
};
Sizes RandomSizes(FuzzRng& rng) {
  Sizes s{.rows = rng.OneOf({1, 7, 100, 300}), .experts = rng.OneOf({1, 8, 60, 128}), .k = 0};
  s.k = std::min(s.experts, rng.Between(1, 8));
  return s;
}
// [rows, k]: of a row each expert once; some experts have no row.
std::vector<int32_t> RandomChoices(FuzzRng& rng, const Sizes& s) {
  std::vector<int32_t> chosen, ids(static_cast<size_t>(rng.Between(s.k, s.experts)));
  std::iota(ids.begin(), ids.end(), 0);
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t i = 0; i < s.k; ++i) {
      std::swap(ids[static_cast<size_t>(i)],
                ids[static_cast<size_t>(rng.Between(i, static_cast<int64_t>(ids.size()) - 1))]);
      chosen.push_back(ids[static_cast<size_t>(i)]);
    }
  }
  return chosen;
}

void CompareGroups(uint64_t seed) {
  FuzzRng rng(seed + 1000);
  const Sizes s = RandomSizes(rng);
  const std::string what = "groups, seed " + std::to_string(seed);
  const std::vector<int32_t> chosen = RandomChoices(rng, s);
  std::vector<int32_t> order(chosen.size()), begin, place(chosen.size()), row_of;
  std::iota(order.begin(), order.end(), 0);
  const auto expert = [&](int32_t pair) { return chosen[static_cast<size_t>(pair)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return expert(a) < expert(b); });
  for (int32_t e = 0; e <= s.experts; ++e) {
    begin.push_back(
        static_cast<int32_t>(std::count_if(chosen.begin(), chosen.end(), [&](int32_t c) { return c < e; })));
  }
  for (size_t g = 0; g < order.size(); ++g) {
    place[static_cast<size_t>(order[g])] = static_cast<int32_t>(g);
    row_of.push_back(static_cast<int32_t>(order[g] / s.k));
  }
  const DeviceArray<int32_t> d_chosen(chosen);
  SameInEveryOrder(seed, what, [&] {
    const auto pairs = static_cast<int64_t>(chosen.size());
    const DeviceArray<int32_t> d_begin(s.experts + 1), d_place(pairs), d_row_of(pairs);
    const device::GroupRowsArgs a{.rows = s.rows,
                                  .experts = s.experts,
                                  .k = s.k,
                                  .chosen = d_chosen.data(),
                                  .begin = d_begin.data(),
                                  .place = d_place.data(),
                                  .row_of = d_row_of.data()};
    RunKernel(what, [&](Launcher& l) { return GroupRows(a, l); });
    EXPECT_TRUE(d_begin.Read() == begin) << what << " begin";
    EXPECT_TRUE(d_place.Read() == place) << what << " place";
    EXPECT_TRUE(d_row_of.Read() == row_of) << what << " row_of";
    return Bytes();
  });
}
TEST(ExpertsKernelTest, PairsOfAnExpertStandTogetherInTheirOrder) {
  TP_NEEDS_DEVICE();
  for (int64_t seed = 0; seed < FuzzSeeds(8); ++seed) CompareGroups(static_cast<uint64_t>(seed));
}

// With L = sum_k dweights_k w_k + sum_e slope_e p_e, dlogits is dL / dlogits: measured by a small step.
void CompareRouting(uint64_t seed) {
  FuzzRng rng(seed + 1100);
  Sizes s = RandomSizes(rng);
  s.rows = std::min<int64_t>(s.rows, 7);
  const bool renormalize = rng.Below(2) == 0;
  const std::string what = "routing, seed " + std::to_string(seed);
  const std::vector<int32_t> chosen = RandomChoices(rng, s);
  const std::vector<float> logits = RandomValues<float>(rng, s.rows * s.experts),
                           dweights = RandomValues<float>(rng, s.rows * s.k),
                           slopes = RandomValues<float>(rng, s.experts);
  const std::vector<double> slope(slopes.begin(), slopes.end());
  std::vector<float> probs, weights;
  // Of row r with logit `moved` raised by `by`; sets p and w.
  std::vector<double> p(static_cast<size_t>(s.experts)), w(static_cast<size_t>(s.k));
  const auto loss = [&](int64_t r, int64_t moved, double by) {
    double sum = 0, all = 0, out = 0;
    for (int64_t e = 0; e < s.experts; ++e) {
      p[static_cast<size_t>(e)] =
          std::exp(logits[static_cast<size_t>(r * s.experts + e)] + (e == moved ? by : 0.0));
      sum += p[static_cast<size_t>(e)];
    }
    for (double& v : p) v /= sum;
    for (int64_t i = 0; i < s.k; ++i) {
      const auto of = static_cast<size_t>(chosen[static_cast<size_t>(r * s.k + i)]);
      all += w[static_cast<size_t>(i)] = p[of];
    }
    for (int64_t i = 0; i < s.k; ++i) {
      if (renormalize) w[static_cast<size_t>(i)] /= all;
      out += w[static_cast<size_t>(i)] * dweights[static_cast<size_t>(r * s.k + i)];
    }
    for (size_t e = 0; e < p.size(); ++e) out += slope[e] * p[e];
    return out;
  };
  for (int64_t r = 0; r < s.rows; ++r) {
    loss(r, 0, 0);
    probs.insert(probs.end(), p.begin(), p.end());
    weights.insert(weights.end(), w.begin(), w.end());
  }
  const DeviceArray<float> d_probs(probs), d_weights(weights), d_dweights(dweights);
  const DeviceArray<int32_t> d_chosen(chosen);
  const DeviceArray<double> d_slope(slope);
  std::vector<float> got;
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<float> dlogits(s.rows * s.experts);
    const device::RouteBackwardArgs a{.rows = s.rows,
                                      .experts = s.experts,
                                      .k = s.k,
                                      .probs = d_probs.data(),
                                      .chosen = d_chosen.data(),
                                      .weights = d_weights.data(),
                                      .dweights = d_dweights.data(),
                                      .expert_slope = d_slope.data(),
                                      .renormalize = renormalize,
                                      .dlogits = dlogits.data()};
    RunKernel(what, [&](Launcher& l) { return RouteBackward(a, l); });
    got = dlogits.Read();
    return BytesOf(got);
  });
  constexpr double kStep = 1e-4;  // the difference errs by its square
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t e = 0; e < s.experts; ++e) {
      EXPECT_NEAR(got[static_cast<size_t>(r * s.experts + e)],
                  (loss(r, e, kStep) - loss(r, e, -kStep)) / (2 * kStep), 2e-6)
          << what << ", row " << r << ", expert " << e;
    }
  }
}
TEST(ExpertsKernelTest, TheRoutersGradientIsTheSlopeOfTheLoss) {
  TP_NEEDS_DEVICE();
  for (int64_t seed = 0; seed < FuzzSeeds(8); ++seed) CompareRouting(static_cast<uint64_t>(seed));
}

template <typename T>
void CompareSums(uint64_t seed) {
  FuzzRng rng(seed + 1200);
  const int64_t rows = rng.OneOf({1, 5, 40}), d = rng.OneOf({1, 8, 30, 2056}), k = rng.Between(1, 4),
                experts = rng.OneOf({3, 64});
  const std::string what = std::string(TypeName<T>()) + ", sums, seed " + std::to_string(seed);
  std::vector<int32_t> place(static_cast<size_t>(rows * k));
  std::iota(place.begin(), place.end(), 0);
  std::reverse(place.begin(), place.end());
  const std::vector<float> sum = RandomValues<float>(rng, rows * d),
                           probs = RandomValues<float>(rng, rows * experts),
                           gate = RandomValues<float>(rng, rows), dgate0 = RandomValues<float>(rng, rows);
  const std::vector<T> x = RandomValues<T>(rng, rows * k * d), shared = RandomValues<T>(rng, rows * d),
                       w = RandomValues<T>(rng, d);
  const bool with_shared = rng.Below(2) == 0;
  std::vector<T> out(shared.size());
  std::vector<float> dgate = dgate0, dx = sum, squashed = probs;
  std::vector<double> of_experts(static_cast<size_t>(experts), 0.5);
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = static_cast<size_t>(r);
    dgate[row] *= gate[row] * (1.0F - gate[row]);
    for (int64_t c = 0; c < d; ++c) {
      const auto at = static_cast<size_t>(r * d + c);
      float v = sum[at];
      for (int64_t i = 0; i < k; ++i)
        v += AsFloat(x[static_cast<size_t>(place[static_cast<size_t>(r * k + i)] * d + c)]);
      if (with_shared) v += AsFloat(shared[at]);
      RoundTo(v, &out[at]);
      dx[at] += dgate[row] * AsFloat(w[static_cast<size_t>(c)]);
    }
    for (int64_t e = 0; e < experts; ++e)
      of_experts[static_cast<size_t>(e)] += static_cast<double>(probs[static_cast<size_t>(r * experts + e)]);
  }
  for (float& v : squashed) v = 1.0F / (1.0F + std::exp(-v));
  const DeviceArray<int32_t> d_place(place);
  const DeviceArray<float> d_sum(sum), d_probs(probs), d_gate(gate);
  const DeviceArray<T> d_x(x), d_w(w);
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<T> d_out(shared);  // in the place of `shared`, where that is there
    const device::SumExpertsArgs<T> sums{.rows = rows,
                                         .d = d,
                                         .k = k,
                                         .sum = d_sum.data(),
                                         .place = d_place.data(),
                                         .x = d_x.data(),
                                         .shared = with_shared ? d_out.data() : nullptr,
                                         .out = d_out.data()};
    RunKernel(what, [&](Launcher& l) { return SumExperts(sums, l); });
    ExpectNear(d_out.Read(), out, 0.0F, 0.0F, what + " sum");
    const DeviceArray<float> d_dgate(dgate0), d_dx(sum), d_squashed(probs);
    const device::GateBackwardArgs<T> back{.rows = rows,
                                           .d = d,
                                           .gate = d_gate.data(),
                                           .w = d_w.data(),
                                           .dgate = d_dgate.data(),
                                           .dx = d_dx.data()};
    RunKernel(what, [&](Launcher& l) { return GateBackward(back, l); });
    ExpectNear(d_dgate.Read(), dgate, 0.0F, 1e-6F, what + " dgate");
    ExpectNear(d_dx.Read(), dx, 1e-6F, 1e-6F, what + " dx");
    const device::SigmoidArgs sigmoid{.n = rows * experts, .x = d_squashed.data()};
    RunKernel(what, [&](Launcher& l) { return Sigmoid(sigmoid, l); });
    ExpectNear(d_squashed.Read(), squashed, 0.0F, 1e-6F, what + " sigmoid");
    const DeviceArray<double> d_of_experts(std::vector<double>(static_cast<size_t>(experts), 0.5));
    const device::AddProbsArgs add{
        .rows = rows, .experts = experts, .probs = d_probs.data(), .sum = d_of_experts.data()};
    RunKernel(what, [&](Launcher& l) { return AddProbs(add, l); });
    const std::vector<double> got = d_of_experts.Read();
    for (size_t e = 0; e < got.size(); ++e) EXPECT_NEAR(got[e], of_experts[e], 1e-13) << what;
    return BytesOf(d_dx.Read(), got);
  });
}
TEST(ExpertsKernelTest, SumsAndGatesAreTheirFormulas) {
  TP_NEEDS_DEVICE();
  for (int64_t seed = 0; seed < FuzzSeeds(6); ++seed) {
    CompareSums<float>(static_cast<uint64_t>(seed));
    CompareSums<BF16>(static_cast<uint64_t>(seed));
  }
}

}  // namespace
}  // namespace tidepool::cuda
