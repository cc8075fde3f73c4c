// Ranks that divide the experts of a model between them against ranks that each have all of them: the same
// update. To the bit where as many ranks have a part as there are, sums are formed after each micro-batch and
// products do not depend on the batch; else up to rounding.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
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

ModelSpec Experts(const std::string& family, int64_t experts) {
  ModelSpec s = model::TinySpec(family);
  s.moe.experts = experts;
  return s;
}

Batch RowsWithAnswers(const ModelSpec& spec, Rng& rng, int64_t groups, int64_t samples, bool routing) {
  return RandomRows(spec, rng, groups, samples, {.longest = 9, .each_trained = true, .routing = routing});
}

struct Result {
  std::vector<float> weights;
  std::map<std::string, double> metrics, evaluated;
  uint64_t digest = 0;
  int64_t optimizer_bytes = 0, gradient_bytes = 0;
};

struct Ranks {
  int ranks = 1, experts = 1;
  DType dtype = DType::kFloat32;
  bool by_memory = true;
  int64_t idle = -1;  // a rank that has no rows
};

std::vector<Result> Train(const ModelSpec& spec, const Batch& batch, const TrainerOptions& options,
                          const Ranks& run) {
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<Result> results(static_cast<size_t>(run.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < run.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      const int part = rank % run.experts, place = rank / run.experts;
      const auto group = [&](const std::string& name, int at, int size) -> std::unique_ptr<comm::Collective> {
        if (size == 1) return nullptr;
        auto made = comm::MakeGroup({.rendezvous = rendezvous,
                                     .name = name,
                                     .rank = at,
                                     .size = size,
                                     .shared_folder = run.by_memory ? ::testing::TempDir() : ""});
        EXPECT_TRUE(made.ok()) << made.status().message();
        return std::move(made).value();
      };
      const auto data = group("data", rank, run.ranks);
      const auto parts = group("parts " + std::to_string(place), part, run.experts);
      const auto same =
          group("same " + std::to_string(part), place, run.experts > 1 ? run.ranks / run.experts : 1);
      Batch mine = batch;
      for (Row& r : mine.rows) {
        int64_t owner = r.gid.value % run.ranks;
        if (owner == run.idle) owner = (owner + 1) % run.ranks;
        if (owner != rank) r = Elsewhere(r);
      }
      auto weights = std::move(Weights::Create(spec, run.dtype)).value();
      model::Randomize(*weights, 21, 0.2);
      auto start = std::move(Weights::Create(spec, run.dtype)).value();  // a reference
      model::Randomize(*start, 22, 0.2);
      TrainerOptions own = options;  // one thread uses a device
      own.device = model::AnyDevice();
      own.part = {part, run.experts, model::Cut::kExperts};
      auto created =
          Trainer::Create(*weights, own, {.reference = Needed(own).reference ? start.get() : nullptr});
      ASSERT_TRUE(created.ok()) << created.status().message();
      Trainer& trainer = **created;
      Result& r = results[static_cast<size_t>(rank)];
      trainer.Join(parts.get(), same.get());
      for (int64_t step = 1; step <= 3; ++step) {
        mine.step = StepNumber{step};
        const auto result = trainer.Step(mine, nullptr, data.get());
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        ASSERT_TRUE(result->finite);
        r.metrics = result->metrics;
        r.digest = result->digest;
      }
      r.gradient_bytes = trainer.held().gradients;
      r.optimizer_bytes = trainer.held().optimizer;
      if (own.objective != JobKind::kRl) {
        const auto evaluated = trainer.Evaluate(batch.rows);
        ASSERT_TRUE(evaluated.ok()) << evaluated.status().message();
        r.evaluated = *evaluated;
      }
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

void ExpectSame(const Result& one, const std::vector<Result>& all, double tolerance) {
  for (const Result& r : all) {
    EXPECT_EQ(r.digest, all[0].digest);
    ASSERT_EQ(r.weights.size(), one.weights.size());
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

void ExpectSameBits(const std::vector<Result>& whole, const std::vector<Result>& all) {
  for (const Result& r : all) {
    EXPECT_EQ(r.digest, whole[0].digest);
    for (const auto& [name, value] : whole[0].metrics) {
      if (!name.starts_with("actor/")) continue;
      EXPECT_EQ(r.metrics.at(name), value) << name;
    }
  }
}

TrainerOptions OptionsOf(const std::string& algorithm) {
  JobConfig job;
  if (algorithm == "sft")
    job.job = SftJob{};
  else if (algorithm == "dpo")
    job.job = DpoJob{};
  else
    job.job = RlJob{.algorithm = {.name = algorithm}, .environment = {}};
  auto options = OptionsFromJob(job);
  EXPECT_TRUE(options.ok()) << options.status().ToString();
  TrainerOptions o = std::move(*options);
  o.micro_batch_tokens = 60;
  o.minibatches = 2;
  o.schedule = {};
  o.schedule.peak = 1e-3;
  o.optimizer.eps = 1e-2;  // else an element moves as far by a gradient of rounding as by any other
  o.temperature = algorithm == "sft" || algorithm == "dpo" ? 1 : 0.8;
  o.head_rows = 5;
  o.clean_records = false;  // what the rows say was recorded by nobody
  o.router_aux_coef = 0.01;
  return o;
}

// 2, 3, 4 and 6 ranks that divide all experts, and 4 of which two do, and two others; experts with a shared
// one beside them and without.
TEST(ExpertParallelTest, HoweverExpertsAreDividedTheUpdateIsThatOfRanksWithAllOfThem) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed);
  for (const std::string algorithm : {"grpo", "gspo", "sft", "dpo"}) {
    const ModelSpec spec = Experts(rng.Chance(0.5) ? "qwen2_moe" : "qwen3_moe", 12);
    const Batch batch = RowsWithAnswers(spec, rng, 7, algorithm == "dpo" ? 2 : 4, algorithm == "grpo");
    TrainerOptions o = OptionsOf(algorithm);
    o.recompute = rng.Chance(0.5);
    o.sum_each_micro_batch = rng.Chance(0.5);
    for (const Ranks& run : {Ranks{2, 2}, Ranks{3, 3}, Ranks{4, 4}, Ranks{4, 2}, Ranks{6, 6}, Ranks{6, 3}}) {
      if (algorithm != "grpo" && run.ranks != 4) continue;
      SCOPED_TRACE(algorithm + ", " + spec.architecture + ", " + std::to_string(run.experts) + " of " +
                   std::to_string(run.ranks) + (o.recompute ? ", recompute" : ""));
      ExpectSame(Train(spec, batch, o, {run.ranks})[0], Train(spec, batch, o, run), 1e-4);
    }
  }
}

// Sums of each rank's rows apart, in the order of the ranks, have the bits of ranks that have all experts.
TEST(ExpertParallelTest, InDeterministicModeTheBitsAreTheSame) {
  if (!model::AnyDevice()->batch_invariant(DType::kFloat32)) GTEST_SKIP() << "products depend on the batch";
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int ranks : {2, 3, 4}) {
      SCOPED_TRACE(std::to_string(ranks) + (dtype == DType::kFloat32 ? " float32" : " bfloat16"));
      const ModelSpec spec = Experts(rng.Chance(0.5) ? "qwen2_moe" : "qwen3_moe", 12);
      const Batch batch = RowsWithAnswers(spec, rng, 9, 3, rng.Chance(0.5));
      TrainerOptions o = OptionsOf("grpo");
      o.recompute = rng.Chance(0.5);
      o.sum_each_micro_batch = true;
      ExpectSameBits(Train(spec, batch, o, {ranks, 1, dtype}), Train(spec, batch, o, {ranks, ranks, dtype}));
    }
  }
}

// It computes what the others ask of its experts all the same.
TEST(ExpertParallelTest, ARankWithoutRowsServesTheOthers) {
  Rng rng(12);
  const ModelSpec spec = Experts("qwen3_moe", 6);
  const Batch batch = RowsWithAnswers(spec, rng, 6, 3, false);
  for (const bool recompute : {false, true}) {
    TrainerOptions o = OptionsOf("grpo");
    o.recompute = recompute;
    ExpectSame(Train(spec, batch, o, {.ranks = 3, .idle = 1})[0],
               Train(spec, batch, o, {.ranks = 3, .experts = 3, .idle = 1}), 1e-4);
  }
}

TEST(ExpertParallelTest, BySocketsToo) {
  Rng rng(13);
  const ModelSpec spec = Experts("qwen2_moe", 4);
  const Batch batch = RowsWithAnswers(spec, rng, 5, 3, true);
  const TrainerOptions o = OptionsOf("grpo");
  ExpectSame(Train(spec, batch, o, {4})[0],
             Train(spec, batch, o, {.ranks = 4, .experts = 2, .by_memory = false}), 1e-4);
}

TEST(ExpertParallelTest, EachHasItsPartOfOptimizerAndGradients) {
  Rng rng(14);
  ModelSpec spec = Experts("qwen3_moe", 24);
  spec.moe.intermediate_size = 400;  // experts are nearly all of the model
  const Batch batch = RowsWithAnswers(spec, rng, 4, 2, false);
  const TrainerOptions o = OptionsOf("grpo");
  const Result whole = Train(spec, batch, o, {2})[0];
  for (const int ranks : {2, 4}) {
    for (const Result& r : Train(spec, batch, o, {ranks, ranks})) {
      EXPECT_NEAR(static_cast<double>(r.optimizer_bytes) * ranks / static_cast<double>(whole.optimizer_bytes),
                  1, 0.1);
      EXPECT_NEAR(static_cast<double>(r.gradient_bytes) * ranks / static_cast<double>(whole.gradient_bytes),
                  1, 0.1);
    }
  }
}

TEST(ExpertParallelTest, WhatCannotBeDividedIsRefusedWithNumbers) {
  const auto refusal = [](const ModelSpec& spec, TrainerOptions o, const Shard& shard = {}) {
    auto weights = std::move(Weights::Create(spec, DType::kFloat32)).value();
    o.part = {0, 3, model::Cut::kExperts};
    o.shard = shard;
    const auto created = Trainer::Create(*weights, o);
    return created.ok() ? std::string() : created.status().message();
  };
  const TrainerOptions o = OptionsOf("grpo");
  EXPECT_THAT(refusal(model::TinySpec(), o),
              ::testing::HasSubstr("train.mesh.ep: the model has no experts, which 3 ranks could divide"));
  EXPECT_THAT(refusal(Experts("qwen3_moe", 8), o),
              ::testing::HasSubstr("train.mesh.ep: each layer has 8 experts, which 3 ranks cannot divide; "
                                   "write a divisor of 8"));
  EXPECT_THAT(refusal(Experts("qwen3_moe", 6), o, {0, 2}), ::testing::HasSubstr("train.mesh.ep"));
  auto weights = std::move(Weights::Create(Experts("qwen3_moe", 6), DType::kFloat32)).value();
  TrainerOptions divided = o;
  divided.part = {0, 3, model::Cut::kExperts};
  auto trainer = std::move(Trainer::Create(*weights, divided)).value();
  Rng rng(7);
  EXPECT_EQ(trainer->Step(RowsWithAnswers(weights->spec(), rng, 1, 2, false)).status().code(),
            StatusCode::kFailedPrecondition);  // the other ranks are not there
}

}  // namespace
}  // namespace tidepool::train
