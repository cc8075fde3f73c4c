// Routing recorded and replayed, and the load-balance loss.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/core/model/reference.h"

namespace tidepool::model {
namespace {

struct Fixture {
  explicit Fixture(const std::string& family) : spec(TinySpec(family)) {
    weights = std::move(Weights::Create(spec, DType::kFloat32)).value();
    Randomize(*weights, 21, 0.3);
    decoder = std::make_unique<Decoder>(*weights, AnyDevice());
    Rng rng(22);
    batch = PackWhole({RandomIds(rng, 11, spec.vocab_size), RandomIds(rng, 6, spec.vocab_size)});
  }
  [[nodiscard]] size_t chosen() const {
    return static_cast<size_t>(spec.sparse_layers() * spec.moe.experts_per_token) * batch.ids.size();
  }
  ModelSpec spec;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Decoder> decoder;
  BatchArrays batch;
};

TEST(ExpertRoutingTest, WhatTheEngineRecordsTheTrainerReplaysToTheBit) {
  Fixture f("qwen3_moe");
  device::Device& device = f.decoder->device();
  const KvOnDevice memory(device, f.spec, DType::kFloat32, static_cast<int64_t>(f.batch.ids.size()));
  std::vector<int32_t> recorded, replayed;
  RaggedBatch view = f.batch.view();
  view.routed = &recorded;
  const at::Tensor hidden = Tensor(device, f.decoder->Forward(view, memory.view()).view);
  ASSERT_EQ(recorded.size(), f.chosen());
  for (const bool recompute : {false, true}) {
    RaggedBatch training = f.batch.view();
    training.experts = recorded;
    training.routed = &replayed;
    const auto [rows, saved] = f.decoder->ForwardTraining(training, recompute);
    const at::Tensor again = Tensor(device, rows.view);
    EXPECT_EQ(replayed, recorded);
    EXPECT_EQ(
        std::memcmp(hidden.const_data_ptr(), again.const_data_ptr(), static_cast<size_t>(hidden.numel()) * 4),
        0);
  }
}

TEST(ExpertRoutingTest, AnotherRoutingGivesAnotherResultAndReachesTheOtherExperts) {
  Fixture f("qwen2_moe");
  std::vector<int32_t> other(f.chosen());
  for (size_t i = 0; i < other.size(); ++i)
    other[i] = static_cast<int32_t>(i % 2);  // experts 0 and 1 for every row
  RaggedBatch view = f.batch.view();
  device::Device& device = f.decoder->device();
  const at::Tensor plain = Tensor(device, f.decoder->ForwardTraining(view, false).first.view);
  view.experts = other;
  for (const bool recompute : {false, true}) {
    auto [rows, saved] = f.decoder->ForwardTraining(view, recompute);
    const at::Tensor hidden = Tensor(device, rows.view);
    EXPECT_FALSE(plain.equal(hidden));
    Gradients grads(*f.weights, device);
    f.decoder->Backward(std::move(saved), ToDevice(device, at::ones_like(hidden)).view, grads);
    for (size_t i = 0; i < f.weights->layout().size(); ++i) {
      const Parameter& p = f.weights->layout()[i];
      if (!p.name.ends_with("experts_down")) continue;
      const at::Tensor g =
          Tensor(device, {grads.data() + p.offset, p.shape[0], p.numel() / p.shape[0], DType::kFloat32});
      EXPECT_GT(g.narrow(0, 0, f.spec.hidden_size).abs().sum().item<float>(), 0) << p.name;
      EXPECT_EQ(g.narrow(0, 2 * f.spec.hidden_size, f.spec.hidden_size).abs().sum().item<float>(), 0)
          << p.name;
    }
  }
}

// f_e does not change under a small step, so differences of E sum f_e P_e see exactly the gradient through
// P_e.
TEST(LoadBalanceTest, GradientIsThatOfTheLossAndDescentEvensTheLoad) {
  for (const std::string family : {"qwen2_moe", "qwen3_moe"}) {
    Fixture f(family);
    const auto loss = [&] {
      f.decoder->WeightsChanged();
      return f.decoder->LoadBalanceLoss(f.decoder->ForwardTraining(f.batch.view(), false).second);
    };
    const double before = loss();
    EXPECT_GE(before, 0.9 * static_cast<double>(f.spec.moe.experts_per_token));
    auto [hidden, saved] = f.decoder->ForwardTraining(f.batch.view(), false);
    Gradients grads(*f.weights, f.decoder->device());
    const device::Array zeros =
        f.decoder->device().Take(hidden.view.rows, hidden.view.cols, hidden.view.dtype);
    f.decoder->Backward(std::move(saved), zeros.view, grads, /*balance_scale=*/1.0);
    const std::vector<float> gradient = ValuesOf(f.decoder->device(), *f.weights, grads);
    Rng rng(23);
    const auto index = [&](const std::string& name) {
      for (size_t i = 0; i < f.weights->layout().size(); ++i) {
        if (f.weights->layout()[i].name == name) return i;
      }
      ADD_FAILURE() << name;
      return size_t{0};
    };
    for (const std::string name : {"layers.0.router", "layers.2.router", "layers.0.mlp_norm"}) {
      const Parameter& p = f.weights->layout()[index(name)];
      // Asked for anew each time: what was written is looked at once.
      const auto value = [&](size_t at) -> float& {
        return reinterpret_cast<float*>(f.weights->bytes().data())[static_cast<size_t>(p.offset) + at];
      };
      for (int i = 0; i < 8; ++i) {
        const auto at = static_cast<size_t>(rng.Below(p.numel()));
        const float kept = value(at), h = 2e-3F;
        value(at) = kept + h;
        const double up = loss();
        value(at) = kept - h;
        const double down = loss();
        value(at) = kept;
        // A difference whose steps change a row's experts says nothing about the gradient.
        if (std::abs(up - 2 * before + down) > 0.02) continue;
        EXPECT_NEAR(gradient[static_cast<size_t>(p.offset) + at], (up - down) / (2 * h),
                    2e-3 * (1 + std::abs((up - down) / (2 * h))))
            << family << " " << name;
      }
    }
  }
}

}  // namespace
}  // namespace tidepool::model
