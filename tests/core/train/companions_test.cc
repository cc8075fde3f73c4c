// Critic, reference and teacher in a step: the gradient is that of the defined loss, one result however the
// work is cut.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "core/algorithms/gae.h"
#include "core/algorithms/kl.h"
#include "core/algorithms/value_loss.h"
#include "core/base/rng.h"
#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "core/train/trainer.h"
#include "core/train/value_model.h"
#include "tests/core/model/reference.h"
#include "tests/core/train/log_probs.h"
#include "tests/core/train/other_rank.h"
#include "tests/core/train/state_copy.h"

namespace tidepool::train {
namespace {

using model::DType;
using model::ModelSpec;
using model::Weights;

std::unique_ptr<Weights> Make(uint64_t seed, bool value_head = false) {
  ModelSpec spec = model::TinySpec();
  spec.value_head = value_head;
  auto w = std::move(Weights::Create(spec, DType::kFloat32)).value();
  model::Randomize(*w, seed, 0.2);
  if (!value_head) return w;
  Rng rng(seed);  // a head starts at zero, and nothing would reach the blocks
  const at::Tensor score = w->Get("score");
  for (int64_t i = 0; i < score.numel(); ++i)
    score.mutable_data_ptr<float>()[i] = static_cast<float>(0.3 * rng.Normal());
  return w;
}

// Groups of unequal length, cells masked in the middle, one group masked as a whole.
Batch Unequal(const ModelSpec& spec, int64_t groups, int64_t samples) {
  Rng rng(77);
  Batch b;
  b.step = StepNumber{1};
  b.version = Version{0, 0};
  for (int64_t g = 0; g < groups; ++g) {
    const std::vector<int32_t> prompt = model::RandomIds(rng, 2 + rng.Below(7), spec.vocab_size);
    for (int64_t s = 0; s < samples; ++s) {
      Row r;
      r.tid = {g, 0, static_cast<int32_t>(s)};
      r.gid = GroupId{g};
      r.prompt = prompt;
      r.response = model::RandomIds(rng, 1 + rng.Below(12), spec.vocab_size);
      r.reward = rng.Normal();
      r.components = {rng.Normal(), rng.Normal()};
      r.versions.assign(r.response.size(), b.version);
      for (size_t t = 0; t < r.response.size(); ++t) {
        r.loss_mask.push_back(g != 1 && (t == 0 || rng.Chance(0.8)) ? 1 : 0);
        r.logprobs.push_back(static_cast<float>(-2 - rng.Uniform()));
      }
      b.rows.push_back(std::move(r));
    }
  }
  return b;
}

// A pair of answers each group.
Batch Pairs(const ModelSpec& spec, int64_t pairs) {
  Batch b = Unequal(spec, pairs, 2);
  for (Row& r : b.rows) {
    r.reward = r.tid.sample;
    r.loss_mask.clear();
  }
  return b;
}

TrainerOptions OptionsOf(const AlgorithmConfig& c) {
  TrainerOptions o;
  o.device = model::AnyDevice();
  o.schedule.peak = o.critic_schedule.peak = 1e-3;
  o.micro_batch_tokens = 4096;
  o.loss = algorithms::Resolve(c, 16).value();
  o.component_weights = {1.0, 0.5};
  return o;
}
TrainerOptions OptionsOf(JobKind objective) {
  TrainerOptions o = OptionsOf(AlgorithmConfig{});
  o.objective = objective;
  return o;
}

struct Models {
  std::unique_ptr<Weights> policy, critic, reference, teacher;
  explicit Models(bool value_head = false)
      : policy(Make(21, value_head)), critic(Make(22, true)), reference(Make(23)), teacher(Make(24)) {}
  [[nodiscard]] Companions companions() const {
    return {.reference = reference.get(), .teacher = teacher.get(), .critic = critic.get()};
  }
};

struct Outcome {
  std::vector<float> policy, critic;
  std::map<std::string, double> metrics;
};
std::vector<float> Floats(const Weights& w) {
  const auto* p = reinterpret_cast<const float*>(w.bytes().data());
  return {p, p + w.elements()};
}

// Three steps on `ranks` ranks; owner[group] computes it. share: optimizer's states and gradients, a critic's
// too (train.zero: 2).
Outcome Train(const TrainerOptions& o, const Batch& batch, int ranks = 1, const std::vector<int>& owner = {},
              bool share = false) {
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      std::unique_ptr<comm::Collective> group;
      Batch mine = batch;
      if (ranks > 1) {
        group = std::move(comm::MakeGroup({.rendezvous = rendezvous,
                                           .rank = rank,
                                           .size = ranks,
                                           .shared_folder = ::testing::TempDir()}))
                    .value();
        for (Row& r : mine.rows)
          if (owner[static_cast<size_t>(r.gid.value)] != rank) r = Elsewhere(r);
      }
      const Models models(o.objective == JobKind::kRewardModel);
      TrainerOptions own = o;  // one thread uses a device
      own.device = model::AnyDevice();
      if (share) own.shard = {rank, ranks};
      own.share_gradients = share;
      auto trainer = std::move(Trainer::Create(*models.policy, own, models.companions())).value();
      Outcome& out = outcomes[static_cast<size_t>(rank)];
      for (int64_t step = 1; step <= 3; ++step) {
        mine.step = StepNumber{step};
        const auto result = trainer->Step(mine, nullptr, group.get());
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        ASSERT_TRUE(result->finite);
        out.metrics = result->metrics;
      }
      out.policy = Floats(*models.policy);
      out.critic = Floats(*models.critic);
    });
  }
  for (std::thread& t : threads) t.join();
  for (const Outcome& other : outcomes) {
    EXPECT_EQ(other.policy, outcomes[0].policy);
    EXPECT_EQ(other.critic, outcomes[0].critic);
  }
  return outcomes[0];
}

// Ranks that share what they can have the bits of ranks that share nothing.
void ExpectSharedIsTheSame(TrainerOptions o, const Batch& batch) {
  o.sum_each_micro_batch = true;
  const std::vector<int> owner{0, 1, 1, 0, 1};
  const Outcome whole = Train(o, batch, 2, owner), shared = Train(o, batch, 2, owner, /*share=*/true);
  EXPECT_EQ(shared.policy, whole.policy);
  EXPECT_EQ(shared.critic, whole.critic);
}

void ExpectNear(const Outcome& a, const Outcome& b) {
  double moved = 0, apart = 0;
  const std::vector<float> start = Floats(*Make(21, a.policy.size() != Floats(*Make(21)).size()));
  for (size_t i = 0; i < a.policy.size(); ++i) {
    moved = std::max<double>(moved, std::fabs(a.policy[i] - start[i]));
    apart = std::max<double>(apart, std::fabs(a.policy[i] - b.policy[i]));
  }
  EXPECT_GT(moved, 1e-4);
  EXPECT_LT(apart, 0.1 * moved);  // Adam divides by gradients that may be almost nothing
  double sum = 0, difference = 0;
  for (size_t i = 0; i < a.policy.size(); ++i) {
    sum += std::fabs(a.policy[i] - start[i]);
    difference += std::fabs(a.policy[i] - b.policy[i]);
  }
  EXPECT_LT(difference, 2e-3 * sum);
  for (size_t i = 0; i < a.critic.size(); ++i) EXPECT_NEAR(a.critic[i], b.critic[i], 5e-4);
  for (const char* name : {"critic/vf_loss", "critic/vf_explained_var", "ref/kl", "actor/pg_loss", "dpo/loss",
                           "reward_model/loss", "distill/loss", "dpo/accuracy"}) {
    if (!a.metrics.contains(name)) continue;
    EXPECT_NEAR(a.metrics.at(name), b.metrics.at(name), 2e-3 * (1 + std::fabs(a.metrics.at(name)))) << name;
  }
}

std::vector<std::pair<std::string, TrainerOptions>> Cases() {
  std::vector<std::pair<std::string, TrainerOptions>> cases;
  AlgorithmConfig ppo;
  ppo.name = "ppo";
  ppo.options = {{"advantage_gamma", "0.95"}, {"advantage_lambda", "0.9"}};
  ppo.kl = {.coef = 0.05, .place = KlPlace::kReward, .estimator = KlKind::kK1, .target = 0.1};
  cases.emplace_back("ppo with kl in the reward", OptionsOf(ppo));
  AlgorithmConfig grpo;
  grpo.kl.coef = 0.1;
  cases.emplace_back("grpo with kl in the loss", OptionsOf(grpo));
  AlgorithmConfig distilled;
  distilled.name = "on_policy_distill";
  distilled.teacher = "anything";
  cases.emplace_back("on-policy distillation", OptionsOf(distilled));
  for (const char* name : {"otb", "gdpo", "remax", "vapo"}) {
    AlgorithmConfig c;
    c.name = name;
    cases.emplace_back(name, OptionsOf(c));
  }
  AlgorithmConfig masked;
  masked.m2po = 0.5;
  masked.reject = "token_ratio";
  masked.reject_low = 0.1;
  masked.reject_high = 10;
  masked.opsm = 0.2;
  cases.emplace_back("m2po, rejection, opsm", OptionsOf(masked));
  for (const bool twice : {false, true}) {
    TrainerOptions o = cases[0].second;
    o.epochs = 2;
    o.minibatches = twice ? 2 : 1;
    cases.emplace_back("ppo, several updates", o);
  }
  return cases;
}

TEST(CompanionsTest, OneResultHoweverTheWorkIsCut) {
  const Batch batch = Unequal(model::TinySpec(), 5, 3);
  for (auto [name, o] : Cases()) {
    SCOPED_TRACE(name);
    const Outcome whole = Train(o, batch);
    o.micro_batch_tokens = 24;
    o.head_rows = 3;
    ExpectNear(whole, Train(o, batch));
    ExpectNear(whole, Train(o, batch, 2, {0, 1, 1, 0, 1}));
    ExpectNear(whole, Train(o, batch, 2, {0, 0, 0, 0, 0}));  // a rank without work takes part
    ExpectSharedIsTheSame(o, batch);
  }
}

// The batch of a step: rows of its own, every other one of older weights.
Batch OfStep(int64_t step) {
  Batch batch = Unequal(model::TinySpec(), 5, 3);
  batch.step = StepNumber{step};
  batch.version = Version{0, step - 1};
  for (Row& r : batch.rows) {
    r.tid.issue = static_cast<int32_t>(step);
    r.digest = 1000 * static_cast<uint64_t>(step) + SampleUid(r.tid) % 1000 + 1;
    r.versions.assign(r.response.size(), Version{0, r.tid.sample % 2 == 0 ? step - 1 : step - 2});
  }
  return batch;
}

void PreviewGroup(Trainer& trainer, const Batch& batch, int64_t group) {
  std::vector<Row> rows;
  for (const Row& r : batch.rows)
    if (r.gid.value == group) rows.push_back(r);
  ASSERT_TRUE(trainer.Preview(std::move(rows), batch.version).ok());
  while (trainer.HasPreview()) ASSERT_TRUE(trainer.PreviewPiece().ok());
}

struct Step {
  std::vector<float> policy, critic;
  double early = 0;  // share of rows
};
// Three steps. `preview`: all groups before the first step; before the second two groups of it, and one of
// the third, all by ranks that they are not of.
std::vector<Step> Steps(TrainerOptions o, bool preview, int ranks = 1) {
  if (preview) o.early_rows = 15;
  const std::vector<int> owner{0, 1, 1, 0, 1};
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<std::vector<Step>> of_rank(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      std::unique_ptr<comm::Collective> group;
      if (ranks > 1)
        group = std::move(comm::MakeGroup({.rendezvous = rendezvous,
                                           .rank = rank,
                                           .size = ranks,
                                           .shared_folder = ::testing::TempDir()}))
                    .value();
      const Models models;
      TrainerOptions own = o;
      own.device = model::AnyDevice();
      auto trainer = std::move(Trainer::Create(*models.policy, own, models.companions())).value();
      const auto other = [&](int64_t g) { return owner[static_cast<size_t>(g)] == (rank + 1) % ranks; };
      for (int64_t step = 1; step <= 3; ++step) {
        for (int64_t g = 0; preview && g < 5; ++g) {
          if ((step == 1 || (step == 2 && g < 2)) && (ranks == 1 || other(g)))
            PreviewGroup(*trainer, OfStep(step), g);
          if (step == 2 && g == 4 && (ranks == 1 || other(g))) PreviewGroup(*trainer, OfStep(3), g);
        }
        Batch mine = OfStep(step);
        for (Row& r : mine.rows)
          if (ranks > 1 && owner[static_cast<size_t>(r.gid.value)] != rank) r = Elsewhere(r);
        const auto result = trainer->Step(mine, nullptr, group.get());
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        const auto early = result->metrics.find("data_plane/columns_early");
        EXPECT_TRUE(preview || early == result->metrics.end());
        of_rank[static_cast<size_t>(rank)].push_back({Floats(*models.policy), Floats(*models.critic),
                                                      early == result->metrics.end() ? -1 : early->second});
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return of_rank[0];
}

TEST(CompanionsTest, WhatWasComputedBeforeItsStepChangesNoBit) {
  for (const auto& [name, o] : Cases()) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(name + ", ranks: " + std::to_string(ranks));
      const std::vector<Step> late = Steps(o, false, ranks), early = Steps(o, true, ranks);
      ASSERT_EQ(early.size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        if (o.device->batch_invariant(DType::kFloat32)) {
          EXPECT_EQ(early[i].policy, late[i].policy) << "step " << i + 1;
          EXPECT_EQ(early[i].critic, late[i].critic) << "step " << i + 1;
        }
      }
      const NeededCompanions needed = Needed(o);
      const bool old = o.loss.needs_old_first() || o.epochs * o.minibatches > 1;
      if (!needed.reference && !needed.teacher && !needed.critic && !old) {
        EXPECT_EQ(early[0].early, -1);  // there is nothing to be computed
        continue;
      }
      EXPECT_EQ(early[0].early, 1);
      EXPECT_GE(early[1].early, 0.4);  // two of five groups; rows of the trained version need no forward
      // What frozen models said holds over an update, what it updated says something else now.
      const double third = early[2].early;
      if (!needed.critic && !old) {
        EXPECT_DOUBLE_EQ(third, 0.2);
      } else if (needed.critic) {
        EXPECT_EQ(third, 0);
      }
    }
  }
}

TEST(CompanionsTest, EarlyColumnsAreBoundedAndForgottenWithTheirRows) {
  AlgorithmConfig c;
  c.kl.coef = 0.1;
  TrainerOptions o = OptionsOf(c);
  o.early_rows = 3;  // one group
  const Models m;
  auto trainer = std::move(Trainer::Create(*m.policy, o, m.companions())).value();
  const Batch first = OfStep(1), second = OfStep(2);
  PreviewGroup(*trainer, first, 0);
  PreviewGroup(*trainer, first, 1);  // takes its place
  auto result = trainer->Step(first);
  ASSERT_TRUE(result.ok());
  EXPECT_DOUBLE_EQ(result->metrics.at("data_plane/columns_early"), 0.2);
  // The same sample with other bytes is another row.
  Batch other = second;
  PreviewGroup(*trainer, second, 2);
  for (Row& r : other.rows) r.digest += 7;
  result = trainer->Step(other);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->metrics.at("data_plane/columns_early"), 0);
  // A row that nothing can be computed of is refused, and nothing is left to do.
  std::vector<Row> wrong(second.rows.begin(), second.rows.begin() + 3);
  wrong[0].response[0] = -1;
  EXPECT_EQ(trainer->Preview(wrong, second.version).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(trainer->HasPreview());
  // Weights that were written from outside: nothing of before holds.
  const Batch third = OfStep(3);
  PreviewGroup(*trainer, third, 0);
  trainer->WeightsChanged();
  result = trainer->Step(third);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->metrics.at("data_plane/columns_early"), 0);
}

TEST(CompanionsTest, JobsOnPairsAndDistillationToo) {
  for (const JobKind objective : {JobKind::kDpo, JobKind::kRewardModel, JobKind::kDistill}) {
    SCOPED_TRACE(static_cast<int>(objective));
    const Batch batch =
        objective == JobKind::kDistill ? Unequal(model::TinySpec(), 5, 1) : Pairs(model::TinySpec(), 5);
    TrainerOptions o = OptionsOf(objective);
    const Outcome whole = Train(o, batch);
    o.micro_batch_tokens = 48;
    o.head_rows = 3;
    ExpectNear(whole, Train(o, batch));
    ExpectNear(whole, Train(o, batch, 2, {0, 1, 1, 0, 1}));
    ExpectSharedIsTheSame(o, batch);
  }
}

// m after the first update is 0.1 g: the critic's gradient against central differences of the value loss
// itself.
TEST(CompanionsTest, TheCriticsGradientIsThatOfTheValueLoss) {
  Batch batch = Unequal(model::TinySpec(), 3, 2);
  for (Row& r : batch.rows) r.reward *= 30;
  AlgorithmConfig c;
  c.name = "ppo";
  c.critic.clip = 0;
  TrainerOptions o = OptionsOf(c);
  o.optimizer.max_grad_norm = 0;
  o.loss.advantage_options =
      algorithms::Options::Make(o.loss.advantage->options, {{"whiten", std::string("none")}}, true).value();
  const Models models;
  const auto start = Make(22, true);
  auto trainer = std::move(Trainer::Create(*models.policy, o, models.companions())).value();
  const auto result = trainer->Step(batch);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  std::vector<float> gradient = PartOf<float>(trainer->State(), "critic.m");
  for (float& g : gradient) g *= 10;
  ASSERT_EQ(static_cast<int64_t>(gradient.size()), start->elements());

  std::vector<int64_t> all;
  for (size_t i = 0; i < batch.rows.size(); ++i) all.push_back(static_cast<int64_t>(i));
  algorithms::Cells cells;
  std::vector<double> rewards;
  for (const Row& r : batch.rows) {
    cells.mask.insert(cells.mask.end(), r.loss_mask.begin(), r.loss_mask.end());
    cells.begin.push_back(static_cast<int64_t>(cells.mask.size()));
    rewards.push_back(r.reward);
  }
  auto model = std::move(ValueModel::Create(*start, {.device = model::AnyDevice()})).value();
  const auto values = [&] {
    std::vector<double> flat;
    model->WeightsChanged();  // by the differences below
    for (const auto& row : model->Values(batch.rows, all).value())
      flat.insert(flat.end(), row.begin(), row.end());
    return flat;
  };
  const std::vector<double> targets =
      algorithms::TokenGae(algorithms::OutcomeTokenRewards(rewards, {}, 0, cells), values(), {}, 1, 1,
                           nullptr, cells)
          .returns;
  const auto loss = [&] {
    return algorithms::ValueLoss({}, values(), {}, targets, cells,
                                 algorithms::AggregationWeights({}, cells).value())
        .loss;
  };
  EXPECT_NEAR(result->metrics.at("critic/vf_loss"), loss(), 1e-5);
  // Asked for anew each time: what was written is looked at once.
  const auto value = [&](int64_t i) -> float& { return reinterpret_cast<float*>(start->bytes().data())[i]; };
  Rng rng(5);
  int checked = 0;
  for (const model::Parameter& parameter : start->layout()) {
    for (const bool largest : {true, false}) {
      int64_t i =
          parameter.offset + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(parameter.numel())));
      for (int64_t k = parameter.offset; largest && k < parameter.offset + parameter.numel(); ++k) {
        if (std::fabs(gradient[static_cast<size_t>(k)]) > std::fabs(gradient[static_cast<size_t>(i)])) i = k;
      }
      const float kept = value(i);
      const float h = 4e-3F;
      value(i) = kept + h;
      const double up = loss();
      value(i) = kept - h;
      const double down = loss();
      value(i) = kept;
      const double numeric = (up - down) / (2 * double{h});
      EXPECT_NEAR(gradient[static_cast<size_t>(i)], numeric, 5e-3 + 0.02 * std::fabs(numeric))
          << parameter.name;
      checked += std::fabs(numeric) > 0.02 ? 1 : 0;
    }
  }
  EXPECT_GT(checked, 5);
}

TEST(CompanionsTest, StateRoundTripContinuesBitForBit) {
  Batch batch = Unequal(model::TinySpec(), 4, 3);
  AlgorithmConfig c;
  c.name = "ppo";
  c.kl = {.coef = 0.05, .place = KlPlace::kReward, .estimator = KlKind::kK1, .target = 0.01, .horizon = 100};
  TrainerOptions o = OptionsOf(c);
  o.shaping.running = true;
  const Models a, b;
  auto first = std::move(Trainer::Create(*a.policy, o, a.companions())).value();
  auto second = std::move(Trainer::Create(*b.policy, o, b.companions())).value();
  ASSERT_TRUE(first->Step(batch).ok());
  Restore(*second, CopyOf(first->State()));
  EXPECT_EQ(first->Digest(a.policy->Digest()), second->Digest(b.policy->Digest()));
  EXPECT_EQ(first->updates(), 2);
  batch.step = StepNumber{2};
  const auto x = first->Step(batch), y = second->Step(batch);
  ASSERT_TRUE(x.ok() && y.ok());
  EXPECT_EQ(x->digest, y->digest);
  EXPECT_EQ(first->Digest(a.policy->Digest()), second->Digest(b.policy->Digest()));
  EXPECT_EQ(x->metrics.at("actor/kl_coef"), y->metrics.at("actor/kl_coef"));
  EXPECT_NE(x->metrics.at("actor/kl_coef"), 0.05);
}

TEST(CompanionsTest, WarmUpTrainsTheCriticAlone) {
  Batch batch = Unequal(model::TinySpec(), 4, 3);
  AlgorithmConfig c;
  c.name = "ppo";
  TrainerOptions o = OptionsOf(c);
  o.critic_warmup_steps = 1;
  const Models m;
  auto trainer = std::move(Trainer::Create(*m.policy, o, m.companions())).value();
  ASSERT_TRUE(trainer->Step(batch).ok());
  EXPECT_EQ(Floats(*m.policy), Floats(*Make(21)));
  EXPECT_NE(Floats(*m.critic), Floats(*Make(22, true)));
  batch.step = StepNumber{2};
  ASSERT_TRUE(trainer->Step(batch).ok());
  EXPECT_NE(Floats(*m.policy), Floats(*Make(21)));
}

TEST(CompanionsTest, AMissingOrUnfitModelIsRefusedByName) {
  AlgorithmConfig c;
  c.name = "ppo";
  c.kl.coef = 0.1;
  const Models m;
  const auto no_critic = Trainer::Create(*m.policy, OptionsOf(c), {.reference = m.reference.get()});
  EXPECT_NE(no_critic.status().message().find("a critic model is needed"), std::string::npos);
  const auto headless =
      Trainer::Create(*m.policy, OptionsOf(c), {.reference = m.reference.get(), .critic = m.teacher.get()});
  EXPECT_NE(headless.status().message().find("no value head"), std::string::npos);
  const auto reward = Trainer::Create(*m.policy, OptionsOf(JobKind::kRewardModel));
  EXPECT_NE(reward.status().message().find("a reward model has a value head"), std::string::npos);
}

TEST(CompanionsTest, PairsThatAreNoPairsAreRefused) {
  Batch batch = Pairs(model::TinySpec(), 3);
  const Models m;
  auto trainer = std::move(Trainer::Create(*m.policy, OptionsOf(JobKind::kDpo), m.companions())).value();
  batch.rows.pop_back();
  EXPECT_NE(trainer->Step(batch).status().message().find("a pair has two answers, found 1"),
            std::string::npos);
}

// Separable pairs: the loss of each kind falls to where it is known to end, and held-out pairs are ranked as
// well.
TEST(CompanionsTest, PreferencesAreLearned) {
  Rng rng(3);
  const ModelSpec spec = model::TinySpec();
  const auto make = [&](int64_t from, int64_t n) {
    Batch b;
    b.version = Version{0, 0};
    for (int64_t g = from; g < from + n; ++g) {
      const auto prompt = model::RandomIds(rng, 3, spec.vocab_size);
      for (int32_t s = 0; s < 2; ++s) {
        Row r;
        r.tid = {g, 0, s};
        r.gid = GroupId{g};
        r.prompt = prompt;
        r.response = {s == 0 ? 5 : 6,
                      static_cast<int32_t>(rng.Below(static_cast<uint64_t>(spec.vocab_size)))};
        r.reward = s == 0 ? 1 : 0;
        b.rows.push_back(std::move(r));
      }
    }
    return b;
  };
  Batch batch = make(0, 256);
  const Batch held_out = make(300, 64);
  for (const JobKind objective : {JobKind::kDpo, JobKind::kRewardModel}) {
    const Models m(objective == JobKind::kRewardModel);
    TrainerOptions o = OptionsOf(objective);
    o.schedule.peak = 1e-2;
    auto trainer = std::move(Trainer::Create(*m.policy, o, m.companions())).value();
    for (int64_t step = 1; step <= 40; ++step) {
      batch.step = StepNumber{step};
      ASSERT_TRUE(trainer->Step(batch).ok());
    }
    const auto found = trainer->Evaluate(held_out.rows);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    const std::string job = objective == JobKind::kRewardModel ? "reward_model" : "dpo";
    EXPECT_GE(found->at(job + "/accuracy"), 0.95);
    EXPECT_LT(found->at(job + "/loss"), 0.3);
    EXPECT_EQ(found->at("rewards/margins"), found->at(job + "/margin"));
    EXPECT_EQ(found->at(job + "/total"), 64);
  }
}

TEST(CompanionsTest, AnEvaluationSaysHowFarItIsAndCanBeCalledOff) {
  for (const JobKind objective : {JobKind::kSft, JobKind::kDpo, JobKind::kRewardModel}) {
    const bool pairs = objective != JobKind::kSft;
    const Batch held_out = pairs ? Pairs(model::TinySpec(), 8) : Unequal(model::TinySpec(), 5, 2);
    TrainerOptions o = OptionsOf(objective);
    o.micro_batch_tokens = 64;
    const Models m(objective == JobKind::kRewardModel);
    auto trainer = std::move(Trainer::Create(*m.policy, o, m.companions())).value();
    std::vector<std::pair<int64_t, int64_t>> said;
    const auto note = [&](const StepProgress& p) {
      said.emplace_back(p.done, p.total);
      return true;
    };
    ASSERT_TRUE(trainer->Evaluate(held_out.rows, note).ok());
    ASSERT_GT(said.size(), 1U);
    for (size_t i = 0; i < said.size(); ++i)
      EXPECT_EQ(said[i], std::pair(static_cast<int64_t>(i), static_cast<int64_t>(said.size())));
    int64_t asked = 0;
    EXPECT_EQ(
        trainer->Evaluate(held_out.rows, [&](const StepProgress&) { return ++asked < 2; }).status().code(),
        StatusCode::kAborted);
    EXPECT_EQ(asked, 2);
  }
}

// Forward passes are counted by the progress that an evaluation reports: one per model that judges the rows.
TEST(CompanionsTest, TheReferenceJudgesHeldOutRowsOnceAndAgainWhenRowsOrReferenceChange) {
  for (const bool average : {false, true}) {
    Batch batch = Pairs(model::TinySpec(), 6);
    batch.rows.resize(8);
    Batch held_out = Pairs(model::TinySpec(), 8);
    for (Row& row : held_out.rows) {
      row.loss_mask.assign(row.response.size(), 1);
      row.versions.clear();
    }
    TrainerOptions o = OptionsOf(JobKind::kDpo);
    o.length_average = average;
    o.micro_batch_tokens = 64;
    const Models m;
    auto trainer = std::move(Trainer::Create(*m.policy, o, m.companions())).value();
    // The micro-batches of an evaluation, whose figures are those of a trainer that keeps nothing yet.
    const auto passes = [&]() -> int64_t {
      int64_t total = 0;
      const auto found = trainer->Evaluate(held_out.rows, [&](const StepProgress& p) {
        total = p.total;
        return true;
      });
      EXPECT_TRUE(found.ok()) << found.status().ToString();
      const auto fresh = std::move(Trainer::Create(*m.policy, o, m.companions())).value();
      EXPECT_EQ(*found, fresh->Evaluate(held_out.rows).value());
      return total;
    };
    const int64_t both = passes();
    ASSERT_GE(both, 4);
    trainer = std::move(Trainer::Create(*m.policy, o, m.companions())).value();
    int64_t left = both - 1;  // called off while the reference judges: nothing is kept
    EXPECT_EQ(
        trainer->Evaluate(held_out.rows, [&](const StepProgress&) { return --left > 0; }).status().code(),
        StatusCode::kAborted);
    EXPECT_EQ(passes(), both);
    for (int64_t step = 1; step <= 3; ++step) {
      EXPECT_EQ(passes(), both / 2);
      batch.step = StepNumber{step};
      ASSERT_TRUE(trainer->Step(batch).ok());
    }
    trainer->ReleaseScratch();
    EXPECT_EQ(passes(), both / 2);

    const auto changed = [&](const char* what) {
      EXPECT_EQ(passes(), both) << what;
      EXPECT_EQ(passes(), both / 2) << what;
    };
    Row& row = *std::ranges::find_if(held_out.rows, [](const Row& r) { return r.response.size() > 1; });
    row.response[0] = row.response[0] == 1 ? 2 : 1;
    changed("a token");
    row.loss_mask[0] = 0;
    changed("a mask");
    const auto arena = m.reference->bytes();
    for (size_t i = 0; i < arena.size() / sizeof(float); ++i)
      reinterpret_cast<float*>(arena.data())[i] *= 1.01F;
    trainer->WeightsChanged();
    changed("the reference");
    std::swap(held_out.rows[0].response, held_out.rows[1].response);
    std::swap(held_out.rows[0].loss_mask, held_out.rows[1].loss_mask);
    changed("the order");
  }
}

// Evaluation: the mean of the tokens' losses, and nothing of the trainer is changed by it.
TEST(CompanionsTest, HeldOutRowsOfSftAreJudgedWithoutATrace) {
  Batch batch = Unequal(model::TinySpec(), 6, 1);
  const Batch held_out = Unequal(model::TinySpec(), 5, 2);
  TrainerOptions o = OptionsOf(JobKind::kSft);
  const Models judged, plain;
  auto a = std::move(Trainer::Create(*judged.policy, o)).value(),
       b = std::move(Trainer::Create(*plain.policy, o)).value();
  for (int64_t step = 1; step <= 3; ++step) {
    batch.step = StepNumber{step};
    const auto before = a->Evaluate(held_out.rows), again = a->Evaluate(held_out.rows);
    ASSERT_TRUE(before.ok()) << before.status().ToString();
    EXPECT_EQ(*before, *again);
    double sum = 0, tokens = 0;
    const auto lp = LogProbs(*judged.policy, o, held_out.rows);
    ASSERT_TRUE(lp.ok());
    for (size_t i = 0; i < lp->size(); ++i) {
      for (size_t t = 0; t < (*lp)[i].size(); ++t) {
        if (!held_out.rows[i].loss_mask.empty() && held_out.rows[i].loss_mask[t] == 0) continue;
        sum -= double{(*lp)[i][t]};
        tokens += 1;
      }
    }
    EXPECT_NEAR(before->at("sft/loss"), sum / tokens, 1e-6);
    EXPECT_LT(before->at("sft/loss/low"), before->at("sft/loss"));
    EXPECT_EQ(before->at("sft/total"), 10);
    const auto one = a->Step(batch), other = b->Step(batch);
    ASSERT_TRUE(one.ok() && other.ok());
    EXPECT_EQ(one->digest, other->digest);
  }
}

// A student of the teacher's own size comes to a divergence of almost nothing, whichever it minimises.
TEST(CompanionsTest, AStudentComesToItsTeacher) {
  Batch batch = Unequal(model::TinySpec(), 6, 1);
  for (Row& r : batch.rows) r.loss_mask.clear();
  for (const auto divergence : {algorithms::Divergence::kMixed, algorithms::Divergence::kJsd}) {
    const Models m;
    TrainerOptions o = OptionsOf(JobKind::kDistill);
    o.schedule.peak = 1e-2;
    o.distill = {.divergence = divergence, .weight = 0.5};
    auto trainer = std::move(Trainer::Create(*m.policy, o, m.companions())).value();
    double first = 0, last = 0;
    for (int64_t step = 1; step <= 60; ++step) {
      batch.step = StepNumber{step};
      const auto result = trainer->Step(batch);
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      last = result->metrics.at("distill/loss");
      if (step == 1) first = last;
    }
    EXPECT_LT(last, 0.1 * first);
  }
}

}  // namespace
}  // namespace tidepool::train
