// Ranks that each have a part of the model against one that has all of it: the same update, however the model
// is cut and the rows are shared. To the bit, where the rows are those of one rank and the device sums in
// tiles; else up to rounding.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/rng.h"
#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "core/train/trainer.h"
#include "tests/core/model/reference.h"
#include "tests/core/train/other_rank.h"
#include "tests/core/train/random_rows.h"

namespace tidepool::train {
namespace {

using model::DType;
using model::ModelSpec;
using model::Weights;

// Whatever of a model is cut in another way; a vocabulary that no number of ranks divides.
ModelSpec CutSpec(int64_t kv_heads, bool plain) {
  ModelSpec s = model::TinySpec();
  s.architecture = plain ? "llama" : "qwen3";
  s.vocab_size = 53;
  s.hidden_size = 24;
  s.intermediate_size = 48;
  s.layers = 3;
  s.kv_heads = kv_heads;
  s.heads = 2 * kv_heads;
  s.head_size = 8;
  s.qk_norm = !plain;
  s.qkv_bias = s.o_bias = s.mlp_bias = plain;
  s.tie_embeddings = !plain;
  return s;
}

struct Result {
  std::vector<float> weights;
  std::map<std::string, double> metrics, evaluated;
  uint64_t digest = 0;
  int64_t optimizer_bytes = 0;
};

struct Ranks {
  int data = 1, tensor = 1;
  bool zero = false;
};

std::vector<Result> Train(const ModelSpec& spec, const Batch& batch, const TrainerOptions& options,
                          const Ranks& ranks, bool by_memory = true, DType dtype = DType::kFloat32) {
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<Result> results(static_cast<size_t>(ranks.data * ranks.tensor));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks.data * ranks.tensor; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      const int d = rank / ranks.tensor, t = rank % ranks.tensor;
      const auto group = [&](const std::string& name, int place, int size) {
        auto made = comm::MakeGroup({.rendezvous = rendezvous,
                                     .name = name,
                                     .rank = place,
                                     .size = size,
                                     .shared_folder = by_memory ? ::testing::TempDir() : ""});
        EXPECT_TRUE(made.ok()) << made.status().message();
        return std::move(made).value();
      };
      std::unique_ptr<comm::Collective> data, tensor;
      if (ranks.tensor > 1) tensor = group("tensor " + std::to_string(d), t, ranks.tensor);
      if (ranks.data > 1) data = group("data " + std::to_string(t), d, ranks.data);
      Batch mine = batch;
      for (Row& r : mine.rows)
        if (r.gid.value % ranks.data != d) r = Elsewhere(r);
      auto weights = std::move(Weights::Create(spec, dtype)).value();
      model::Randomize(*weights, 21, 0.2);
      TrainerOptions own = options;  // one thread uses a device
      own.device = model::AnyDevice();
      own.part = {t, ranks.tensor};
      if (ranks.zero) own.shard = {d, ranks.data};
      auto created = Trainer::Create(*weights, own);
      ASSERT_TRUE(created.ok()) << created.status().message();
      Trainer& trainer = **created;
      Result& r = results[static_cast<size_t>(rank)];
      trainer.Join(tensor.get());
      for (int64_t step = 1; step <= 3; ++step) {
        mine.step = StepNumber{step};
        const auto result = trainer.Step(mine, nullptr, data.get());
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        ASSERT_TRUE(result->finite);
        r.metrics = result->metrics;
        r.digest = result->digest;
      }
      if (own.objective == JobKind::kSft) {
        const auto evaluated = trainer.Evaluate(batch.rows);
        ASSERT_TRUE(evaluated.ok()) << evaluated.status().message();
        r.evaluated = *evaluated;
      }
      r.optimizer_bytes = trainer.held().optimizer;
      for (int64_t i = 0; i < static_cast<int64_t>(weights->layout().size()); ++i) {
        const at::Tensor values = weights->Get(i).to(at::kFloat).contiguous();
        r.weights.insert(r.weights.end(), values.data_ptr<float>(),
                         values.data_ptr<float>() + values.numel());
      }
    });
  }
  for (auto& t : threads) t.join();
  return results;
}

// Two, three and four ranks cut sums at the places where one cuts them.
void ExpectSameBits(const Result& one, const std::vector<Result>& all) {
  if (!model::AnyDevice()->sums_in_tiles()) return;
  for (const Result& r : all) {
    EXPECT_EQ(r.digest, one.digest);
    for (const auto& [name, value] : one.metrics) {
      if (!name.starts_with("actor/")) continue;
      EXPECT_EQ(r.metrics.at(name), value) << name;
    }
  }
}

void ExpectSame(const Result& one, const std::vector<Result>& all, double tolerance) {
  for (const Result& r : all) {
    EXPECT_EQ(r.digest, all[0].digest);
    for (size_t i = 0; i < one.weights.size(); ++i) ASSERT_NEAR(r.weights[i], one.weights[i], tolerance) << i;
    for (const auto& [name, value] : one.metrics) {
      if (name.starts_with("timing") || name.starts_with("perf") || name.starts_with("training/") ||
          name.starts_with("data_plane/"))
        continue;
      ASSERT_TRUE(r.metrics.contains(name)) << name;
      EXPECT_NEAR(r.metrics.at(name), value, 5e-4 * (1 + std::fabs(value))) << name;
    }
    for (const auto& [name, value] : one.evaluated)
      EXPECT_NEAR(r.evaluated.at(name), value, 1e-4 * (1 + std::fabs(value))) << name;
  }
}

TrainerOptions OptionsOf(const std::string& algorithm) {
  JobConfig job;
  if (algorithm != "sft")
    job.job = RlJob{.algorithm = {.name = algorithm}, .environment = {}};
  else
    job.job = SftJob{};
  auto options = OptionsFromJob(job);
  EXPECT_TRUE(options.ok()) << options.status().ToString();
  TrainerOptions o = std::move(*options);
  o.micro_batch_tokens = 100;
  o.minibatches = 2;
  o.schedule = {};
  o.schedule.peak = 1e-3;
  o.optimizer.weight_decay = 0.01;
  o.optimizer.eps = 1e-2;  // else an element moves as far by a gradient of rounding as by any other
  o.temperature = algorithm == "sft" ? 1 : 0.8;
  o.head_rows = 5;
  o.clean_records = false;  // what the rows say was recorded by nobody
  if (algorithm != "sft") o.loss.policy.entropy_coef = 0.01;
  return o;
}

TEST(TensorParallelTest, HoweverTheModelIsCutTheUpdateIsThatOfOneRank) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed);
  for (const bool plain : {true, false}) {
    for (const std::string algorithm : {"grpo", "gspo", "otb", "sft"}) {
      SCOPED_TRACE(algorithm + (plain ? ", biases" : ", head norms"));
      const ModelSpec spec = CutSpec(12, plain);
      const Batch batch = RandomRows(spec, rng, 6, 4);
      TrainerOptions o = OptionsOf(algorithm);
      o.recompute = rng.Chance(0.5);
      const Result one = Train(spec, batch, o, {})[0], of_two = Train(spec, batch, o, {2, 1})[0];
      for (const Ranks& ranks : {Ranks{1, 2}, Ranks{1, 3}, Ranks{1, 4}, Ranks{2, 2}, Ranks{2, 2, true}}) {
        if (ranks.tensor != 2 && algorithm != "grpo") continue;
        SCOPED_TRACE(std::to_string(ranks.data) + " x " + std::to_string(ranks.tensor) +
                     (ranks.zero ? ", zero" : ""));
        const std::vector<Result> all = Train(spec, batch, o, ranks);
        ExpectSame(one, all, 1e-4);
        ExpectSameBits(ranks.data == 1 ? one : of_two, all);
      }
    }
  }
}

// A norm that lies where the intervals of two ranks meet belongs to another rank on each part of the model.
TEST(TensorParallelTest, SumsAfterEachMicroBatchAreThoseOfTheUpdate) {
  Rng rng(9);
  ModelSpec spec = CutSpec(4, false);
  spec.vocab_size = 49;
  const Batch batch = RandomRows(spec, rng, 6, 4);
  TrainerOptions o = OptionsOf("grpo");
  o.micro_batch_tokens = 40;
  const Result one = Train(spec, batch, o, {})[0];
  o.sum_each_micro_batch = true;
  for (const Ranks& ranks : {Ranks{1, 2}, Ranks{2, 2}, Ranks{2, 2, true}}) {
    SCOPED_TRACE(std::to_string(ranks.data) + " x " + std::to_string(ranks.tensor));
    ExpectSame(one, Train(spec, batch, o, ranks), 1e-4);
  }
}

TEST(TensorParallelTest, BySocketsToo) {
  Rng rng(5);
  const ModelSpec spec = CutSpec(2, true);
  const Batch batch = RandomRows(spec, rng, 2, 2);
  const TrainerOptions o = OptionsOf("grpo");
  const Result one = Train(spec, batch, o, {})[0];
  const std::vector<Result> all = Train(spec, batch, o, {1, 2}, /*by_memory=*/false);
  ExpectSame(one, all, 1e-4);
  ExpectSameBits(one, all);
}

// Five ranks cut where nobody else does, and an inner width that four cut in the midst of a word is cut there
// by them alone.
TEST(TensorParallelTest, AtPlacesOfItsOwnTheUpdateIsThatOfOneRankUpToRounding) {
  Rng rng(10);
  ModelSpec five = CutSpec(5, true), four = CutSpec(4, false);
  five.intermediate_size = 40;
  four.intermediate_size = 36;
  for (const auto& [spec, ranks] : {std::pair(five, 5), {four, 4}, {CutSpec(8, true), 8}}) {
    const Batch batch = RandomRows(spec, rng, 3, 3);
    const TrainerOptions o = OptionsOf("grpo");
    ExpectSame(Train(spec, batch, o, {})[0], Train(spec, batch, o, {1, ranks}), 1e-4);
    const Result one = Train(spec, batch, o, {}, true, DType::kBFloat16)[0];
    for (const Result& r : Train(spec, batch, o, {1, ranks}, true, DType::kBFloat16)) {
      double apart = 0;
      for (size_t i = 0; i < one.weights.size(); ++i)
        apart += std::fabs(double{r.weights[i]} - one.weights[i]);
      EXPECT_LT(apart / static_cast<double>(one.weights.size()), 5e-4);
      EXPECT_NEAR(r.metrics.at("actor/entropy"), one.metrics.at("actor/entropy"), 0.03);
    }
  }
}

TEST(TensorParallelTest, Bfloat16HasTheSameBits) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed);
  for (const bool wide : {true, false}) {  // tiles of 32 terms, or not
    ModelSpec spec = CutSpec(12, rng.Chance(0.5));
    if (wide) spec.intermediate_size = 384, spec.head_size = 32, spec.hidden_size = 64;
    const Batch batch = RandomRows(spec, rng, 5, 3);
    TrainerOptions o = OptionsOf("grpo");
    o.recompute = rng.Chance(0.5);
    const Result one = Train(spec, batch, o, {}, true, DType::kBFloat16)[0];
    for (const int ranks : {2, 3, 4}) {
      SCOPED_TRACE(ranks);
      ExpectSameBits(one, Train(spec, batch, o, {1, ranks}, true, DType::kBFloat16));
    }
  }
}

TEST(TensorParallelTest, Bfloat16LearnsTheSame) {
  Rng rng(8);
  const ModelSpec spec = CutSpec(4, true);
  const Batch batch = RandomRows(spec, rng, 4, 3);
  TrainerOptions o = OptionsOf("grpo");
  o.schedule.peak = 2e-3;
  const Result one = Train(spec, batch, o, {}, true, DType::kBFloat16)[0];
  for (const Result& r : Train(spec, batch, o, {2, 2, true}, true, DType::kBFloat16)) {
    double apart = 0;
    for (size_t i = 0; i < one.weights.size(); ++i) apart += std::fabs(double{r.weights[i]} - one.weights[i]);
    EXPECT_LT(apart / static_cast<double>(one.weights.size()), 5e-4);
    EXPECT_NEAR(r.metrics.at("actor/grad_norm"), one.metrics.at("actor/grad_norm"),
                0.1 * one.metrics.at("actor/grad_norm"));
    EXPECT_NEAR(r.metrics.at("actor/entropy"), one.metrics.at("actor/entropy"), 0.03);
  }
}

TEST(TensorParallelTest, EachHasItsPartOfTheOptimizer) {
  Rng rng(6);
  ModelSpec spec = CutSpec(4, true);
  spec.vocab_size = 4000;  // norms and paddings are small beside it
  const Batch batch = RandomRows(spec, rng, 2, 2);
  const TrainerOptions o = OptionsOf("grpo");
  const auto whole = static_cast<double>(Train(spec, batch, o, {})[0].optimizer_bytes);
  for (const auto& [ranks, share] : {std::pair(Ranks{1, 2}, 2), {Ranks{1, 4}, 4}, {Ranks{2, 2, true}, 4}}) {
    for (const Result& r : Train(spec, batch, o, ranks))
      EXPECT_NEAR(static_cast<double>(r.optimizer_bytes) * share / whole, 1, 0.02);
  }
}

TEST(TensorParallelTest, WhatCannotBeCutIsRefusedWithNumbers) {
  auto weights = std::move(Weights::Create(model::TinySpec(), DType::kFloat32)).value();
  TrainerOptions o = OptionsOf("grpo");
  o.part = {0, 3};
  EXPECT_THAT(Trainer::Create(*weights, o).status().message(),
              ::testing::HasSubstr("train.mesh.tp: the model has 2 key and value heads, which 3 ranks cannot "
                                   "divide; write a divisor of 2"));
  o.part = {0, 2};
  auto trainer = std::move(Trainer::Create(*weights, o)).value();
  Rng rng(7);
  EXPECT_EQ(trainer->Step(RandomRows(model::TinySpec(), rng, 1, 2)).status().code(),
            StatusCode::kFailedPrecondition);  // the other rank is not there
}

}  // namespace
}  // namespace tidepool::train
