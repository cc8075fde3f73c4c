#include "core/train/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/rng.h"
#include "tests/core/model/reference.h"

namespace tidepool::train {
namespace {

using model::DType;
using model::Weights;

std::unique_ptr<Weights> Make(DType dtype) {
  auto w = std::move(Weights::Create(model::TinySpec("qwen2"), dtype)).value();
  model::Randomize(*w, 5, 0.1);
  return w;
}

class AdamWTest : public testing::TestWithParam<DType> {};

TEST_P(AdamWTest, FollowsAPlainReferenceWithAFloat32MasterCopy) {
  auto w = Make(GetParam());
  const AdamWOptions options{
      .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1.0};
  auto adam = std::move(AdamW::Create(*w, options)).value();
  std::vector<double> p = model::FlatOf(*w), m(p.size(), 0.0), v(p.size(), 0.0);
  std::vector<char> decays(p.size(), 0), used(p.size(), 0);
  for (const model::Parameter& q : w->layout()) {
    for (int64_t i = 0; i < q.numel(); ++i) {
      decays[static_cast<size_t>(q.offset + i)] = q.shape.size() > 1;
      used[static_cast<size_t>(q.offset + i)] = 1;
    }
  }
  Rng rng(6);
  std::vector<float> g(p.size());
  for (int t = 1; t <= 4; ++t) {
    double norm = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      g[i] = used[i] != 0 ? static_cast<float>(rng.Normal() * (t == 3 ? 1e-4 : 1.0))
                          : 0.0F;  // step 3 is below the clip
      norm += double{g[i]} * g[i];
    }
    norm = std::sqrt(norm);
    const double lr = 1e-3 * t, clip = norm > 1 ? 1 / (norm + 1e-6) : 1;
    const UpdateResult r = adam->Update(g, lr);
    EXPECT_TRUE(r.finite);
    EXPECT_NEAR(r.grad_norm, norm, 1e-9 * norm);
    for (size_t i = 0; i < p.size(); ++i) {
      if (used[i] == 0) continue;
      m[i] = 0.9 * m[i] + 0.1 * g[i] * clip;
      v[i] = 0.95 * v[i] + 0.05 * g[i] * clip * g[i] * clip;
      p[i] *= 1 - (decays[i] != 0 ? lr * 0.1 : 0.0);
      p[i] -= lr / (1 - std::pow(0.9, t)) * m[i] / (std::sqrt(v[i] / (1 - std::pow(0.95, t))) + 1e-8);
      ASSERT_NEAR(adam->Master(static_cast<int64_t>(i)), p[i], 2e-6 * (1 + std::fabs(p[i])))
          << i << " at " << t;
    }
  }
  EXPECT_EQ(adam->updates(), 4);
  // The weight is the master copy rounded to nearest.
  const std::vector<double> weights = model::FlatOf(*w);
  for (size_t i = 0; i < p.size(); ++i) {
    const float master = adam->Master(static_cast<int64_t>(i));
    ASSERT_LE(std::fabs(weights[i] - master),
              GetParam() == DType::kFloat32 ? 0.0 : std::fabs(master) / 256 + 1e-30);
  }
}

TEST_P(AdamWTest, UpdatesSmallerThanTheWeightsStepAreNotLost) {
  auto w = Make(GetParam());
  auto adam = std::move(AdamW::Create(*w, {.max_grad_norm = 0})).value();
  const std::vector<float> g(static_cast<size_t>(w->elements()), 1.0F);
  const int64_t at = w->layout()[0].offset;
  const float before = adam->Master(at);
  for (int i = 0; i < 100; ++i) adam->Update(g, 1e-6);  // bfloat16's step at 0.1 is about 5e-4
  EXPECT_NEAR(before - adam->Master(at), 1e-4, 2e-6);
}

TEST_P(AdamWTest, NothingIsWrittenWhenAGradientIsNotFinite) {
  auto w = Make(GetParam());
  auto adam = std::move(AdamW::Create(*w, {})).value();
  std::vector<float> g(static_cast<size_t>(w->elements()), 0.5F);
  adam->Update(g, 1e-3);
  std::vector<std::vector<std::byte>> before;
  for (const NamedBytes& part : adam->State()) before.emplace_back(part.bytes.begin(), part.bytes.end());
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    g[g.size() / 2] = bad;
    EXPECT_FALSE(adam->Update(g, 1e-3).finite);
    size_t i = 0;
    for (const NamedBytes& part : adam->State()) {
      EXPECT_EQ(std::memcmp(part.bytes.data(), before[i].data(), before[i].size()), 0) << part.name;
      ++i;
    }
  }
}

TEST_P(AdamWTest, OneThreadAndTwoGiveTheSameBits) {
  const int threads = at::get_num_threads();
  std::vector<uint64_t> digests;
  for (const int use : {1, 2}) {
    at::set_num_threads(use);
    auto w = Make(GetParam());
    auto adam = std::move(AdamW::Create(*w, {.weight_decay = 0.01})).value();
    Rng rng(8);
    std::vector<float> g(static_cast<size_t>(w->elements()));
    for (float& x : g) x = static_cast<float>(rng.Normal());
    for (int i = 0; i < 3; ++i) adam->Update(g, 1e-3);
    digests.push_back(w->Digest());
  }
  at::set_num_threads(threads);
  EXPECT_EQ(digests[0], digests[1]);
}

INSTANTIATE_TEST_SUITE_P(Types, AdamWTest, testing::Values(DType::kFloat32, DType::kBFloat16));

TEST(AdamWOptionsTest, AreChecked) {
  auto w = Make(DType::kFloat32);
  EXPECT_EQ(AdamW::Create(*w, {.beta1 = 1.0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AdamW::Create(*w, {.eps = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AdamW::Create(*w, {.max_grad_norm = -1}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::train
