// Several ranks against one: the same update, whatever the lengths and however the rows are shared.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/rng.h"
#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "core/model/decoder.h"
#include "core/model/layout.h"
#include "core/model/memory_use.h"
#include "core/sharding/intervals.h"
#include "core/train/shared_weights.h"
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
// zero: what ranks share (train.zero): 1: the optimizer's state, 2: gradients, too, 3: and weights.
std::vector<Result> Train(const ModelSpec& spec, const Batch& batch, const TrainerOptions& options, int ranks,
                          const std::vector<int>& owner, int zero = 0, DType dtype = DType::kFloat32) {
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
      std::unique_ptr<SharedWeights> shared;
      if (zero == 3)
        shared = std::move(SharedWeights::Create(model::LayoutElements(spec), model::Bytes(dtype))).value();
      auto weights =
          std::move(Weights::Create(spec, dtype, shared ? shared->arena() : std::span<std::byte>())).value();
      model::Randomize(*weights, 21, 0.2);
      TrainerOptions own = options;  // one thread uses a device
      own.device = model::AnyDevice();
      if (zero > 0) own.shard = {rank, ranks};
      own.share_gradients = zero >= 2;
      own.share_weights = zero == 3;
      auto trainer = std::move(Trainer::Create(*weights, own)).value();
      if (shared && group != nullptr) {
        const Status together = shared->Share(*group, ::testing::TempDir());
        ASSERT_TRUE(together.ok()) << together.message();
        EXPECT_EQ(shared->own_bytes(), 0);
      }
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
      for (size_t i = 0; i < one.weights.size(); ++i) ASSERT_NEAR(r.weights[i], one.weights[i], 2e-5) << i;
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

// Whether each rank has the whole optimizer or its interval of it, and of gradients: weights and moments have
// the same bits, and the intervals behind each other are the whole.
void ExpectTheSame(const std::vector<Result>& parts, const std::vector<Result>& whole) {
  std::vector<float> m, v;
  int64_t bytes = 0;
  for (const Result& part : parts) {
    EXPECT_EQ(part.digest, whole[0].digest);
    EXPECT_EQ(part.metrics.at("actor/grad_norm"), whole[0].metrics.at("actor/grad_norm"));
    m.insert(m.end(), part.m.begin(), part.m.end());
    v.insert(v.end(), part.v.begin(), part.v.end());
    bytes += part.optimizer_bytes;
    EXPECT_NEAR(static_cast<double>(part.optimizer_bytes) * static_cast<double>(parts.size()),
                static_cast<double>(whole[0].optimizer_bytes),
                0.01 * static_cast<double>(bytes) + 640.0 * static_cast<double>(parts.size()));
  }
  EXPECT_EQ(m, whole[0].m);
  EXPECT_EQ(v, whole[0].v);
  EXPECT_EQ(bytes, whole[0].optimizer_bytes);
}

// Values of train.zero that this device has.
std::vector<int> Sharing() {
  return model::AnyDevice()->host_memory() ? std::vector<int>{1, 2, 3} : std::vector<int>{1, 2};
}

// A rank has one micro-batch of an update, or none.
TEST(DataParallelTest, AShardedOptimizerMakesTheSameUpdateToTheBit) {
  const ModelSpec spec = model::TinySpec();
  const Batch batch = UnequalBatch(spec, 5, 3);
  TrainerOptions o;
  o.schedule.peak = 1e-3;
  o.optimizer.weight_decay = 0.1;
  o.minibatches = 2;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int ranks : {2, 3, 4}) {
      const std::vector<int> owner{0, 1, 1, ranks - 1, 0};
      const std::vector<Result> whole = Train(spec, batch, o, ranks, owner, 0, dtype);
      for (const int zero : Sharing()) {
        SCOPED_TRACE(::testing::Message()
                     << ranks << " ranks, " << static_cast<int>(dtype) << ", zero " << zero);
        ExpectTheSame(Train(spec, batch, o, ranks, owner, zero, dtype), whole);
      }
    }
  }
}

// One rank has most of them, another one nothing: sums after each micro-batch are the same whoever keeps
// what.
TEST(DataParallelTest, SharedGradientsOfAnyNumberOfMicroBatchesAreTheSameToTheBit) {
  for (const std::string family : {"llama", "qwen3", "qwen2_moe", "qwen3_moe"}) {
    const bool recompute = family.starts_with("qwen3");  // and in bfloat16
    ModelSpec spec = model::TinySpec(family);
    if (family == "qwen3_moe") spec.tie_embeddings = false;
    const Batch batch = UnequalBatch(spec, 5, 3);
    TrainerOptions o;
    o.schedule.peak = 1e-3;
    o.router_aux_coef = recompute ? 0.01 : 0;  // of a micro-batch, so it depends on how rows are cut
    o.recompute = recompute;
    o.micro_batch_tokens = 40;
    o.minibatches = 2;
    o.sum_each_micro_batch = true;
    const DType dtype = recompute ? DType::kBFloat16 : DType::kFloat32;
    const Result alone = Train(spec, batch, o, 1, {}, 0, dtype)[0];
    EXPECT_EQ(Train(spec, batch, o, 1, {}, 2, dtype)[0].digest, alone.digest) << family;
    for (const int ranks : {2, 3, 4}) {
      const std::vector<int> owner{0, 1, 1, ranks == 4 ? 1 : ranks - 1, 1};  // of four the last has nothing
      const std::vector<Result> whole = Train(spec, batch, o, ranks, owner, 0, dtype);
      for (const int zero : Sharing()) {
        SCOPED_TRACE(::testing::Message() << family << ", " << ranks << " ranks, zero " << zero);
        const std::vector<Result> parts = Train(spec, batch, o, ranks, owner, zero, dtype);
        ExpectTheSame(parts, whole);
        for (size_t i = 0; dtype == DType::kFloat32 && i < alone.weights.size(); ++i)
          ASSERT_NEAR(parts[0].weights[i], alone.weights[i], 5e-5) << i;  // to rounding
        if (zero < 2 || !model::AnyDevice()->host_memory()) continue;
        for (size_t rank = 0; rank < parts.size(); ++rank) {
          const int64_t owned =
              sharding::Owned(model::LayoutElements(spec), {static_cast<int64_t>(rank), ranks}).size();
          const double plan = static_cast<double>(model::SharedGradientBytes(spec, owned)),
                       most = parts[rank].metrics.at("memory/gradients_bytes");
          EXPECT_LE(most, plan) << "rank " << rank;
          if (zero == 3) {
            EXPECT_LE(
                parts[rank].metrics.at("memory/weights_bytes"),
                static_cast<double>(owned * model::Bytes(dtype) + model::LaidOutPartBytes(spec, dtype)));
          }
          if (rank == 1) {  // it has rows in both updates
            EXPECT_GE(most, 0.9 * plan);
          }
        }
      }
    }
  }
}

// A step that one rank is told to stop ends on all; then it is made as if nothing had been.
TEST(DataParallelTest, AStepThatIsStoppedLeavesNothingOfItsGradients) {
  const ModelSpec spec = model::TinySpec();
  const Batch batch = UnequalBatch(spec, 5, 3);
  TrainerOptions o;
  o.schedule.peak = 1e-3;
  o.micro_batch_tokens = 40;
  o.sum_each_micro_batch = true;
  const std::vector<int> owner{0, 1, 2, 1, 0};
  std::vector<uint64_t> digests(3);
  for (const int stopped : {-1, 1}) {  // -1: none
    const auto first = std::make_shared<comm::RendezvousTable>(),
               second = std::make_shared<comm::RendezvousTable>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        at::set_num_threads(1);
        Batch mine = batch;
        for (Row& r : mine.rows)
          if (owner[static_cast<size_t>(r.gid.value)] != rank) r = Elsewhere(r);
        auto weights = std::move(Weights::Create(spec, DType::kFloat32)).value();
        model::Randomize(*weights, 21, 0.2);
        TrainerOptions own = o;
        own.device = model::AnyDevice();
        own.shard = {rank, 3};
        own.share_gradients = true;
        auto trainer = std::move(Trainer::Create(*weights, own)).value();
        if (stopped >= 0) {
          auto group = comm::MakeGroup({.rendezvous = first, .rank = rank, .size = 3});
          ASSERT_TRUE(group.ok()) << group.status().message();
          const auto result = trainer->Step(
              mine, [&](const StepProgress& p) { return rank != stopped || p.done < 1; }, group->get());
          group->reset();  // the others see it
          EXPECT_EQ(result.status().code(), rank == stopped ? StatusCode::kAborted : StatusCode::kUnavailable)
              << result.status().message();
          if (rank != stopped) {
            EXPECT_NE(result.status().message().find("op=reduce_scatter tag=gradients of "),
                      std::string::npos)
                << result.status().message();
          }
        }
        auto group = comm::MakeGroup({.rendezvous = second, .rank = rank, .size = 3});
        ASSERT_TRUE(group.ok()) << group.status().message();
        const auto result = trainer->Step(mine, nullptr, group->get());
        ASSERT_TRUE(result.ok()) << result.status().message();
        if (stopped < 0) digests[static_cast<size_t>(rank)] = result->digest;
        EXPECT_EQ(result->digest, digests[static_cast<size_t>(rank)]);
      });
    }
    for (auto& t : threads) t.join();
  }
}

// A rank that hangs in its own work is named by the others, with the sum that they wait for.
TEST(DataParallelTest, ARankThatDoesNotComeToASumIsNamed) {
  const ModelSpec spec = model::TinySpec();
  const Batch batch = UnequalBatch(spec, 3, 2);
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<std::string> said(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      auto group = comm::MakeGroup({.rendezvous = rendezvous, .rank = rank, .size = 3, .timeout_s = 1.5});
      ASSERT_TRUE(group.ok()) << group.status().message();
      Batch mine = batch;
      for (Row& r : mine.rows)
        if (r.gid.value != rank) r = Elsewhere(r);
      auto weights = std::move(Weights::Create(spec, DType::kFloat32)).value();
      model::Randomize(*weights, 21, 0.2);
      auto trainer = std::move(Trainer::Create(*weights, {.device = model::AnyDevice(),
                                                          .shard = {rank, 3},
                                                          .share_gradients = true}))
                         .value();
      const auto result = trainer->Step(
          mine,
          [&](const StepProgress&) {
            if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(4));
            return true;
          },
          group->get());
      said[static_cast<size_t>(rank)] = result.status().message();
    });
  }
  for (auto& t : threads) t.join();
  for (const int rank : {0, 2}) {
    EXPECT_THAT(said[static_cast<size_t>(rank)],
                ::testing::ContainsRegex("op=reduce_scatter tag=gradients of .* seq=[0-9]+ rank=" +
                                         std::to_string(rank) + "/3 failed after .* s, waiting for rank 1"));
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
