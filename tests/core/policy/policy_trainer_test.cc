#include "core/policy/policy_trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "core/algorithms/losses/losses.h"
#include "core/base/rng.h"
#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "core/policy/distribution.h"
#include "core/policy/player.h"

namespace tidepool::policy {
namespace {

using environments::kTerminated;
using environments::kTruncated;
using environments::VectorEnvironment;

PolicyTrainerOptions Options(const PolicySpec& spec) {
  PolicyTrainerOptions o;
  o.policy = spec;
  o.loss.loss = algorithms::FindLoss("ppo");
  o.loss.options = *algorithms::Options::Make(o.loss.loss->options, {}, true);
  o.optimizer = {.eps = 1e-5, .max_grad_norm = 0.5};
  o.schedule = {.peak = 1e-3, .steps = 100};
  return o;
}

// A small world: a job of one process.
class World {
 public:
  World(const std::string& name, int64_t instances, uint64_t seed, bool shared = false)
      : seed_(seed), environment_{.name = name, .seed = seed}, host_(environment_) {
    const auto found = environments::FindVectorEnvironment(environment_);
    spec_ = {.observation_size = found->observation_size,
             .actions = found->actions,
             .continuous = found->continuous,
             .hidden = {64, 64},
             .shared = shared,
             .environment = name};
    weights_ = *model::Weights::FromLayout(PolicyLayout(spec_), model::DType::kFloat32);
    InitializePolicy(spec_, seed, *weights_);
    player_ = std::make_unique<Player>(spec_, *weights_, host_, seed);
    std::vector<uint64_t> indices;
    for (int64_t i = 0; i < instances; ++i) indices.push_back(static_cast<uint64_t>(i));
    states_ = (*VectorEnvironment::Create(environment_, indices))->states();
  }
  FragmentRow Play(int64_t ordinal, int64_t steps) {
    EXPECT_TRUE(player_->Add({.tid = {ordinal, 0, 0}, .steps = steps, .starts = states_}).ok());
    std::vector<PlayedFragment> played;
    while (played.empty()) played = player_->Step();
    states_ = played[0].fragment.ends;
    return {.tid = {ordinal, 0, 0}, .version = {0, ordinal}, .fragment = std::move(played[0].fragment)};
  }
  void WeightsChanged() { player_->WeightsChanged(); }
  double Evaluate(int64_t episodes, int64_t limit) {
    for (int64_t q = 0; q < episodes; ++q) {
      const std::vector<uint64_t> index = {static_cast<uint64_t>((int64_t{1} << 40) + q)};
      EXPECT_TRUE(player_
                      ->Add({.tid = {q, 0, SampleId::kEvalSample},
                             .steps = limit,
                             .greedy = true,
                             .episode = true,
                             .starts = (*VectorEnvironment::Create(environment_, index))->states()})
                      .ok());
    }
    double sum = 0;
    while (player_->HasWork()) {
      for (const PlayedFragment& p : player_->Step()) sum += p.fragment.scores.at(0);
    }
    return sum / static_cast<double>(episodes);
  }
  uint64_t seed_;
  environments::VectorOptions environment_;
  LocalHost host_;
  PolicySpec spec_;
  std::unique_ptr<model::Weights> weights_;
  std::unique_ptr<Player> player_;
  std::vector<environments::InstanceState> states_;
};

// Sum of discounted deltas, written out: A_t = sum_k (gamma lambda)^k delta_{t+k} up to the end of the
// episode or of the fragment; after a truncation the value of the final observation, after a termination 0.
TEST(FragmentAdvantagesTest, BootstrapAtTruncationEqualsBruteForce) {
  Rng rng(5);
  for (int trial = 0; trial < 50; ++trial) {
    Fragment f;
    f.steps = 1 + rng.Below(12);
    f.instances = 1 + rng.Below(4);
    std::vector<float> values, finals;
    for (int64_t i = 0; i < f.cells(); ++i) {
      f.rewards.push_back(static_cast<float>(rng.Normal()));
      const double u = rng.Uniform();
      f.flags.push_back(u < 0.15 ? kTerminated : u < 0.35 ? kTruncated : 0);
      if (f.flags.back() == kTruncated) finals.push_back(static_cast<float>(rng.Normal()));
    }
    for (int64_t i = 0; i < f.cells() + f.instances; ++i) values.push_back(static_cast<float>(rng.Normal()));
    const double gamma = 0.9, lambda = 0.8;
    const auto result = FragmentAdvantages(f, values, finals, gamma, lambda);
    for (int64_t b = 0; b < f.instances; ++b) {
      for (int64_t t = 0; t < f.steps; ++t) {
        double advantage = 0, weight = 1;
        for (int64_t k = t; k < f.steps; ++k) {
          const auto c = static_cast<size_t>(k * f.instances + b);
          double next = values[c + static_cast<size_t>(f.instances)];
          if (f.flags[c] == kTerminated) next = 0;
          if (f.flags[c] == kTruncated)
            next = finals[static_cast<size_t>(
                std::count(f.flags.begin(), f.flags.begin() + static_cast<int64_t>(c), kTruncated))];
          advantage += weight * (f.rewards[c] + gamma * next - values[c]);
          weight *= gamma * lambda;
          if (f.flags[c] != 0) break;
        }
        const auto c = static_cast<size_t>(t * f.instances + b);
        EXPECT_NEAR(result.advantages[c], advantage, 1e-12);
        EXPECT_NEAR(result.returns[c], advantage + values[c], 1e-12);
      }
    }
  }
}

// With one minibatch and one epoch, plain gradient descent's direction: the update follows the loss that
// finite differences see.
TEST(PolicyTrainerTest, OneUpdateLowersItsLoss) {
  for (const bool shared : {false, true}) {
    World w("cartpole", 4, 3, shared);
    PolicyTrainerOptions o = Options(w.spec_);
    o.epochs = 1;
    o.minibatches = 1;
    o.schedule.peak = 1e-4;
    auto trainer = PolicyTrainer::Create(*w.weights_, o);
    ASSERT_TRUE(trainer.ok());
    const std::vector<FragmentRow> rows = {w.Play(0, 64)};
    const auto first = (*trainer)->Step({1}, {0, 0}, rows);
    ASSERT_TRUE(first.ok()) << first.status().message();
    EXPECT_EQ(first->updates, 1);
    EXPECT_EQ(first->metrics.at("training/rollout_logp_diff/max"), 0);
    EXPECT_EQ(first->metrics.at("training/rollout_value_diff/max"), 0);
    // Mean of whitened advantages is 0 and rho is 1: the policy term is 0 and the loss is the value's.
    EXPECT_NEAR(first->metrics.at("actor/pg_loss"), 0, 1e-7);  // log-probs are kept in float32
    const double before = first->metrics.at("critic/vf_loss");
    const auto second = (*trainer)->Step({2}, {0, 1}, rows);
    ASSERT_TRUE(second.ok());
    EXPECT_LT(second->metrics.at("critic/vf_loss"), before);
  }
}

TEST(PolicyTrainerTest, AStepIsAFunctionOfItsInput) {
  uint64_t digests[2];
  for (uint64_t& digest : digests) {
    World w("pendulum", 3, 3);
    auto trainer = PolicyTrainer::Create(*w.weights_, Options(w.spec_));
    const std::vector<FragmentRow> rows = {w.Play(0, 50)};
    const auto result = (*trainer)->Step({1}, {0, 0}, rows);
    ASSERT_TRUE(result.ok());
    digest = result->digest;
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST(PolicyTrainerTest, RanksTogetherTrainAsOneAlone) {
  World whole("cartpole", 3, 3);
  std::vector<FragmentRow> rows = {whole.Play(0, 40), whole.Play(1, 40)};
  PolicyTrainerOptions o = Options(whole.spec_);
  o.epochs = 2;
  std::vector<std::unique_ptr<model::Weights>> copies;
  for (int r = 0; r < 2; ++r) {
    copies.push_back(*model::Weights::FromLayout(PolicyLayout(whole.spec_), model::DType::kFloat32));
    InitializePolicy(whole.spec_, 3, *copies.back());
  }
  auto trainer = PolicyTrainer::Create(*whole.weights_, o);
  const auto alone = (*trainer)->Step({1}, {0, 0}, rows);
  ASSERT_TRUE(alone.ok());

  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<StatusOr<train::StepResult>> results(2, StatusOr<train::StepResult>(Internal("not run")));
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      auto group = comm::MakeGroup({.rendezvous = rendezvous,
                                    .rank = r,
                                    .size = 2,
                                    .shared_folder = ::testing::TempDir(),
                                    .timeout_s = 60});
      ASSERT_TRUE(group.ok()) << group.status().message();
      std::vector<FragmentRow> share = rows;
      for (size_t i = 0; i < share.size(); ++i) {
        if (static_cast<int>(i) == r) continue;
        share[i].mine = false;
        share[i].fragment = {};
      }
      auto mine = PolicyTrainer::Create(*copies[static_cast<size_t>(r)], o);
      results[static_cast<size_t>(r)] = (*mine)->Step({1}, {0, 0}, share, nullptr, group->get());
    });
  }
  for (std::thread& t : ranks) t.join();
  for (int r = 0; r < 2; ++r) {
    ASSERT_TRUE(results[static_cast<size_t>(r)].ok()) << results[static_cast<size_t>(r)].status().message();
    const auto* a = reinterpret_cast<const float*>(copies[static_cast<size_t>(r)]->bytes().data());
    const auto* b = reinterpret_cast<const float*>(whole.weights_->bytes().data());
    for (int64_t i = 0; i < whole.weights_->elements(); ++i) EXPECT_NEAR(a[i], b[i], 2e-5);
    EXPECT_NEAR(results[static_cast<size_t>(r)]->metrics.at("critic/vf_loss"),
                alone->metrics.at("critic/vf_loss"), 1e-4 * alone->metrics.at("critic/vf_loss"));
  }
  EXPECT_EQ(results[0]->digest, results[1]->digest);
}

TEST(PolicyTrainerTest, BadInputChangesNothing) {
  World w("cartpole", 2, 3);
  auto trainer = PolicyTrainer::Create(*w.weights_, Options(w.spec_));
  const uint64_t before = w.weights_->Digest();
  std::vector<FragmentRow> rows = {w.Play(0, 20)};
  rows[0].fragment.actions[3] = 5;
  std::vector<BadRow> bad;
  EXPECT_EQ((*trainer)->Step({1}, {0, 0}, rows, nullptr, nullptr, &bad).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].tid, rows[0].tid);
  EXPECT_EQ((*trainer)->Step({1}, {0, 0}, {}).status().code(), StatusCode::kInvalidArgument);
  rows = {w.Play(1, 20)};
  EXPECT_EQ(
      (*trainer)->Step({1}, {0, 0}, rows, [](const train::StepProgress&) { return false; }).status().code(),
      StatusCode::kAborted);
  EXPECT_EQ(w.weights_->Digest(), before);
  // Fragments that are too old count for nothing.
  rows[0].masked = true;
  const auto masked = (*trainer)->Step({1}, {0, 0}, rows);
  ASSERT_TRUE(masked.ok());
  EXPECT_EQ(masked->updates, 0);
  EXPECT_EQ(masked->digest, before);
}

TEST(PolicyTrainerTest, LearnsCartPoleAWhile) {
  World w("cartpole", 8, 1);
  PolicyTrainerOptions o = Options(w.spec_);
  o.gamma = 0.98;
  o.lambda = 0.9;
  o.epochs = 10;
  o.minibatches = 8;
  auto trainer = PolicyTrainer::Create(*w.weights_, o);
  const double before = w.Evaluate(20, 500);
  for (int64_t step = 1; step <= 12; ++step) {
    const std::vector<FragmentRow> rows = {w.Play(step, 128)};
    ASSERT_TRUE((*trainer)->Step({step}, {0, step}, rows).ok());
    w.WeightsChanged();
  }
  const double after = w.Evaluate(20, 500);
  EXPECT_LT(before, 100);
  EXPECT_GT(after, 150);
}

}  // namespace
}  // namespace tidepool::policy
