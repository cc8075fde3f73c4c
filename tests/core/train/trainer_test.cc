#include "core/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>

#include "core/algorithms/group_advantages.h"
#include "core/base/rng.h"
#include "core/base/weight_pieces.h"
#include "core/device/cpu/cpu_device.h"
#include "core/model/decoder.h"
#include "core/model/layout.h"
#include "core/model/memory_use.h"
#include "core/model/routing.h"
#include "core/model/row_operations.h"
#include "core/train/packing.h"
#include "tests/core/model/reference.h"
#include "tests/core/train/log_probs.h"
#include "tests/core/train/state_copy.h"

namespace tidepool::train {
namespace {

using algorithms::AggregationMode;
using model::DType;
using model::ModelSpec;
using model::Weights;

std::unique_ptr<Weights> Make(const ModelSpec& spec, DType dtype = DType::kFloat32, double std = 0.2) {
  auto w = std::move(Weights::Create(spec, dtype)).value();
  model::Randomize(*w, 21, std);
  return w;
}

TrainerOptions Plain() {
  TrainerOptions o;
  o.device = model::AnyDevice();
  o.schedule.peak = 1e-3;
  o.micro_batch_tokens = 4096;
  return o;
}

// Groups with unequal lengths whose prompts begin alike; recorded log-probs are those of the weights.
Batch RandomBatch(const ModelSpec& spec, int64_t groups, int64_t samples, uint64_t seed) {
  Rng rng(seed);
  Batch b;
  b.step = StepNumber{1};
  b.version = Version{0, 0};
  const std::vector<int32_t> system = model::RandomIds(rng, 2, spec.vocab_size);
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<int32_t> prompt = model::RandomIds(rng, 3 + rng.Below(6), spec.vocab_size);
    prompt.insert(prompt.begin(), system.begin(), system.end());
    for (int64_t s = 0; s < samples; ++s) {
      Row r;
      r.tid = {g, 0, static_cast<int32_t>(s)};
      r.gid = GroupId{g};
      r.prompt = prompt;
      r.response = model::RandomIds(rng, 1 + rng.Below(9), spec.vocab_size);
      r.reward = rng.Normal();
      r.versions.assign(r.response.size(), b.version);
      for (size_t t = 0; t < r.response.size(); ++t) r.loss_mask.push_back(rng.Chance(0.8) ? 1 : 0);
      r.logprobs.assign(r.response.size(), 0.0F);
      b.rows.push_back(std::move(r));
    }
  }
  return b;
}
void Record(const Weights& weights, const TrainerOptions& o, Batch& b) {
  const auto lp = LogProbs(weights, o, b.rows);
  ASSERT_TRUE(lp.ok()) << lp.status().ToString();
  for (size_t i = 0; i < b.rows.size(); ++i) b.rows[i].logprobs = (*lp)[i];
}

// The gradient as seen through one plain SGD-like step: m after the first update is 0.1 g (no clipping).
std::vector<float> GradientOf(Weights& w, TrainerOptions o, const Batch& b,
                              std::map<std::string, double>* metrics = nullptr) {
  const std::vector<std::byte> before(w.bytes().begin(), w.bytes().end());
  o.optimizer.max_grad_norm = 0;
  auto trainer = std::move(Trainer::Create(w, o)).value();
  const auto result = trainer->Step(b);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_TRUE(result->finite);
  if (metrics != nullptr) *metrics = result->metrics;
  std::memcpy(w.bytes().data(), before.data(), before.size());
  return PartOf<float>(trainer->State(), "m");
}
double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0, s = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    d += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    s += double{b[i]} * b[i];
  }
  return std::sqrt(d / s);
}

TEST(TrainerTest, EveryAlgorithmIsIndependentOfMicroBatchesAndHeadChunks) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  Batch b = RandomBatch(spec, 4, 5, 1);
  Record(*w, Plain(), b);
  // The sampler saw something a little different, so that ratios and weights are not 1.
  Rng rng(8);
  for (Row& r : b.rows) {
    for (float& lp : r.logprobs) lp += static_cast<float>(0.1 * rng.Normal());
  }
  for (Row& r : b.rows) {
    r.components = {r.reward, rng.Normal()};
    r.turns = {{0, 1, 0}};
    if (r.response.size() > 2)
      r.turns.push_back(
          {.begin = 2, .state = static_cast<uint64_t>(rng.Below(2)), .reward_before = 0.25 * r.reward});
  }
  for (const algorithms::AlgorithmEntry& entry : algorithms::Algorithms()) {
    SCOPED_TRACE(entry.name);
    // Those with further models: tests/core/train/companions_test.cc; of policies: tests/core/policy.
    if (!entry.off_policy.empty() || entry.advantage.name == "gae" || entry.advantage.name == "gae_vapo" ||
        entry.advantage.name == "on_policy_distill")
      continue;
    AlgorithmConfig c;
    c.name = entry.name;
    TrainerOptions o = Plain();
    o.loss = algorithms::Resolve(c, 9).value();
    o.component_weights = {1, 0.5};
    o.micro_batch_tokens = 4096;
    const std::vector<float> whole = GradientOf(*w, o, b);
    o.micro_batch_tokens = 24;
    o.head_rows = 3;
    const std::vector<float> cut = GradientOf(*w, o, b);
    ASSERT_EQ(whole.size(), cut.size());
    double size = 0, difference = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      size = std::max<double>(size, std::fabs(whole[i]));
      difference = std::max<double>(difference, std::fabs(whole[i] - cut[i]));
    }
    EXPECT_GT(size, 0);
    EXPECT_LT(difference, 1e-4 * size);
  }
}

// Routing of the rows of `spec` as the engine records it, drawn at random.
std::string RandomRouting(const ModelSpec& spec, Rng& rng, size_t tokens) {
  std::string bytes(tokens * static_cast<size_t>(model::RoutingBytes(spec)), '\0');
  auto* out = reinterpret_cast<unsigned char*>(bytes.data());
  for (size_t row = 0; row < tokens * static_cast<size_t>(spec.sparse_layers()); ++row) {
    std::vector<int32_t> ids(static_cast<size_t>(spec.moe.experts));
    std::iota(ids.begin(), ids.end(), 0);
    rng.Shuffle(std::span<int32_t>(ids));
    for (int64_t i = 0; i < spec.moe.experts_per_token; ++i)
      model::PutRoutingId(spec, ids[static_cast<size_t>(i)], out++);
  }
  return bytes;
}

TEST(TrainerTest, RecordedRoutingIsTakenForwardAndBackward) {
  const ModelSpec spec = model::TinySpec("qwen3_moe");
  auto w = Make(spec);
  Batch b = RandomBatch(spec, 3, 4, 5);
  auto trainer = std::move(Trainer::Create(*w, Plain())).value();
  const auto free = LogProbs(*w, Plain(), b.rows);
  Rng rng(6);
  for (Row& row : b.rows) row.routing = RandomRouting(spec, rng, row.response.size());
  const auto replayed = LogProbs(*w, Plain(), b.rows);
  ASSERT_TRUE(free.ok() && replayed.ok()) << replayed.status().ToString();
  EXPECT_NE(*free, *replayed);
  // The forward of the step goes through the same experts, however rows are packed: what was recorded with
  // this routing has no gap, and gradients do not depend on micro-batches.
  Record(*w, Plain(), b);
  for (const bool recompute : {false, true}) {
    TrainerOptions o = Plain();
    o.recompute = recompute;
    std::map<std::string, double> metrics;
    const std::vector<float> whole = GradientOf(*w, o, b, &metrics);
    EXPECT_LT(metrics.at("training/rollout_logp_diff/max"), 1e-5);
    EXPECT_GT(metrics.at("actor/router_balance"), 0);
    o.micro_batch_tokens = 20;
    EXPECT_LT(RelativeDifference(GradientOf(*w, o, b), whole), 5e-6);
  }
  // A beginning of the record is used as far as it goes.
  Batch half = b;
  for (Row& row : half.rows)
    row.routing.resize(row.routing.size() / 2 / static_cast<size_t>(model::RoutingBytes(spec)) *
                       static_cast<size_t>(model::RoutingBytes(spec)));
  const auto partly = LogProbs(*w, Plain(), half.rows);
  ASSERT_TRUE(partly.ok());
  EXPECT_NE(*partly, *replayed);
  EXPECT_NE(*partly, *free);

  Batch bad = b;
  bad.rows[0].routing.pop_back();
  EXPECT_EQ(trainer->Step(bad).status().code(), StatusCode::kInvalidArgument);
  bad = b;
  bad.rows[1].routing[0] = static_cast<char>(spec.moe.experts);
  EXPECT_NE(trainer->Step(bad).status().message().find("names expert"), std::string::npos);
  auto dense = Make(model::TinySpec());
  auto other = std::move(Trainer::Create(*dense, Plain())).value();
  EXPECT_NE(other->Step(b).status().message().find("no experts"), std::string::npos);
}

TEST(TrainerTest, LoadBalanceIsAddedAsItsCoefficientSays) {
  const ModelSpec spec = model::TinySpec("qwen2_moe");
  auto w = Make(spec);
  Batch b = RandomBatch(spec, 3, 4, 7);
  auto trainer = std::move(Trainer::Create(*w, Plain())).value();
  Record(*w, Plain(), b);
  std::map<std::string, double> plain, with;
  TrainerOptions o = Plain();
  const std::vector<float> without = GradientOf(*w, o, b, &plain);
  o.router_aux_coef = 0.5;
  const std::vector<float> added = GradientOf(*w, o, b, &with);
  EXPECT_NEAR(with.at("actor/loss") - plain.at("actor/loss"), 0.5 * plain.at("actor/router_balance"), 1e-6);
  // Alone, by the decoder, on the same packed rows.
  std::vector<int64_t> all(b.rows.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  const PackedBatch packed = Pack(b.rows, all);
  const auto device = model::AnyDevice();
  const model::Decoder decoder(*w, device);
  auto [hidden, saved] = decoder.ForwardTraining(
      {packed.ids, packed.positions, packed.slots, packed.first_run, packed.lengths, packed.runs}, false);
  EXPECT_NEAR(decoder.LoadBalanceLoss(saved), plain.at("actor/router_balance"), 1e-6);
  model::Gradients alone(*w, *device);
  const device::Array zeros = device->Take(hidden.view.rows, hidden.view.cols, hidden.view.dtype);
  decoder.Backward(std::move(saved), zeros.view, alone, 0.5);
  const std::vector<float> wanted = model::ValuesOf(*device, *w, alone);
  double error = 0, size = 0;
  for (size_t i = 0; i < added.size(); ++i) {
    error = std::max(error, std::fabs(double{added[i]} - without[i] - 0.1 * wanted[i]));
    size = std::max<double>(size, std::fabs(0.1 * wanted[i]));
  }
  EXPECT_GT(size, 0);
  EXPECT_LT(error, 1e-4 * size);
}

TEST(TrainerTest, AccumulationEqualsOneBigBatch) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  Batch b = RandomBatch(spec, 4, 5, 1);
  for (const AggregationMode a : {AggregationMode::kTokenMean, AggregationMode::kSeqMeanTokenMean,
                                  AggregationMode::kSeqMeanTokenSumNorm}) {
    TrainerOptions o = Plain();
    o.loss.aggregation = {.mode = a, .scale = 9, .divide_by_seqs = true};
    o.loss.policy.entropy_coef = 0.01;
    Record(*w, o, b);
    std::map<std::string, double> big_metrics, small_metrics;
    const std::vector<float> big = GradientOf(*w, o, b, &big_metrics);
    o.micro_batch_tokens = 20;  // groups are cut, prompts repeated
    o.head_rows = 7;
    const std::vector<float> small = GradientOf(*w, o, b, &small_metrics);
    EXPECT_LT(RelativeDifference(small, big), 2e-6);
    for (const char* name : {"actor/pg_loss", "actor/entropy", "actor/grad_norm", "actor/ppo_kl",
                             "critic/advantages/mean", "actor/loss"}) {
      EXPECT_NEAR(small_metrics[name], big_metrics[name], 1e-5 * (1 + std::fabs(big_metrics[name]))) << name;
    }
    EXPECT_GT(small_metrics["perf/computed_tokens"], big_metrics["perf/computed_tokens"]);
  }
}

// Against the reference decoder in double: loss and its derivative by central differences.
TEST(TrainerTest, GradientIsThatOfTheDefinedLoss) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  Batch b = RandomBatch(spec, 2, 3, 2);
  // Responses of a group that begin alike, and two that are equal.
  b.rows[1].response = b.rows[0].response;
  b.rows[1].loss_mask.assign(b.rows[1].response.size(), 1);
  b.rows[1].versions.assign(b.rows[1].response.size(), b.version);
  b.rows[2].response[0] = b.rows[0].response[0];
  TrainerOptions o = Plain();
  o.temperature = 0.9;
  o.loss.policy.entropy_coef = 0.05;
  o.loss.aggregation.mode = AggregationMode::kSeqMeanTokenMean;
  Record(*w, o, b);
  std::map<std::string, double> metrics;
  const std::vector<float> got = GradientOf(*w, o, b, &metrics);
  EXPECT_EQ(metrics["actor/ppo_kl"], 0.0);

  std::vector<double> rewards;
  std::vector<int64_t> groups;
  for (const Row& r : b.rows) rewards.push_back(r.reward), groups.push_back(r.gid.value);
  const auto advantages = algorithms::GrpoAdvantages(rewards, groups, {});
  std::vector<std::vector<double>> old;
  model::Flat flat = model::FlatOf(*w);
  const auto evaluate = [&](std::vector<std::vector<double>>* record) {
    double loss = 0;
    int64_t sequences = 0;
    for (const Row& r : b.rows)
      sequences += std::count(r.loss_mask.begin(), r.loss_mask.end(), 1) > 0 ? 1 : 0;
    for (size_t i = 0; i < b.rows.size(); ++i) {
      const Row& r = b.rows[i];
      std::vector<int32_t> ids = r.prompt;
      ids.insert(ids.end(), r.response.begin(), r.response.end());
      const auto logits = model::ReferenceLogits(spec, flat, ids);
      const auto n = static_cast<double>(std::count(r.loss_mask.begin(), r.loss_mask.end(), 1));
      if (record != nullptr) record->emplace_back();
      for (size_t t = 0; t < r.response.size(); ++t) {
        model::Flat z = logits[r.prompt.size() + t - 1];
        for (double& v : z) v /= o.temperature;
        const double lp = model::ReferenceLogProb(z, r.response[t]);
        if (record != nullptr) record->back().push_back(lp);
        if (r.loss_mask[t] == 0) continue;
        double entropy = 0;
        for (size_t v = 0; v < z.size(); ++v) {
          const double l = model::ReferenceLogProb(z, static_cast<int32_t>(v));
          entropy -= std::exp(l) * l;
        }
        const double before = record != nullptr ? lp : old[i][t];
        loss += (-advantages[i] * std::exp(lp - before) - o.loss.policy.entropy_coef * entropy) / n /
                static_cast<double>(sequences);
      }
    }
    return loss;
  };
  std::vector<std::vector<double>> first;
  const double loss = evaluate(&first);
  old = first;
  EXPECT_NEAR(metrics["actor/loss"], loss, 1e-5);
  Rng rng(3);
  for (const model::Parameter& p : w->layout()) {
    for (int i = 0; i < 3; ++i) {
      int64_t k = p.offset + rng.Below(p.numel());
      if (p.name == "embedding")
        k = p.offset + b.rows[0].prompt[static_cast<size_t>(i)] * spec.hidden_size +
            rng.Below(spec.hidden_size);
      double& x = flat[static_cast<size_t>(k)];
      const double keep = x, h = 1e-4;
      x = keep + h;
      const double up = evaluate(nullptr);
      x = keep - h;
      const double down = evaluate(nullptr);
      x = keep;
      const double want = (up - down) / (2 * h);
      EXPECT_NEAR(got[static_cast<size_t>(k)] / 0.1, want, 3e-4 * (1 + std::fabs(want))) << p.name;
    }
  }
}

TEST(TrainerTest, RecomputeGivesTheSameWeights) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const ModelSpec spec = model::TinySpec("qwen3");
    std::vector<uint64_t> digests;
    for (const bool recompute : {false, true}) {
      auto w = Make(spec, dtype);
      TrainerOptions o = Plain();
      o.recompute = recompute;
      auto trainer = std::move(Trainer::Create(*w, o)).value();
      Batch b = RandomBatch(spec, 3, 4, 4);
      Record(*w, o, b);
      digests.push_back(trainer->Step(b)->digest);
      EXPECT_EQ(digests.back(), w->Digest());
    }
    EXPECT_EQ(digests[0], digests[1]);
  }
}

// The engine's way, one token at a time, gives the recorded log-probs; the trainer's step finds no
// difference.
void ExpectNoGap(const ModelSpec& spec, DType dtype, double std) {
  auto w = Make(spec, dtype, std);
  TrainerOptions o = Plain();
  o.device = model::AnyDevice();
  o.micro_batch_tokens = 64;
  o.head_rows = 32;
  o.temperature = 0.8;
  auto trainer = std::move(Trainer::Create(*w, o)).value();
  const model::Decoder engine(*w, o.device);
  Batch b = RandomBatch(spec, 3, 4, 5);
  for (Row& r : b.rows) {
    const model::KvOnDevice memory(*o.device, spec, dtype, 64);
    std::vector<int32_t> all = r.prompt;
    all.insert(all.end(), r.response.begin(), r.response.end());
    model::BatchArrays prefill;
    prefill.runs = {{16, 48}};
    prefill.Add(all, 0, r.prompt.size(), 0, 16);
    device::Array hidden = engine.Forward(prefill.view(), memory.view());
    hidden.view = hidden.view.Rows(static_cast<int64_t>(r.prompt.size()) - 1, 1);
    for (size_t t = 0; t < r.response.size(); ++t) {
      const std::vector<int32_t> id = {r.response[t]};
      engine.TokenLogProbs(engine.Logits(hidden.view).view, id, 0.8F, std::span(r.logprobs).subspan(t, 1));
      model::BatchArrays next;
      next.runs = {{16, 48}};
      const size_t at = r.prompt.size() + t;
      next.Add(all, at, at + 1, 0, static_cast<int32_t>(16 + at));
      hidden = engine.Forward(next.view(), memory.view());
    }
  }
  const auto lp = LogProbs(*w, o, b.rows);
  ASSERT_TRUE(lp.ok());
  for (size_t i = 0; i < b.rows.size(); ++i) EXPECT_EQ((*lp)[i], b.rows[i].logprobs) << "row " << i;
  const auto result = trainer->Step(b);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->metrics.at("training/rollout_logp_diff/max"), 0.0);
  EXPECT_EQ(result->metrics.at("actor/ppo_kl"), 0.0);
}

class NoGapTest : public testing::TestWithParam<std::tuple<DType, int>> {};
TEST_P(NoGapTest, DeterministicTrainerSeesTheBitsOfTheEngine) {
  const auto [dtype, threads] = GetParam();
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  ModelSpec spec;
  spec.vocab_size = 53;
  spec.hidden_size = 128, spec.intermediate_size = 384, spec.layers = 4;
  spec.heads = 4, spec.kv_heads = 2, spec.head_size = 32, spec.max_position = 256;
  spec.tie_embeddings = true;
  ExpectNoGap(spec, dtype, 0.05);
  ModelSpec smol;  // SmolLM2's shapes, one layer
  smol.vocab_size = 49152;
  smol.hidden_size = 576, smol.intermediate_size = 1536, smol.layers = 1;
  smol.heads = 9, smol.kv_heads = 3, smol.head_size = 64, smol.tie_embeddings = true;
  if (dtype == DType::kBFloat16 && threads == 2) ExpectNoGap(smol, dtype, 0.05);
  at::set_num_threads(before);
}
INSTANTIATE_TEST_SUITE_P(TypesAndThreads, NoGapTest,
                         testing::Combine(testing::Values(DType::kFloat32, DType::kBFloat16),
                                          testing::Values(1, 2)));

TEST(TrainerTest, TokensOfOlderVersionsAreNotInTheGap) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  auto trainer = std::move(Trainer::Create(*w, Plain())).value();
  Batch b = RandomBatch(spec, 2, 2, 6);
  Record(*w, Plain(), b);
  b.version = Version{0, 3};
  for (Row& r : b.rows) r.versions.assign(r.response.size(), Version{0, 3});
  b.rows[0].logprobs[0] += 1.0F;
  b.rows[0].versions[0] = Version{0, 2};
  b.rows[0].loss_mask.assign(b.rows[0].response.size(), 1);
  const auto result = trainer->Step(b);
  ASSERT_TRUE(result.ok());
  EXPECT_LT(result->metrics.at("training/rollout_logp_diff/max"), 1e-5);
}

TEST(TrainerTest, NonFiniteStepChangesNothingAndIsReported) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  auto trainer = std::move(Trainer::Create(*w, Plain())).value();
  Batch b = RandomBatch(spec, 2, 3, 7);
  Record(*w, Plain(), b);
  w->Get("final_norm")[3].fill_(std::numeric_limits<float>::infinity());
  trainer->WeightsChanged();
  const StateCopy before = CopyOf(trainer->State());
  const auto result = trainer->Step(b);
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->finite);
  EXPECT_EQ(result->updates, 0);
  ExpectSame(CopyOf(trainer->State()), before);
}

TEST(TrainerTest, StateRoundTripContinuesBitForBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const ModelSpec spec = model::TinySpec();
    auto w = Make(spec, dtype);
    auto trainer = std::move(Trainer::Create(*w, Plain())).value();
    Batch b = RandomBatch(spec, 2, 3, 8);
    Record(*w, Plain(), b);
    ASSERT_TRUE(trainer->Step(b).ok());
    const StateCopy saved = CopyOf(trainer->State());
    b.step = StepNumber{2};
    const uint64_t want = trainer->Step(b)->digest;

    auto other = std::move(Weights::Create(spec, dtype)).value();
    auto resumed = std::move(Trainer::Create(*other, Plain())).value();
    Restore(*resumed, saved);
    EXPECT_EQ(resumed->updates(), 1);
    EXPECT_EQ(resumed->Step(b)->digest, want);
  }
}

TEST(TrainerTest, SeveralUpdatesUseTheStartAsOld) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  TrainerOptions o = Plain();
  o.epochs = 2;
  o.minibatches = 2;
  o.schedule.peak = 1e-2;
  auto trainer = std::move(Trainer::Create(*w, o)).value();
  Batch b = RandomBatch(spec, 4, 4, 9);
  Record(*w, o, b);
  const auto result = trainer->Step(b);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->updates, 4);
  EXPECT_EQ(trainer->updates(), 4);
  EXPECT_GT(std::fabs(result->metrics.at("actor/ppo_kl")), 1e-6);
  EXPECT_LT(result->metrics.at("training/rollout_logp_diff/max"), 1e-5);
}

// A forward is saved, and its check is not lost.
TEST(TrainerTest, WhatTheTrainedWeightsRecordedIsOld) {
  const ModelSpec spec = model::TinySpec();
  struct Result {
    uint64_t digest = 0;
    double gap = 0;
  };
  const auto step = [&](const std::function<void(Batch&)>& change, bool clean = true) {
    auto w = Make(spec);
    TrainerOptions o = Plain();
    o.device = model::AnyDevice();
    o.epochs = 2;
    o.minibatches = 2;
    o.clean_records = clean;
    o.schedule.peak = 1e-2;
    auto trainer = std::move(Trainer::Create(*w, o)).value();
    Batch b = RandomBatch(spec, 4, 4, 9);
    for (Row& r : b.rows) r.loss_mask.clear();
    Record(*w, o, b);
    change(b);
    const auto result = trainer->Step(b);
    EXPECT_TRUE(result.ok() && result->updates == 4) << result.status().ToString();
    return Result{result->digest, result->metrics.at("training/rollout_logp_diff/max")};
  };
  const Result recorded = step([](Batch&) {});
  const Result computed = step([](Batch& b) {
    for (Row& r : b.rows) r.versions.clear();
  });
  EXPECT_EQ(recorded.digest, computed.digest);
  EXPECT_EQ(recorded.gap, 0);
  EXPECT_EQ(computed.gap, 0);
  // Another record counts, and shows; not that of a row that an older version sampled in part.
  const auto wrong = [](Row& r) { r.logprobs[0] += 0.125F; };
  auto any = Make(spec);
  if (model::AnyDevice()->batch_invariant(any->dtype())) {
    const Result shifted = step([&](Batch& b) { wrong(b.rows[0]); });
    EXPECT_NE(shifted.digest, recorded.digest);
    EXPECT_NEAR(shifted.gap, 0.125, 1e-5);
    EXPECT_EQ(step([&](Batch& b) { wrong(b.rows[0]); }, /*clean=*/false).digest, recorded.digest);
  }
  const Result older = step([&](Batch& b) {
    wrong(b.rows[0]);
    b.version = Version{0, 1};
    for (Row& r : b.rows) r.versions.assign(r.response.size(), b.version);
    b.rows[0].versions[0] = Version{0, 0};
  });
  EXPECT_EQ(older.digest, recorded.digest);
  EXPECT_EQ(older.gap, 0);
}

TEST(TrainerTest, ACallbackStopsTheStepBeforeTheUpdate) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  TrainerOptions o = Plain();
  o.micro_batch_tokens = 20;
  auto trainer = std::move(Trainer::Create(*w, o)).value();
  Batch b = RandomBatch(spec, 4, 4, 10);
  Record(*w, o, b);
  const uint64_t before = w->Digest();
  const auto result = trainer->Step(b, [](const StepProgress& p) { return p.done < 2; });
  EXPECT_EQ(result.status().code(), StatusCode::kAborted);
  EXPECT_EQ(w->Digest(), before);
  int64_t last = 0;
  ASSERT_TRUE(trainer
                  ->Step(b,
                         [&](const StepProgress& p) {
                           last = p.done;
                           return p.done <= p.total;
                         })
                  .ok());
  EXPECT_GT(last, 2);
}

// The host's weights are those that the trainer computes with, whatever becomes of the step.
TEST(TrainerTest, UpdatesOfAStoppedStepReachTheHost) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  TrainerOptions o = Plain();
  o.minibatches = 4;
  auto trainer = std::move(Trainer::Create(*w, o)).value();
  Batch b = RandomBatch(spec, 4, 4, 10);
  Record(*w, o, b);
  const uint64_t before = w->Digest();
  const auto result = trainer->Step(b, [](const StepProgress& p) { return p.done < 2; });
  EXPECT_EQ(result.status().code(), StatusCode::kAborted);
  EXPECT_EQ(trainer->updates(), 2);
  EXPECT_NE(w->Digest(), before);
  EXPECT_EQ(w->Digest(), PiecesOf(std::as_const(*w).bytes()).Digest()) << "the device's, and the host's";
}

TEST(TrainerTest, MalformedBatchesAreRefusedByName) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  auto trainer = std::move(Trainer::Create(*w, Plain())).value();
  const Batch good = RandomBatch(spec, 1, 2, 11);
  const auto refused = [&](const std::function<void(Batch&)>& spoil, const std::string& word) {
    Batch b = good;
    spoil(b);
    const auto result = trainer->Step(b);
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find(word), std::string::npos) << result.status().ToString();
  };
  refused([](Batch& b) { b.rows.clear(); }, "no rows");
  refused([](Batch& b) { b.rows[0].prompt.clear(); }, "prompt is empty");
  refused([](Batch& b) { b.rows[0].response[0] = 61; }, "token id 61");
  refused([](Batch& b) { b.rows[1].logprobs.pop_back(); }, "log-probs");
  refused([](Batch& b) { b.rows[1].reward = NAN; }, "reward");
  refused([](Batch& b) { b.rows[1].loss_mask.push_back(1); }, "loss_mask");
  refused([](Batch& b) { b.step = StepNumber{0}; }, "steps count from 1");
  refused(
      [](Batch& b) {
        b.rows[0].response.assign(70, 1);
        b.rows[0].logprobs.assign(70, 0), b.rows[0].loss_mask.clear(), b.rows[0].versions.clear();
      },
      "positions");
}

TEST(TrainerTest, ReleasedMemoryChangesNoResult) {
  const ModelSpec spec = model::TinySpec();
  std::vector<uint64_t> digests;
  for (const bool release : {false, true}) {
    auto w = Make(spec, DType::kBFloat16);
    auto trainer = std::move(Trainer::Create(*w, Plain())).value();
    Batch b = RandomBatch(spec, 2, 3, 14);
    Record(*w, Plain(), b);
    ASSERT_TRUE(trainer->Step(b).ok());
    if (release) trainer->ReleaseScratch();
    b.step = StepNumber{2};
    digests.push_back(trainer->Step(b)->digest);
  }
  EXPECT_EQ(digests[0], digests[1]);
}

// A value of /proc/self/status in bytes.
int64_t ProcessBytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  return -1;
}

ModelSpec WideVocabulary() {
  ModelSpec spec;
  spec.vocab_size = 60000;
  spec.hidden_size = 16, spec.intermediate_size = 32, spec.layers = 1;
  spec.heads = 1, spec.kv_heads = 1, spec.head_size = 16, spec.max_position = 512;
  spec.tie_embeddings = true;
  return spec;
}

TEST(TrainerTest, AReleasedTrainerGivesItsMemoryBackToTheSystem) {
  const ModelSpec spec = WideVocabulary();
  auto w = Make(spec);
  auto trainer = std::move(Trainer::Create(*w, Plain())).value();
  Batch b = RandomBatch(spec, 2, 3, 14);
  Record(*w, Plain(), b);
  EXPECT_EQ(trainer->held().gradients, 0);
  ASSERT_TRUE(trainer->Step(b).ok());
  const model::MemoryUse held = trainer->held();
  EXPECT_EQ(held.gradients, 4 * w->elements());
  EXPECT_EQ(held.optimizer, 8 * w->elements());
  EXPECT_GT(held.activations, 0);
  // The checked device maps shared memory.
  const auto resident = [] { return ProcessBytes("RssAnon") + ProcessBytes("RssShmem"); };
  const int64_t before = resident();
  trainer->ReleaseScratch();
  malloc_trim(0);
  EXPECT_EQ(trainer->held().passing(), 0);
  EXPECT_EQ(trainer->held().optimizer, held.optimizer);
  EXPECT_GT(before - resident(), held.gradients * 9 / 10);
}

// 240 MB of logits at float32 for all tokens; the buffer of 256 of them is 61 MB.
TEST(TrainerTest, OneBufferOfLogitsLivesAtATime) {
  const ModelSpec spec = WideVocabulary();
  auto w = Make(spec);
  TrainerOptions o = Plain();
  o.micro_batch_tokens = 4096;
  o.head_rows = 256;
  auto trainer = std::move(Trainer::Create(*w, o)).value();
  Batch b = RandomBatch(spec, 1, 4, 15);
  Rng rng(5);
  for (Row& r : b.rows) {
    r.response = model::RandomIds(rng, 250, spec.vocab_size);
    r.logprobs.assign(250, -11.0F);
    r.loss_mask.clear(), r.versions.clear();
  }
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak starts anew
  const int64_t before = ProcessBytes("VmRSS");
  ASSERT_TRUE(trainer->Step(b).ok());
  const int64_t peak = ProcessBytes("VmHWM") - before, buffer = int64_t{256} * spec.vocab_size * 4;
  // Gradients and moments are touched, and small beside logits.
  EXPECT_LT(peak, buffer + 12 * w->elements() + (int64_t{40} << 20));
  EXPECT_GT(peak, buffer);
}

TEST(TrainerTest, EqualRewardsLeaveTheWeightsAlone) {
  const ModelSpec spec = model::TinySpec();
  auto w = Make(spec);
  auto trainer = std::move(Trainer::Create(*w, Plain())).value();
  Batch b = RandomBatch(spec, 2, 3, 12);
  for (Row& r : b.rows) r.reward = 0.3;
  const uint64_t before = w->Digest();
  const auto result = trainer->Step(b);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->metrics.at("actor/grad_norm"), 0.0);
  EXPECT_EQ(w->Digest(), before);
}

// A supervised job learns to repeat the prompt.
TEST(TrainerTest, SupervisedTrainingLearnsToCopy) {
  ModelSpec spec;
  spec.vocab_size = 12;
  spec.hidden_size = 32, spec.intermediate_size = 64, spec.layers = 2;
  spec.heads = 2, spec.kv_heads = 1, spec.head_size = 16, spec.max_position = 32;
  spec.tie_embeddings = true;
  auto w = std::move(Weights::Create(spec, DType::kFloat32)).value();
  w->Initialize(1, 0.05);
  TrainerOptions o = Plain();
  o.objective = JobKind::kSft;
  o.schedule.peak = 1e-2;
  auto trainer = std::move(Trainer::Create(*w, o)).value();
  Rng rng(13);
  double first = 0, last = 0;
  for (int64_t step = 1; step <= 150; ++step) {
    Batch b;
    b.step = StepNumber{step};
    for (int64_t i = 0; i < 32; ++i) {
      Row r;
      r.gid = GroupId{i};
      r.prompt = model::RandomIds(rng, 3, 10);
      r.response = r.prompt;
      r.prompt.push_back(10);
      r.response.push_back(11);
      b.rows.push_back(std::move(r));
    }
    const auto result = trainer->Step(b);
    ASSERT_TRUE(result.ok());
    last = result->metrics.at("sft/loss");
    if (step == 1) first = last;
  }
  EXPECT_NEAR(first, std::log(12.0), 0.3);
  EXPECT_LT(last, 0.1);
}

TEST(MemoryTest, PredictionCountsTheParametersOfTheLayout) {
  for (const std::string family : {"llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "llama_biased"}) {
    const ModelSpec spec = model::TinySpec(family);
    const model::MemoryUse m = model::TrainingMemory(spec, DType::kBFloat16, {.tokens = 100});
    auto w = Make(spec, DType::kBFloat16);
    auto trainer = std::move(Trainer::Create(*w, Plain())).value();
    int64_t state = 0;
    for (const NamedBytes& part : trainer->State())
      state += part.name == "updates" ? 0 : static_cast<int64_t>(part.bytes.size());
    // What products read is laid out with the first of them.
    const auto on_cpu = w->On(std::make_shared<device::CpuDevice>());
    for (size_t i = 0; i < w->layout().size(); ++i) (void)on_cpu->product(static_cast<int64_t>(i));
    EXPECT_EQ(m.resident(), state + on_cpu->strips_bytes()) << family;
    EXPECT_LT(model::TrainingMemory(spec, DType::kBFloat16, {.tokens = 100, .recompute = true}).total(),
              m.total());
  }
}

TEST(OptionsFromJobTest, ReadsTheJobAndRefusesGreedyTraining) {
  JobConfig job;
  job.train.learning_rate = 2e-5;
  job.job = RlJob{.algorithm = {.name = "dr_grpo"}, .environment = {}};
  job.rollout.max_new_tokens = 16;
  const auto o = OptionsFromJob(job);
  ASSERT_TRUE(o.ok());
  EXPECT_EQ(o->schedule.peak, 2e-5);
  EXPECT_EQ(o->loss.aggregation.scale, 16);
  job.rollout.temperature = 0;
  EXPECT_EQ(OptionsFromJob(job).status().code(), StatusCode::kInvalidArgument);
  job.job = SftJob{};
  EXPECT_EQ(OptionsFromJob(job)->objective, JobKind::kSft);
  job.job = DpoJob{.preference = {.loss = PreferenceLoss::kIpo}};
  EXPECT_TRUE(OptionsFromJob(job)->preference.ipo);
  EXPECT_TRUE(Needed(*OptionsFromJob(job)).reference);
  job.job = DistillJob{.distill = {.divergence = DistillDivergence::kReverse}};
  EXPECT_EQ(OptionsFromJob(job)->distill.weight, 0);
  EXPECT_TRUE(Needed(*OptionsFromJob(job)).teacher);
}

}  // namespace
}  // namespace tidepool::train
