#include "core/policy/network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/base/rng.h"
#include "core/device/cpu/cpu_device.h"
#include "core/policy/distribution.h"

namespace tidepool::policy {
namespace {

struct Made {
  PolicySpec spec;
  std::unique_ptr<model::Weights> weights;
};

Made Make(PolicySpec spec, uint64_t seed = 3) {
  auto weights = model::Weights::FromLayout(PolicyLayout(spec), model::DType::kFloat32);
  EXPECT_TRUE(weights.ok());
  InitializePolicy(spec, seed, **weights);
  return {spec, std::move(*weights)};
}

std::vector<float> Draw(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(rng.Normal());
  return out;
}

// The same network in the plainest loops, in float64.
struct Reference {
  std::vector<double> heads, values;
};
Reference Plain(const Made& m, const std::vector<float>& observations) {
  const auto* base = reinterpret_cast<const float*>(std::as_const(*m.weights).bytes().data());
  const auto dense = [&](const std::string& name, const std::vector<double>& in) {
    std::vector<double> out;
    for (size_t p = 0; p < m.weights->layout().size(); ++p) {
      const model::Parameter& w = m.weights->layout()[p];
      if (w.name != name + ".weight") continue;
      const model::Parameter& b = m.weights->layout()[p + 1];
      for (int64_t o = 0; o < w.shape[0]; ++o) {
        double sum = base[b.offset + o];
        for (int64_t i = 0; i < w.shape[1]; ++i)
          sum += static_cast<double>(base[w.offset + o * w.shape[1] + i]) * in[static_cast<size_t>(i)];
        out.push_back(sum);
      }
    }
    return out;
  };
  Reference out;
  const auto width = static_cast<size_t>(m.spec.observation_size);
  for (size_t r = 0; r < observations.size() / width; ++r) {
    const std::vector<double> row(observations.begin() + static_cast<int64_t>(r * width),
                                  observations.begin() + static_cast<int64_t>((r + 1) * width));
    const auto trunk = [&](const std::string& prefix) {
      std::vector<double> h = row;
      for (size_t k = 0; k < m.spec.hidden.size(); ++k) {
        h = dense(prefix + std::to_string(k), h);
        for (double& x : h) x = std::tanh(x);
      }
      return h;
    };
    const auto head = dense("policy_head", trunk("actor."));
    out.heads.insert(out.heads.end(), head.begin(), head.end());
    out.values.push_back(dense("value_head", trunk(m.spec.shared ? "actor." : "critic."))[0]);
  }
  return out;
}

std::vector<PolicySpec> Shapes() {
  return {{.observation_size = 4, .actions = 2, .hidden = {64, 64}},
          {.observation_size = 3, .actions = 1, .continuous = true, .hidden = {32}, .initial_log_std = -0.5},
          {.observation_size = 17, .actions = 5, .hidden = {24, 40, 7}, .shared = true},
          {.observation_size = 6, .actions = 3, .continuous = true, .hidden = {16, 16}, .shared = true}};
}

TEST(NetworkTest, EqualsThePlainLoops) {
  for (const PolicySpec& spec : Shapes()) {
    Made m = Make(spec);
    // Larger heads than those of the start, so that every layer shows.
    auto* base = reinterpret_cast<float*>(m.weights->bytes().data());
    const std::vector<float> noise = Draw(static_cast<size_t>(m.weights->elements()), 11);
    for (int64_t i = 0; i < m.weights->elements(); ++i) base[i] += 0.2F * noise[static_cast<size_t>(i)];
    Network network(spec, *m.weights);
    const std::vector<float> observations = Draw(static_cast<size_t>(71 * spec.observation_size), 5);
    std::vector<float> heads, values;
    network.Forward(observations, heads, values);
    const Reference reference = Plain(m, observations);
    ASSERT_EQ(heads.size(), reference.heads.size());
    for (size_t i = 0; i < heads.size(); ++i) EXPECT_NEAR(heads[i], reference.heads[i], 2e-5) << i;
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], reference.values[i], 2e-5) << i;
  }
}

TEST(NetworkTest, ARowDoesNotDependOnTheRowsBesideIt) {
  const PolicySpec spec = Shapes()[0];
  const Made m = Make(spec);
  Network network(spec, *m.weights);
  const std::vector<float> observations = Draw(static_cast<size_t>(500 * spec.observation_size), 7);
  std::vector<float> heads, values, one_head, one_value;
  network.Forward(observations, heads, values);
  for (const size_t r : {0, 1, 63, 64, 257, 499}) {
    network.Forward(std::span(observations).subspan(r * 4, 4), one_head, one_value);
    EXPECT_EQ(one_head[0], heads[r * 2]);
    EXPECT_EQ(one_head[1], heads[r * 2 + 1]);
    EXPECT_EQ(one_value[0], values[r]);
  }
}

TEST(NetworkTest, MatricesStartOrthogonalWithTheirGain) {
  for (const PolicySpec& spec : Shapes()) {
    const Made m = Make(spec);
    const auto* base = reinterpret_cast<const float*>(std::as_const(*m.weights).bytes().data());
    for (const model::Parameter& p : m.weights->layout()) {
      if (!p.name.ends_with(".weight")) continue;
      const double gain = p.name == "policy_head.weight"  ? 0.01
                          : p.name == "value_head.weight" ? 1
                                                          : std::sqrt(2.0);
      const int64_t rows = p.shape[0], columns = p.shape[1];
      const bool by_rows = rows <= columns;
      const auto at = [&](int64_t i, int64_t k) {
        return static_cast<double>(by_rows ? base[p.offset + i * columns + k]
                                           : base[p.offset + k * columns + i]);
      };
      for (int64_t i = 0; i < std::min(rows, columns); ++i) {
        for (int64_t j = 0; j <= i; ++j) {
          double dot = 0;
          for (int64_t k = 0; k < std::max(rows, columns); ++k) dot += at(i, k) * at(j, k);
          EXPECT_NEAR(dot / (gain * gain), i == j ? 1.0 : 0.0, 1e-5) << p.name;
        }
      }
    }
  }
}

// f = sum over rows of c logp + e entropy + v value: its gradient by finite differences in every parameter.
TEST(NetworkTest, GradientsEqualFiniteDifferences) {
  for (const PolicySpec& spec : Shapes()) {
    Made m = Make(spec, 9);
    auto* base = reinterpret_cast<float*>(m.weights->bytes().data());
    const std::vector<float> noise = Draw(static_cast<size_t>(m.weights->elements()), 2);
    for (int64_t i = 0; i < m.weights->elements(); ++i) base[i] += 0.1F * noise[static_cast<size_t>(i)];
    constexpr size_t kRows = 70;  // more than a block
    const std::vector<float> observations = Draw(kRows * static_cast<size_t>(spec.observation_size), 13),
                             c = Draw(kRows, 14), e = Draw(kRows, 15), v = Draw(kRows, 16);
    const auto acted = static_cast<size_t>(spec.action_size()), width = static_cast<size_t>(spec.actions);
    std::vector<float> actions = Draw(kRows * acted, 17);
    if (!spec.continuous) {
      for (size_t i = 0; i < actions.size(); ++i) actions[i] = static_cast<float>(i % width);
    }
    const auto log_std = [&] {
      return spec.continuous ? Network(spec, *m.weights).log_std() : std::span<const float>();
    };
    const auto f = [&] {
      const Reference now = Plain(m, observations);
      std::vector<float> heads(now.heads.begin(), now.heads.end());
      double sum = 0;
      for (size_t r = 0; r < kRows; ++r) {
        const ActionTerms t = Evaluate(spec, std::span(heads).subspan(r * width, width), log_std(),
                                       std::span(actions).subspan(r * acted, acted));
        sum += c[r] * t.logp + e[r] * t.entropy + v[r] * now.values[r];
      }
      return sum;
    };
    Network network(spec, *m.weights);
    std::vector<float> heads, values, d_heads(kRows * width);
    network.Forward(observations, heads, values);
    std::vector<double> d_log_std(width, 0.0);
    for (size_t r = 0; r < kRows; ++r) {
      EvaluateBack(spec, std::span(heads).subspan(r * width, width), log_std(),
                   std::span(actions).subspan(r * acted, acted), c[r], e[r],
                   std::span(d_heads).subspan(r * width, width), d_log_std);
    }
    device::CpuDevice device;
    model::Gradients gradients(*m.weights, device);
    network.Backward(d_heads, v, gradients.values());
    if (spec.continuous) {
      for (size_t i = 0; i < width; ++i)
        gradients.values()[static_cast<size_t>(network.log_std_offset()) + i] +=
            static_cast<float>(d_log_std[i]);
    }
    Rng rng(21);
    for (const model::Parameter& p : m.weights->layout()) {
      for (int check = 0; check < 12; ++check) {
        const auto i = static_cast<size_t>(p.offset + rng.Below(p.numel()));
        const float old = base[i], step = 1e-2F;
        base[i] = old + step;
        const double high = f();
        base[i] = old - step;
        const double low = f();
        base[i] = old;
        const double expected = (high - low) / (2.0 * step);
        EXPECT_NEAR(gradients.values()[i], expected, 2e-2 * std::max(1.0, std::fabs(expected)))
            << p.name << " " << i;
      }
    }
  }
}

TEST(DistributionTest, SamplesFollowTheProbabilities) {
  const PolicySpec spec{.observation_size = 1, .actions = 3};
  const std::vector<float> head = {0.0F, 1.0F, -1.0F};
  std::vector<int> counts(3, 0);
  constexpr int kDraws = 20000;
  for (uint32_t i = 0; i < kDraws; ++i) {
    float action = -1;
    Sample(spec, head, {}, 5, 77, i, false, {&action, 1});
    ++counts[static_cast<size_t>(action)];
  }
  for (size_t j = 0; j < 3; ++j) {
    const float action = static_cast<float>(j);
    EXPECT_NEAR(counts[j] / static_cast<double>(kDraws),
                std::exp(Evaluate(spec, head, {}, {&action, 1}).logp), 0.012);
  }
  float action = -1;
  Sample(spec, head, {}, 5, 77, 0, true, {&action, 1});
  EXPECT_EQ(action, 1.0F);
}

TEST(DistributionTest, AGaussianHasItsMeanAndDeviation) {
  const PolicySpec spec{.observation_size = 1, .actions = 2, .continuous = true};
  const std::vector<float> head = {1.0F, -2.0F}, log_std = {0.0F, -1.0F};
  double sum[2] = {}, square[2] = {}, logp = 0;
  constexpr int kDraws = 20000;
  for (uint32_t i = 0; i < kDraws; ++i) {
    float action[2];
    Sample(spec, head, log_std, 5, 78, i, false, action);
    for (size_t k = 0; k < 2; ++k) {
      sum[k] += action[k] - head[k];
      square[k] += (action[k] - head[k]) * (action[k] - head[k]);
    }
    logp += Evaluate(spec, head, log_std, action).logp;
  }
  EXPECT_NEAR(sum[0] / kDraws, 0, 0.03);
  EXPECT_NEAR(sum[1] / kDraws, 0, 0.015);
  EXPECT_NEAR(std::sqrt(square[0] / kDraws), 1, 0.02);
  EXPECT_NEAR(std::sqrt(square[1] / kDraws), std::exp(-1), 0.01);
  // The mean of -log p is the entropy.
  float any[2] = {0, 0};
  EXPECT_NEAR(-logp / kDraws, Evaluate(spec, head, log_std, any).entropy, 0.03);
}

}  // namespace
}  // namespace tidepool::policy
