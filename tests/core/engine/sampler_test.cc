#include "core/device/cpu/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/base/rng.h"
#include "core/engine/sampling.h"

namespace tidepool::engine {
namespace {

// Plain reference: sort, cut, cumulate in float64.
struct Reference {
  std::vector<double> p;  // of the kept tokens; 0 elsewhere
  double log_kept = 0;
};
Reference Distribution(const std::vector<float>& z, const SamplingParams& params) {
  const size_t n = z.size();
  const float max = *std::ranges::max_element(z);
  std::vector<double> p(n);
  double total = 0;
  for (size_t i = 0; i < n; ++i)
    total += p[i] = std::exp((static_cast<double>(z[i]) - max) / params.temperature);
  for (double& v : p) v /= total;
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return z[a] > z[b]; });
  float threshold = -std::numeric_limits<float>::infinity();
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(n))
    threshold = z[order[static_cast<size_t>(params.top_k - 1)]];
  if (params.top_p < 1) {
    double mass = 0;
    for (size_t i = 0; i < n; ++i) mass += z[i] >= threshold ? p[i] : 0;
    double seen = 0;
    for (const size_t i : order) {
      seen += p[i];
      if (seen >= mass * params.top_p) {
        threshold = std::max(threshold, z[i]);
        break;
      }
    }
  }
  const double floor = params.min_p * p[order[0]];
  Reference r;
  r.p.assign(n, 0);
  double kept = 0;
  for (size_t i = 0; i < n; ++i) {
    if (z[i] >= threshold && p[i] >= floor) kept += r.p[i] = p[i];
  }
  for (double& v : r.p) v /= kept;
  r.log_kept = std::log(kept);
  return r;
}

std::vector<float> RandomLogits(Rng& rng, int64_t n, double spread) {
  std::vector<float> z(static_cast<size_t>(n));
  for (float& v : z) v = static_cast<float>(spread * rng.Normal());
  return z;
}

TEST(SamplerTest, DrawsTheTokenThatTheInverseOfTheCdfNames) {
  Rng rng(11);
  device::SamplerScratch scratch;
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t n = rng.InRange(1, 3000);
    const auto z = RandomLogits(rng, n, rng.InRange(0, 4));
    SamplingParams params;
    params.temperature = static_cast<float>(0.2 + 2 * rng.Uniform());
    if (rng.Chance(0.5)) params.top_k = rng.InRange(1, n);
    if (rng.Chance(0.5)) params.top_p = static_cast<float>(0.05 + 0.9 * rng.Uniform());
    if (rng.Chance(0.5)) params.min_p = static_cast<float>(0.3 * rng.Uniform());
    const Reference want = Distribution(z, params);
    const auto u = static_cast<float>(rng.Uniform());
    const device::Draw draw = device::DrawToken(z.data(), n, SampleRowOf(params, u), scratch);
    ASSERT_GE(draw.id, 0);
    // Masses are float32: the cumulated mass before and behind the token must bracket u up to rounding.
    double before = 0;
    for (int32_t i = 0; i < draw.id; ++i) before += want.p[static_cast<size_t>(i)];
    EXPECT_GT(want.p[static_cast<size_t>(draw.id)], 0) << "a token that was cut";
    EXPECT_LE(before, u + 2e-6);
    EXPECT_GE(before + want.p[static_cast<size_t>(draw.id)], u - 2e-6);
    EXPECT_NEAR(draw.log_kept, want.log_kept, 1e-5);
  }
}

TEST(SamplerTest, WithoutCutsNothingIsLeftOutExactly) {
  Rng rng(2);
  device::SamplerScratch scratch;
  const auto z = RandomLogits(rng, 500, 2);
  EXPECT_EQ(device::DrawToken(z.data(), 500, SampleRowOf({}, 0.3F), scratch).log_kept, 0.0F);
  EXPECT_EQ(device::DrawToken(z.data(), 500, SampleRowOf({.top_k = 500}, 0.3F), scratch).log_kept, 0.0F);
}

TEST(SamplerTest, GreedyTakesTheFirstOfTheLargest) {
  device::SamplerScratch scratch;
  const std::vector<float> z = {-1, 4, 2, 4, -3};
  EXPECT_EQ(device::DrawToken(z.data(), 5, SampleRowOf({.temperature = 0}, 0.9F), scratch).id, 1);
  EXPECT_EQ(device::DrawToken(z.data(), 5, SampleRowOf({.top_k = 1, .top_p = 0.1F}, 0.9F), scratch).id,
            3);  // ties stay together
}

TEST(SamplerTest, EndsOfTheUnitIntervalAreTokensWithMass) {
  device::SamplerScratch scratch;
  std::vector<float> z(1000, -1000.0F);
  z[300] = 1;
  z[700] = 1;
  const float last = 1.0F - std::numeric_limits<float>::epsilon() / 2;
  EXPECT_EQ(device::DrawToken(z.data(), 1000, SampleRowOf({}, 0.0F), scratch).id, 300);
  EXPECT_EQ(device::DrawToken(z.data(), 1000, SampleRowOf({}, last), scratch).id, 700);
  EXPECT_EQ(device::DrawToken(z.data(), 1000, SampleRowOf({.temperature = 1e-30F}, 0.2F), scratch).id, 300);
}

// Added to the group before it one by one, the small masses of the second group leave no trace; added up
// first, they do. Between the two sums lies the target, and the group's last tile has no mass.
TEST(SamplerTest, ADrawBetweenTwoRoundingsOfAGroupIsATokenWithMass) {
  device::SamplerScratch scratch;
  constexpr size_t kGroup = 32 * 256;
  std::vector<float> z(3 * kGroup, 0.0F);
  for (size_t i = kGroup; i < 2 * kGroup; ++i) z[i] = i % 256 == 0 && i + 256 < 2 * kGroup ? -28.5F : -100.0F;
  EXPECT_EQ(device::DrawToken(z.data(), 3 * kGroup, SampleRowOf({}, 0.5F), scratch).id,
            2 * static_cast<int32_t>(kGroup) - 2 * 256);
}

TEST(SamplerTest, FrequenciesFollowTheProbabilities) {
  device::SamplerScratch scratch;
  const std::vector<float> z = {0, std::log(2.0F), std::log(5.0F)};
  std::vector<int> count(3);
  for (uint32_t i = 0; i < 8000; ++i)
    ++count[static_cast<size_t>(
        device::DrawToken(z.data(), 3, SampleRowOf({}, SampleUniform(1, 2, i, 0)), scratch).id)];
  // Binomial deviation below 45 counts: 5 deviations.
  EXPECT_NEAR(count[0], 1000, 150);
  EXPECT_NEAR(count[1], 2000, 200);
  EXPECT_NEAR(count[2], 5000, 220);
}

TEST(SamplerTest, BFloat16RowsAreWidenedExactly) {
  Rng rng(3);
  device::SamplerScratch scratch;
  std::vector<float> wide(777);
  std::vector<device::BF16> narrow(777);
  for (size_t i = 0; i < wide.size(); ++i) {
    narrow[i].bits =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(3 * rng.Normal())) >> 16);
    wide[i] = std::bit_cast<float>(static_cast<uint32_t>(narrow[i].bits) << 16);
  }
  const SamplingParams params{.top_k = 50, .top_p = 0.9F};
  for (int i = 0; i < 50; ++i) {
    const auto u = static_cast<float>(i) / 50;
    const device::Draw a = device::DrawToken(wide.data(), 777, SampleRowOf(params, u), scratch);
    const device::Draw b = device::DrawToken(narrow.data(), 777, SampleRowOf(params, u), scratch);
    EXPECT_EQ(a.id, b.id);
    EXPECT_EQ(a.log_kept, b.log_kept);
  }
}

TEST(SamplerTest, ValuesThatAreNotFiniteAreReported) {
  device::SamplerScratch scratch;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t place : {size_t{0}, size_t{40}, size_t{50}}) {
      std::vector<float> z(51, 1.0F);
      z[place] = bad;
      EXPECT_EQ(device::DrawToken(z.data(), 51, SampleRowOf({}, 0.5F), scratch).id, -1);
      EXPECT_EQ(device::DrawToken(z.data(), 51, SampleRowOf({.temperature = 0}, 0.5F), scratch).id, -1);
    }
  }
}

TEST(SamplerTest, WrongParametersAreNamed) {
  EXPECT_NE(CheckSampling({.temperature = -1}, 10).message().find("temperature"), std::string::npos);
  EXPECT_NE(CheckSampling({.top_k = -1}, 10).message().find("top_k"), std::string::npos);
  EXPECT_NE(CheckSampling({.top_p = 0}, 10).message().find("top_p"), std::string::npos);
  EXPECT_NE(CheckSampling({.min_p = 1}, 10).message().find("min_p"), std::string::npos);
  EXPECT_NE(CheckSampling({.stop_token_ids = {10}}, 10).message().find("stop_token_ids"), std::string::npos);
  EXPECT_NE(CheckSampling({.stop_strings = {""}}, 10).message().find("stop_strings"), std::string::npos);
  EXPECT_TRUE(CheckSampling({.temperature = 0, .top_k = 5, .top_p = 0.5F, .min_p = 0.1F}, 10).ok());
}

}  // namespace
}  // namespace tidepool::engine
