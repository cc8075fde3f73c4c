#include "core/algorithms/sac.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <thread>

#include "core/base/replay_digest.h"
#include "core/base/rng.h"
#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "core/policy/distribution.h"
#include "core/policy/network.h"
#include "core/policy/player.h"
#include "core/policy/sac_trainer.h"
#include "core/policy/squashed.h"

namespace tidepool::policy {
namespace {

using environments::kTerminated;
using environments::kTruncated;

PolicySpec Spec(std::vector<int64_t> hidden = {24, 40, 7}) {
  return {.observation_size = 5,
          .actions = 2,
          .continuous = true,
          .hidden = std::move(hidden),
          .squashed = true,
          .low = -2,
          .high = 4};
}

std::vector<float> DrawFloats(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(rng.Normal());
  return out;
}
std::vector<double> DrawDoubles(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<double> out(n);
  for (double& x : out) x = rng.Normal();
  return out;
}

float* Base(model::Weights& w) { return reinterpret_cast<float*>(w.bytes().data()); }

std::unique_ptr<model::Weights> ActorWeights(const PolicySpec& spec, uint64_t seed = 3) {
  auto weights = *model::Weights::FromLayout(PolicyLayout(spec), model::DType::kFloat32);
  InitializePolicy(spec, seed, *weights);
  return weights;
}

// The same layers in the plainest loops, in float64, of weights that are given as such.
std::vector<double> PlainLayers(const std::vector<model::Parameter>& layout, const std::vector<double>& w,
                                const std::string& hidden, const std::string& head, std::vector<double> h) {
  const auto apply = [&](const std::string& name, bool relu) {
    for (size_t p = 0; p < layout.size(); ++p) {
      if (layout[p].name != name + ".weight") continue;
      std::vector<double> out;
      for (int64_t o = 0; o < layout[p].shape[0]; ++o) {
        double sum = w[static_cast<size_t>(layout[p + 1].offset + o)];
        for (int64_t i = 0; i < layout[p].shape[1]; ++i)
          sum += w[static_cast<size_t>(layout[p].offset + o * layout[p].shape[1] + i)] *
                 h[static_cast<size_t>(i)];
        out.push_back(relu ? std::max(sum, 0.0) : sum);
      }
      h = out;
      return true;
    }
    return false;
  };
  for (int k = 0; apply(hidden + std::to_string(k), true); ++k) {
  }
  EXPECT_TRUE(apply(head, false));
  return h;
}
std::vector<double> Doubles(const model::Weights& w) {
  const auto* base = reinterpret_cast<const float*>(w.bytes().data());
  return {base, base + w.elements()};
}

TEST(SquashedTest, DensityIntegratesToOneAndIsWhatDrawsHave) {
  const PolicySpec spec{
      .observation_size = 1, .actions = 1, .continuous = true, .squashed = true, .low = -1, .high = 1};
  const std::vector<float> head = {0.3F, -0.4F};
  double mass = 0, below = 0;
  constexpr int kCells = 200000;
  for (int i = 0; i < kCells; ++i) {
    const float u = static_cast<float>(-1 + (i + 0.5) * 2 / kCells);
    const double p = std::exp(SquashedLogProb(spec, head, {&u, 1})) * 2 / kCells;
    mass += p;
    below += u < 0.5F ? p : 0;
  }
  EXPECT_NEAR(mass, 1, 1e-4);
  int count = 0;
  constexpr int kDraws = 20000;
  for (uint32_t i = 0; i < kDraws; ++i) {
    float action = 9;
    Sample(spec, head, {}, 5, 77, i, /*greedy=*/false, {&action, 1});
    ASSERT_TRUE(action > -1 && action < 1);
    count += action < 0.5F ? 1 : 0;
  }
  EXPECT_NEAR(count / static_cast<double>(kDraws), below, 0.012);
}

TEST(SquashedTest, LogProbIsThatOfTheDrawAndExactFarOut) {
  const PolicySpec spec = Spec();
  Rng rng(4);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<float> head(4);
    for (float& x : head) x = static_cast<float>(0.7 * rng.Normal());
    const std::vector<double> noise = {rng.Normal(), rng.Normal()};
    const SquashedDraw drawn = DrawSquashed(head, noise);
    std::vector<float> action = {ToBounds(spec, drawn.action[0]), ToBounds(spec, drawn.action[1])};
    EXPECT_NEAR(SquashedLogProb(spec, head, action), drawn.logp,
                2e-2);  // u has 24 bits, and atanh loses them
    for (const float a : action) EXPECT_TRUE(a >= -2 && a <= 4);
  }
  // 1 - tanh(x)^2 is 0 in float64 at x = 20, and its logarithm is not.
  const std::vector<float> far = {20, -1};
  const SquashedDraw drawn = DrawSquashed(far, std::vector<double>{0.0});
  EXPECT_EQ(drawn.action[0], 1.0F);
  EXPECT_NEAR(drawn.logp, 1 - 0.5 * std::log(2 * std::numbers::pi) - 2 * (std::numbers::ln2 - 20), 1e-9);
  std::vector<float> greedy(2);
  Sample(spec, std::vector<float>{0.5F, -0.25F, 1, 1}, {}, 5, 77, 0, /*greedy=*/true, greedy);
  EXPECT_FLOAT_EQ(greedy[0], static_cast<float>(1 + 3 * std::tanh(0.5)));
  EXPECT_FLOAT_EQ(greedy[1], static_cast<float>(1 + 3 * std::tanh(-0.25)));
}

TEST(SquashedTest, GradientsEqualFiniteDifferences) {
  constexpr int64_t kActions = 3, kStride = 16;
  for (const float log_std : {-0.5F, 3.0F, -21.0F}) {  // in the middle, and clipped at either end
    std::vector<float> heads(kStride, 0.0F);
    const std::vector<float> mean = DrawFloats(kActions, 8), d_actions = DrawFloats(kActions, 9);
    std::ranges::copy(mean, heads.begin());
    std::fill_n(heads.begin() + kActions, kActions, log_std);
    const std::vector<double> noise = DrawDoubles(kActions, 10);
    const double d_logp = 0.7;
    const SquashedRows rows{
        .rows = 1, .actions = kActions, .stride = kStride, .heads = heads.data(), .noise = noise.data()};
    std::vector<float> d_heads(kStride, 9.0F);
    DrawSquashedBack(rows, d_actions.data(), d_logp, d_heads.data());
    const auto f = [&](size_t k, double step) {
      double sum = 0;
      for (size_t i = 0; i < kActions; ++i) {
        const double m = mean[i] + (k == i ? step : 0),
                     s = std::clamp<double>(log_std + (k == kActions + i ? step : 0), -20, 2),
                     u = std::tanh(m + std::exp(s) * noise[i]);
        sum += d_actions[i] * u + d_logp * (-s - std::log(1 - u * u));
      }
      return sum;
    };
    for (size_t k = 0; k < 2 * kActions; ++k) {
      const double expected = (f(k, 1e-6) - f(k, -1e-6)) / 2e-6;
      if (log_std < 0) EXPECT_NEAR(d_heads[k], expected, 1e-5 * std::max(1.0, std::fabs(expected))) << k;
      if (log_std != -0.5F && k >= kActions) EXPECT_EQ(d_heads[k], 0);
    }
    for (size_t k = 2 * kActions; k < kStride; ++k) EXPECT_EQ(d_heads[k], 0);
  }
}

TEST(MlpTest, EqualsThePlainLoopsAndARowDoesNotDependOnTheRowsBesideIt) {
  const PolicySpec spec = Spec();
  const auto weights = ActorWeights(spec);
  Network network(spec, *weights);
  const std::vector<float> observations = DrawFloats(300 * 5, 5);
  std::vector<float> heads, values, one;
  network.Forward(observations, heads, values);
  ASSERT_EQ(heads.size(), 300U * 4);
  EXPECT_TRUE(values.empty());
  const std::vector<double> w = Doubles(*weights);
  for (const size_t r : {0, 1, 63, 257, 299}) {
    const auto expected = PlainLayers(weights->layout(), w, "actor.", "policy_head",
                                      {observations.begin() + static_cast<int64_t>(5 * r),
                                       observations.begin() + static_cast<int64_t>(5 * r + 5)});
    network.Forward(std::span(observations).subspan(5 * r, 5), one, values);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(heads[4 * r + i], expected[i], 1e-5);
      EXPECT_EQ(heads[4 * r + i], one[i]);
    }
  }
}

SacTrainerOptions Options(const PolicySpec& spec) {
  SacTrainerOptions o;
  o.policy = spec;
  o.replay = {.capacity = 500, .batch_size = 32, .learning_starts = 0};
  o.optimizer = {.max_grad_norm = 0};
  o.schedule = {.peak = 1e-3, .steps = 100};
  o.seed = 7;
  return o;
}

SacTrainer::Batch RandomBatch(const PolicySpec& spec, int64_t rows) {
  const auto n = static_cast<size_t>(rows), o = static_cast<size_t>(spec.observation_size),
             a = static_cast<size_t>(spec.actions);
  SacTrainer::Batch b{.rows = rows};
  b.seen = DrawFloats(n * o, 21);
  b.next = DrawFloats(n * o, 22);
  b.acted = DrawFloats(n * (o + a), 23);
  b.rewards = DrawFloats(n, 24);
  for (size_t r = 0; r < n; ++r) {
    std::copy_n(b.seen.data() + r * o, o, b.acted.data() + r * (o + a));
    for (size_t i = 0; i < a; ++i) b.acted[r * (o + a) + o + i] = std::tanh(b.acted[r * (o + a) + o + i]);
    b.terminated.push_back(r % 5 == 0 ? 1.0F : 0.0F);
  }
  b.noise = DrawDoubles(n * a, 25);
  b.next_noise = DrawDoubles(n * a, 26);
  return b;
}

// Both losses in float64, written out again, and their derivatives by every kind of parameter.
TEST(SacTrainerTest, LossesAndGradientsEqualThePlainOnes) {
  const PolicySpec spec = Spec();
  const auto weights = ActorWeights(spec);
  SacTrainerOptions o = Options(spec);
  o.sac.initial_alpha = 0.3;
  auto trainer = *SacTrainer::Create(*weights, o);
  const SacTrainer::Batch b = RandomBatch(spec, 40);
  const std::vector<double> actor = Doubles(*weights), critics = Doubles(trainer->critics());
  const SacTrainer::Losses losses = trainer->GradientStep(b, {});

  struct Acted {
    std::vector<double> u;
    double logp = 0;
  };
  const auto act = [&](const std::vector<double>& w, const float* seen, const double* noise) {
    const auto head = PlainLayers(weights->layout(), w, "actor.", "policy_head", {seen, seen + 5});
    Acted out;
    for (size_t i = 0; i < 2; ++i) {
      const double s = std::clamp(head[2 + i], -20.0, 2.0), x = head[i] + std::exp(s) * noise[i];
      out.u.push_back(std::tanh(x));
      out.logp += -0.5 * noise[i] * noise[i] - s - 0.5 * std::log(2 * std::numbers::pi) -
                  std::log(1 - std::pow(std::tanh(x), 2));
    }
    return out;
  };
  const auto judge = [&](const std::vector<double>& w, int k, const float* seen,
                         const std::vector<double>& u) {
    std::vector<double> in(seen, seen + 5);
    in.insert(in.end(), u.begin(), u.end());
    const std::string name = "q" + std::to_string(k);
    return PlainLayers(trainer->critics().layout(), w, name + ".", name + "_head", in)[0];
  };
  const double alpha = 0.3;
  std::vector<double> y;
  double logp_sum = 0;
  for (size_t r = 0; r < 40; ++r) {
    const Acted next = act(actor, b.next.data() + 5 * r, b.next_noise.data() + 2 * r);
    const double value = std::min(judge(critics, 1, b.next.data() + 5 * r, next.u),
                                  judge(critics, 2, b.next.data() + 5 * r, next.u)) -
                         alpha * next.logp;
    y.push_back(b.rewards[r] + 0.99 * (1 - b.terminated[r]) * value);
    logp_sum += act(actor, b.seen.data() + 5 * r, b.noise.data() + 2 * r).logp;
  }
  const auto critic_loss = [&](const std::vector<double>& w) {
    double sum = 0;
    for (size_t r = 0; r < 40; ++r) {
      const std::vector<double> u(b.acted.data() + 7 * r + 5, b.acted.data() + 7 * r + 7);
      for (const int k : {1, 2}) sum += 0.5 * std::pow(judge(w, k, b.seen.data() + 5 * r, u) - y[r], 2) / 40;
    }
    return sum;
  };
  const auto actor_loss = [&](const std::vector<double>& w) {
    double sum = 0;
    for (size_t r = 0; r < 40; ++r) {
      const Acted now = act(w, b.seen.data() + 5 * r, b.noise.data() + 2 * r);
      sum += (alpha * now.logp - std::min(judge(critics, 1, b.seen.data() + 5 * r, now.u),
                                          judge(critics, 2, b.seen.data() + 5 * r, now.u))) /
             40;
    }
    return sum;
  };
  EXPECT_NEAR(losses.critic, critic_loss(critics), 1e-5);
  EXPECT_NEAR(losses.actor, actor_loss(actor), 1e-5);
  EXPECT_NEAR(losses.alpha, -std::log(alpha) * (logp_sum / 40 - 2), 1e-5);
  const auto compare = [&](const std::vector<model::Parameter>& layout, std::vector<double> w,
                           std::span<const float> gradients, const auto& loss) {
    Rng rng(21);
    for (const model::Parameter& p : layout) {
      for (int check = 0; check < 10; ++check) {
        const auto i = static_cast<size_t>(p.offset + rng.Below(p.numel()));
        const double old = w[i], step = 1e-6;
        w[i] = old + step;
        const double high = loss(w);
        w[i] = old - step;
        const double low = loss(w);
        w[i] = old;
        const double expected = (high - low) / (2 * step);
        EXPECT_NEAR(gradients[i], expected, 1e-5 * std::max(1.0, std::fabs(expected))) << p.name << " " << i;
      }
    }
  };
  compare(trainer->critics().layout(), critics, trainer->critic_gradients(), critic_loss);
  compare(weights->layout(), actor, trainer->actor_gradients(), actor_loss);
}

Fragment RandomFragment(const PolicySpec& spec, int64_t steps, int64_t instances, uint64_t seed) {
  Fragment f{.steps = steps,
             .instances = instances,
             .observation_size = spec.observation_size,
             .action_size = spec.actions};
  Rng rng(seed);
  const auto rows = static_cast<size_t>(f.cells() + instances);
  f.observations = DrawFloats(rows * 5, seed + 1);
  for (int64_t c = 0; c < f.cells(); ++c) {
    for (int i = 0; i < 2; ++i) f.actions.push_back(static_cast<float>(-2 + 6 * rng.Uniform()));
    f.log_probs.push_back(-1);
    f.rewards.push_back(static_cast<float>(c));
    const double u = rng.Uniform();
    f.flags.push_back(u < 0.2 ? kTerminated : u < 0.4 ? kTruncated : 0);
    if (f.flags.back() != 0) f.scores.push_back(1);
    if (f.flags.back() == kTruncated) {
      for (int i = 0; i < 5; ++i) f.final_observations.push_back(100.0F + static_cast<float>(c));
    }
  }
  f.ends.resize(static_cast<size_t>(instances));
  EXPECT_TRUE(CheckFragment(f, spec).ok());
  return f;
}

TEST(ReplayStoreTest, KeepsTheNewestAndWhatFollowsThem) {
  const PolicySpec spec = Spec();
  device::CpuDevice device;
  ReplayStore store = *ReplayStore::Create(spec, 20, device);
  EXPECT_FALSE(ReplayStore::Create(spec, 0, device).ok());
  EXPECT_EQ(store.taken(), kEmptyReplay);
  const Fragment f = RandomFragment(spec, 6, 5, 3);  // 30 transitions: 10 to 29 stay
  store.Add({4, 0, 0}, f);
  EXPECT_EQ(store.size(), 20);
  EXPECT_EQ(store.came(), 30);
  EXPECT_EQ(store.taken(), ReplayDigest(kEmptyReplay, {4, 0, 0}));
  for (int64_t c = 10; c < 30; ++c) {
    const auto row = store.Row(c % 20);
    const auto at = static_cast<size_t>(c);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(row[i], f.observations[5 * at + i]);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(row[5 + i], (f.actions[2 * at + i] - 1) / 3, 1e-6);
    EXPECT_EQ(row[7], f.rewards[at]);
    EXPECT_EQ(row[8], f.flags[at] == kTerminated ? 1 : 0);
    for (size_t i = 0; i < 5; ++i) {
      const float next = f.flags[at] == kTerminated  ? 0
                         : f.flags[at] == kTruncated ? 100.0F + static_cast<float>(c)
                                                     : f.observations[5 * (at + 5) + i];
      EXPECT_EQ(row[9 + i], next) << c;
    }
  }
  // The bytes of its state are all of it.
  ReplayStore other = *ReplayStore::Create(spec, 20, device);
  auto from = store.State(), to = other.State();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    std::vector<std::byte> bytes(from[i].bytes.size());
    from[i].bytes.CopyTo(0, bytes);
    to[i].bytes.CopyFrom(0, bytes);
  }
  EXPECT_EQ(other.Digest(), store.Digest());
  EXPECT_EQ(other.taken(), store.taken());
  store.Add({5, 0, 0}, RandomFragment(spec, 1, 1, 9));
  EXPECT_NE(other.Digest(), store.Digest());
}

FragmentRow Row(const PolicySpec& spec, int64_t ordinal) {
  return {.tid = {ordinal, 0, 0}, .fragment = RandomFragment(spec, 8, 2, static_cast<uint64_t>(ordinal))};
}

std::vector<std::byte> Bytes(SacTrainer& trainer) {
  std::vector<std::byte> all;
  for (train::NamedBytes& part : trainer.State()) {
    const size_t at = all.size();
    all.resize(at + part.bytes.size());
    part.bytes.CopyTo(0, std::span(all).subspan(at));
  }
  return all;
}

TEST(SacTrainerTest, GoesOnFromItsStateAndDoesNotKnowTheOrderOfRows) {
  const PolicySpec spec = Spec({32, 32});
  SacTrainerOptions o = Options(spec);
  o.replay.learning_starts = 33;
  const auto weights = ActorWeights(spec);
  auto trainer = *SacTrainer::Create(*weights, o);
  const uint64_t start = weights->Digest();
  auto first = trainer->Step({1}, {0, 0}, std::vector{Row(spec, 0), Row(spec, 1)});
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->updates, 0) << "32 transitions came, and learning starts at 33";
  EXPECT_EQ(weights->Digest(), start);
  EXPECT_NE(trainer->changes(), 0);
  auto second = trainer->Step({2}, {0, 1}, std::vector{Row(spec, 2)});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->updates, 16);
  EXPECT_NE(weights->Digest(), start);
  EXPECT_EQ(second->replay, trainer->replay().taken());

  const auto other_weights = ActorWeights(spec, 99);
  auto other = *SacTrainer::Create(*other_weights, o);
  const std::vector<std::byte> state = Bytes(*trainer);
  size_t at = 0;
  for (train::NamedBytes& part : other->State()) {
    part.bytes.CopyFrom(0, std::span(state).subspan(at, part.bytes.size()));
    at += part.bytes.size();
  }
  EXPECT_EQ(other->Digest(other_weights->Digest()), trainer->Digest(weights->Digest()));
  ASSERT_TRUE(trainer->Step({3}, {0, 2}, std::vector{Row(spec, 3), Row(spec, 4)}).ok());
  ASSERT_TRUE(other->Step({3}, {0, 2}, std::vector{Row(spec, 4), Row(spec, 3)}).ok());
  EXPECT_EQ(Bytes(*other), Bytes(*trainer));
  EXPECT_EQ(other->Digest(other_weights->Digest()), trainer->Digest(weights->Digest()));
}

TEST(SacTrainerTest, WhatIsTooOldDoesNotEnterAndWhatIsWrongIsNamed) {
  const PolicySpec spec = Spec({32, 32});
  const auto weights = ActorWeights(spec);
  auto trainer = *SacTrainer::Create(*weights, Options(spec));
  FragmentRow old = Row(spec, 0);
  old.masked = true;
  ASSERT_TRUE(trainer->Step({1}, {0, 0}, std::vector{old, Row(spec, 1)}).ok());
  EXPECT_EQ(trainer->replay().came(), 16);
  EXPECT_EQ(trainer->replay().taken(), ReplayDigest(kEmptyReplay, {1, 0, 0}));
  const std::vector<std::byte> before = Bytes(*trainer);
  FragmentRow wrong = Row(spec, 2);
  wrong.fragment.rewards[3] = NAN;
  std::vector<BadRow> bad;
  EXPECT_EQ(trainer->Step({2}, {0, 1}, std::vector{wrong}, nullptr, nullptr, &bad).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_EQ(bad.size(), 1U);
  EXPECT_EQ(bad[0].tid, wrong.tid);
  EXPECT_EQ(Bytes(*trainer), before);
}

TEST(SacTrainerTest, TwoRanksMakeTheStepOfOne) {
  const PolicySpec spec = Spec({32, 32});
  const auto alone_weights = ActorWeights(spec);
  auto alone = *SacTrainer::Create(*alone_weights, Options(spec));
  ASSERT_TRUE(alone->Step({1}, {0, 0}, std::vector{Row(spec, 0), Row(spec, 1)}).ok());
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<uint64_t> digests(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto group = comm::MakeGroup({.rendezvous = rendezvous,
                                          .name = "g",
                                          .rank = rank,
                                          .size = 2,
                                          .host = "127.0.0.1",
                                          .timeout_s = 60});
      ASSERT_TRUE(group.ok()) << group.status().message();
      const auto weights = ActorWeights(spec);
      auto trainer = *SacTrainer::Create(*weights, Options(spec));
      std::vector<FragmentRow> rows = {Row(spec, 0), Row(spec, 1)};
      rows[static_cast<size_t>(1 - rank)].mine = false;
      rows[static_cast<size_t>(1 - rank)].fragment = {};
      const auto made = trainer->Step({1}, {0, 0}, rows, nullptr, group->get());
      ASSERT_TRUE(made.ok()) << made.status().message();
      digests[static_cast<size_t>(rank)] = trainer->Digest(weights->Digest());
    });
  }
  ranks.clear();
  for (const uint64_t digest : digests) EXPECT_EQ(digest, alone->Digest(alone_weights->Digest()));
}

}  // namespace
}  // namespace tidepool::policy
