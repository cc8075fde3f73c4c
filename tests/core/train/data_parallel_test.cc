// Several ranks against one: the same update, whatever the lengths and however the rows are shared.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <thread>

#include "core/base/rng.h"
#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "core/model/decoder.h"
#include "core/train/trainer.h"
#include "tests/core/model/reference.h"
#include "tests/core/train/other_rank.h"
#include "tests/core/train/state_copy.h"

namespace tidepool::train {
namespace {

using model::DType;
using model::ModelSpec;
using model::Weights;

Batch UnequalBatch(const ModelSpec& spec, int64_t groups, int64_t samples) {
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
      r.versions.assign(r.response.size(), b.version);
      // One group is masked as a whole.
      for (size_t t = 0; t < r.response.size(); ++t) r.loss_mask.push_back(g != 1 && rng.Chance(0.8) ? 1 : 0);
      for (size_t t = 0; t < r.response.size(); ++t)
        r.logprobs.push_back(static_cast<float>(-1 - rng.Uniform()));
      b.rows.push_back(std::move(r));
    }
  }
  return b;
}

struct Result {
  std::vector<float> weights;
  std::vector<float> m, v;  // of what this rank has
  int64_t optimizer_bytes = 0;
  std::map<std::string, double> metrics;
  uint64_t digest = 0;
};

// `owner[group]`: the rank that computes it; ranks without a group take part all the same.
// `sharded`: each rank has its interval of the optimizer's state (train.zero: 1).
std::vector<Result> Train(const ModelSpec& spec, const Batch& batch, const TrainerOptions& options, int ranks,
                          const std::vector<int>& owner, bool sharded = false,
                          DType dtype = DType::kFloat32) {
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<Result> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      std::unique_ptr<comm::Collective> group;
      Batch mine = batch;
      if (ranks > 1) {
        auto made = comm::MakeGroup(
            {.rendezvous = rendezvous, .rank = rank, .size = ranks, .shared_folder = ::testing::TempDir()});
        ASSERT_TRUE(made.ok()) << made.status().message();
        group = std::move(*made);
        for (Row& r : mine.rows)
          if (owner[static_cast<size_t>(r.gid.value)] != rank) r = Elsewhere(r);
      }
      auto weights = std::move(Weights::Create(spec, dtype)).value();
      model::Randomize(*weights, 21, 0.2);
      TrainerOptions own = options;  // one thread uses a device
      own.device = model::AnyDevice();
      if (sharded) own.shard = {rank, ranks};
      auto trainer = std::move(Trainer::Create(*weights, own)).value();
      for (int64_t step = 1; step <= 3; ++step) {
        mine.step = StepNumber{step};
        const auto result = trainer->Step(mine, nullptr, group.get());
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        ASSERT_TRUE(result->finite);
        Result& r = results[static_cast<size_t>(rank)];
        r.metrics = result->metrics;
        r.digest = result->digest;
      }
      Result& r = results[static_cast<size_t>(rank)];
      r.m = PartOf<float>(trainer->State(), "m");
      r.v = PartOf<float>(trainer->State(), "v");
      r.optimizer_bytes = trainer->held().optimizer;
      if (dtype != DType::kFloat32) return;
      const auto* values = reinterpret_cast<const float*>(weights->bytes().data());
      r.weights.assign(values, values + weights->elements());
    });
  }
  for (auto& t : threads) t.join();
  return results;
}

TEST(DataParallelTest, FourRanksOrOneMakeTheSameUpdate) {
  const ModelSpec spec = model::TinySpec();
  const Batch batch = UnequalBatch(spec, 7, 4);
  // Losses of single tokens, of whole rows, and one that looks at the whole batch first.
  for (const char* algorithm : {"grpo", "gspo", "reinforce_pp", "kl_cov"}) {
    SCOPED_TRACE(algorithm);
    JobConfig job;
    job.job = RlJob{.algorithm = {.name = algorithm}, .environment = {}};
    auto options = OptionsFromJob(job);
    ASSERT_TRUE(options.ok()) << options.status().ToString();
    TrainerOptions o = std::move(*options);
    o.schedule.peak = 1e-3;
    o.micro_batch_tokens = 40;
    o.minibatches = 2;  // some rank has no row of one of them
    o.schedule = {};
    o.schedule.peak = 1e-3;
    o.temperature = 1;
    o.loss.policy.entropy_coef = 0.01;
    const Result one = Train(spec, batch, o, 1, {})[0];
    const std::vector<Result> four = Train(spec, batch, o, 4, {0, 0, 2, 0, 2, 1, 2});  // rank 3 has nothing
    for (const Result& r : four) {
      EXPECT_EQ(r.digest, four[0].digest);
      double worst = 0;
      for (size_t i = 0; i < one.weights.size(); ++i)
        worst = std::max(worst, std::fabs(double{r.weights[i]} - one.weights[i]));
      EXPECT_LT(worst, 2e-5);
      for (const char* name : {"actor/pg_loss", "actor/entropy", "actor/grad_norm", "actor/ppo_kl",
                               "critic/score/mean", "critic/advantages/mean", "actor/pg_clipfrac"}) {
        EXPECT_NEAR(r.metrics.at(name), one.metrics.at(name), 1e-4 * (1 + std::fabs(one.metrics.at(name))))
            << name;
      }
    }
  }
}

TEST(DataParallelTest, TheSameRanksGiveTheSameBits) {
  const ModelSpec spec = model::TinySpec();
  const Batch batch = UnequalBatch(spec, 5, 3);
  auto weights = std::move(Weights::Create(spec, DType::kFloat32)).value();
  TrainerOptions o;
  o.schedule.peak = 1e-3;
  const std::vector<int> owner{0, 1, 2, 1, 0};
  EXPECT_EQ(Train(spec, batch, o, 3, owner)[0].digest, Train(spec, batch, o, 3, owner)[2].digest);
}

// Whether each rank has the whole optimizer or its interval of it: weights and moments have the same bits,
// and the intervals behind each other are the whole.
TEST(DataParallelTest, AShardedOptimizerMakesTheSameUpdateToTheBit) {
  ModelSpec spec = model::TinySpec();
  const Batch batch = UnequalBatch(spec, 5, 3);
  TrainerOptions o;
  o.schedule.peak = 1e-3;
  o.optimizer.weight_decay = 0.1;
  o.minibatches = 2;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int ranks : {2, 3, 4}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << static_cast<int>(dtype));
      const std::vector<int> owner{0, 1, 1, ranks - 1, 0};
      const std::vector<Result> whole = Train(spec, batch, o, ranks, owner, false, dtype);
      const std::vector<Result> parts = Train(spec, batch, o, ranks, owner, true, dtype);
      std::vector<float> m, v;
      int64_t bytes = 0;
      for (const Result& part : parts) {
        EXPECT_EQ(part.digest, whole[0].digest);
        EXPECT_EQ(part.metrics.at("actor/grad_norm"), whole[0].metrics.at("actor/grad_norm"));
        m.insert(m.end(), part.m.begin(), part.m.end());
        v.insert(v.end(), part.v.begin(), part.v.end());
        bytes += part.optimizer_bytes;
        EXPECT_NEAR(static_cast<double>(part.optimizer_bytes) * ranks,
                    static_cast<double>(whole[0].optimizer_bytes),
                    0.01 * static_cast<double>(bytes) + 640.0 * ranks);
      }
      EXPECT_EQ(m, whole[0].m);
      EXPECT_EQ(v, whole[0].v);
      EXPECT_EQ(bytes, whole[0].optimizer_bytes);
    }
  }
}

TEST(DataParallelTest, AShardIsOfUseInItsOwnGroupAlone) {
  const ModelSpec spec = model::TinySpec();
  auto weights = std::move(Weights::Create(spec, DType::kFloat32)).value();
  TrainerOptions o;
  o.device = model::AnyDevice();
  o.shard = {1, 3};
  auto trainer = std::move(Trainer::Create(*weights, o)).value();
  const auto step = trainer->Step(UnequalBatch(spec, 2, 2));
  EXPECT_EQ(step.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(step.status().message(),
            "trainer: it has the optimizer's state of rank 1 of 3, and is rank 0 of 1");
}

// Of whatever rank they are: all refuse the batch, name the same rows with the same words, and change
// nothing.
TEST(DataParallelTest, AllRanksNameTheSameBadRows) {
  const ModelSpec spec = model::TinySpec();
  Batch batch = UnequalBatch(spec, 6, 2);
  const std::vector<int> owner{0, 1, 2, 0, 1, 2};
  batch.rows[2].response[0] = static_cast<int32_t>(spec.vocab_size);  // group 1, of rank 1
  batch.rows[5].logprobs.pop_back();                                  // group 2, of rank 2
  batch.rows[6].reward = NAN;                                         // group 3: every rank sees it
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<std::vector<BadRow>> named(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      auto group = comm::MakeGroup(
          {.rendezvous = rendezvous, .rank = rank, .size = 3, .shared_folder = ::testing::TempDir()});
      ASSERT_TRUE(group.ok()) << group.status().message();
      Batch mine = batch;
      for (Row& r : mine.rows)
        if (owner[static_cast<size_t>(r.gid.value)] != rank) r = Elsewhere(r);
      auto weights = std::move(Weights::Create(spec, DType::kFloat32)).value();
      model::Randomize(*weights, 21, 0.2);
      const uint64_t before = weights->Digest();
      auto trainer = std::move(Trainer::Create(*weights, {.device = model::AnyDevice()})).value();
      std::vector<BadRow>& bad = named[static_cast<size_t>(rank)];
      if (rank == 0) bad.push_back({batch.rows[0].tid, "its bytes cannot be read"});  // so its caller says
      const auto result = trainer->Step(mine, nullptr, group->get(), &bad);
      EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(result.status().message().find("row 0.0.0: its bytes cannot be read; and 3 more rows"),
                std::string::npos)
          << result.status().message();
      EXPECT_EQ(weights->Digest(), before);
    });
  }
  for (auto& t : threads) t.join();
  for (const std::vector<BadRow>& bad : named) {
    ASSERT_EQ(bad.size(), 4u);
    EXPECT_EQ(bad[0].tid, batch.rows[0].tid);
    EXPECT_EQ(bad[1].tid, batch.rows[2].tid);
    EXPECT_NE(bad[1].why.find("outside the model's vocabulary"), std::string::npos) << bad[1].why;
    EXPECT_EQ(bad[2].tid, batch.rows[5].tid);
    EXPECT_NE(bad[2].why.find("log-probs for"), std::string::npos) << bad[2].why;
    EXPECT_EQ(bad[3].tid, batch.rows[6].tid);
    EXPECT_EQ(bad[3].why, "the reward is not finite");
  }
}

TEST(DataParallelTest, AShareWithoutAGroupIsRefused) {
  const ModelSpec spec = model::TinySpec();
  auto weights = std::move(Weights::Create(spec, DType::kFloat32)).value();
  model::Randomize(*weights, 21, 0.2);
  auto trainer = std::move(Trainer::Create(*weights, {.device = model::AnyDevice()})).value();
  Batch batch = UnequalBatch(spec, 2, 2);
  batch.rows.back() = Elsewhere(batch.rows.back());
  EXPECT_EQ(trainer->Step(batch).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::train
