#include "core/train/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/rng.h"
#include "tests/core/model/reference.h"
#include "tests/core/train/state_copy.h"

namespace tidepool::train {
namespace {

using model::DType;
using model::Weights;

std::unique_ptr<Weights> Make(DType dtype) {
  auto w = std::move(Weights::Create(model::TinySpec("qwen2"), dtype)).value();
  model::Randomize(*w, 5, 0.1);
  return w;
}

// Weights and their optimizer on the device of the tests, with gradients from the host.
struct Training {
  explicit Training(DType dtype, const AdamWOptions& options = {})
      : weights(Make(dtype)), on_device(*weights, device) {
    adam = std::move(AdamW::Create(*weights, on_device, options)).value();
  }
  UpdateResult Update(std::span<const float> gradients, double learning_rate) {
    return adam->Update(static_cast<const float*>(device->Put(gradients)->data()), learning_rate);
  }
  // The float32 master copy.
  [[nodiscard]] std::vector<float> Master() const {
    if (weights->dtype() == DType::kFloat32) return PartOf<float>(adam->State(), "weights");
    const auto upper = PartOf<uint16_t>(adam->State(), "weights");
    const auto rest = PartOf<int16_t>(adam->State(), "master_rest");
    std::vector<float> all;
    for (size_t i = 0; i < upper.size(); ++i) {
      const uint32_t bits = (uint32_t{upper[i]} << 16) + static_cast<uint32_t>(int32_t{rest[i]});
      all.push_back(__builtin_bit_cast(float, bits));
    }
    return all;
  }

  std::shared_ptr<device::Device> device = model::AnyDevice();
  std::unique_ptr<Weights> weights;
  model::DeviceWeights on_device;
  std::unique_ptr<AdamW> adam;
};

class AdamWTest : public testing::TestWithParam<DType> {};

TEST_P(AdamWTest, FollowsAPlainReferenceWithAFloat32MasterCopy) {
  Training training(GetParam(),
                    {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1.0});
  std::vector<double> p = model::FlatOf(*training.weights), m(p.size(), 0.0), v(p.size(), 0.0);
  std::vector<char> decays(p.size(), 0), used(p.size(), 0);
  for (const model::Parameter& q : training.weights->layout()) {
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
    const UpdateResult r = training.Update(g, lr);
    const std::vector<float> master = training.Master();
    EXPECT_TRUE(r.finite);
    EXPECT_NEAR(r.grad_norm, norm, 1e-9 * norm);
    for (size_t i = 0; i < p.size(); ++i) {
      if (used[i] == 0) continue;
      m[i] = 0.9 * m[i] + 0.1 * g[i] * clip;
      v[i] = 0.95 * v[i] + 0.05 * g[i] * clip * g[i] * clip;
      p[i] *= 1 - (decays[i] != 0 ? lr * 0.1 : 0.0);
      p[i] -= lr / (1 - std::pow(0.9, t)) * m[i] / (std::sqrt(v[i] / (1 - std::pow(0.95, t))) + 1e-8);
      ASSERT_NEAR(master[i], p[i], 2e-6 * (1 + std::fabs(p[i]))) << i << " at " << t;
    }
  }
  EXPECT_EQ(training.adam->updates(), 4);
  // The weight is the master copy rounded to nearest.
  const std::vector<double> weights = model::FlatOf(*training.weights);
  const std::vector<float> master = training.Master();
  for (size_t i = 0; i < p.size(); ++i) {
    ASSERT_LE(std::fabs(weights[i] - master[i]),
              GetParam() == DType::kFloat32 ? 0.0 : std::fabs(master[i]) / 256 + 1e-30);
  }
}

TEST_P(AdamWTest, UpdatesSmallerThanTheWeightsStepAreNotLost) {
  Training training(GetParam(), {.max_grad_norm = 0});
  const std::vector<float> g(static_cast<size_t>(training.weights->elements()), 1.0F);
  const auto at = static_cast<size_t>(training.weights->layout()[0].offset);
  const float before = training.Master()[at];
  for (int i = 0; i < 100; ++i) training.Update(g, 1e-6);  // bfloat16's step at 0.1 is about 5e-4
  EXPECT_NEAR(before - training.Master()[at], 1e-4, 2e-6);
}

TEST_P(AdamWTest, NothingIsWrittenWhenAGradientIsNotFinite) {
  Training training(GetParam());
  std::vector<float> g(static_cast<size_t>(training.weights->elements()), 0.5F);
  training.Update(g, 1e-3);
  const StateCopy before = CopyOf(training.adam->State());
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    g[g.size() / 2] = bad;
    EXPECT_FALSE(training.Update(g, 1e-3).finite);
    ExpectSame(CopyOf(training.adam->State()), before);
  }
}

TEST_P(AdamWTest, OneThreadAndTwoGiveTheSameBits) {
  const int threads = at::get_num_threads();
  std::vector<uint64_t> digests;
  for (const int use : {1, 2}) {
    at::set_num_threads(use);
    Training training(GetParam(), {.weight_decay = 0.01});
    Rng rng(8);
    std::vector<float> g(static_cast<size_t>(training.weights->elements()));
    for (float& x : g) x = static_cast<float>(rng.Normal());
    for (int i = 0; i < 3; ++i) training.Update(g, 1e-3);
    digests.push_back(training.weights->Digest());
  }
  at::set_num_threads(threads);
  EXPECT_EQ(digests[0], digests[1]);
}

INSTANTIATE_TEST_SUITE_P(Types, AdamWTest, testing::Values(DType::kFloat32, DType::kBFloat16));

TEST(AdamWOptionsTest, AreChecked) {
  const auto w = Make(DType::kFloat32);
  const auto device = model::AnyDevice();
  model::DeviceWeights on_device(*w, device);
  for (const AdamWOptions& wrong :
       {AdamWOptions{.beta1 = 1.0}, AdamWOptions{.eps = 0}, AdamWOptions{.max_grad_norm = -1}})
    EXPECT_EQ(AdamW::Create(*w, on_device, wrong).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::train
