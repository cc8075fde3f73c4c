// What slots that train together hold, each its part, against what the memory plan says of them
// (workers/device/memory_plan.h). Ranks are threads. Activations are counted in whole chunks that are mostly
// never written: what processes take of them is in tests/runs/plan_test.py.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "core/config/load.h"
#include "core/engine/engine.h"
#include "core/engine/follower.h"
#include "core/engine/ranks.h"
#include "core/model/cut.h"
#include "core/model/layout.h"
#include "core/model/weights.h"
#include "core/train/part_ranks.h"
#include "core/train/shared_weights.h"
#include "core/train/trainer.h"
#include "tests/core/device/test_device.h"
#include "tests/core/model/reference.h"
#include "tests/core/train/other_rank.h"
#include "workers/device/memory_plan.h"

namespace tidepool::workers {
namespace {

struct Held {
  model::MemoryUse use;
  double most_gradients = 0;  // where they are shared
  double weights = 0;         // the same
};

// One step of each rank on rows that fill its micro-batch.
std::vector<Held> HeldBy(const JobConfig& c, const model::ModelSpec& spec) {
  const auto tensor = static_cast<int>(c.train.mesh.tp);
  const int world = static_cast<int>(c.scheduler.actor_slots), data = world / tensor;
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<Held> held(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      const int d = rank / tensor, t = rank % tensor;
      const auto group = [&](const std::string& name, int place,
                             int size) -> std::unique_ptr<comm::Collective> {
        if (size == 1) return nullptr;
        auto made = comm::MakeGroup({.rendezvous = rendezvous,
                                     .name = name,
                                     .rank = place,
                                     .size = size,
                                     .shared_folder = c.train.zero == 3 ? ::testing::TempDir() : ""});
        EXPECT_TRUE(made.ok()) << made.status().message();
        return std::move(made).value();
      };
      const auto ep = static_cast<int>(c.train.mesh.ep);
      const auto of_tensor = group("tensor " + std::to_string(d), t, tensor),
                 of_data = group("data " + std::to_string(t), d, data),
                 of_experts = group("experts " + std::to_string(rank / ep), rank % ep, ep),
                 of_same = group("same " + std::to_string(rank % ep), rank / ep, ep > 1 ? world / ep : 1);
      Rng rng(7);
      train::Batch batch{.step = StepNumber{1}, .version = Version{0, 0}};
      const int64_t length = c.rollout.max_new_tokens, rows = c.train.micro_batch_tokens / (length + 4);
      for (int64_t i = 0; i < rows * data; ++i) {
        train::Row row;
        row.tid = {i / 2, 0, static_cast<int32_t>(i % 2)};
        row.gid = GroupId{i / 2};
        row.prompt = model::RandomIds(rng, 4, spec.vocab_size);
        row.response = model::RandomIds(rng, length, spec.vocab_size);
        row.reward = rng.Normal();
        row.versions.assign(row.response.size(), batch.version);
        row.loss_mask.assign(row.response.size(), 1);
        row.logprobs.assign(row.response.size(), -3.0F);
        batch.rows.push_back(row.gid.value % data == d ? std::move(row) : train::Elsewhere(row));
      }
      std::unique_ptr<train::SharedWeights> shared;
      if (c.train.zero == 3)
        shared =
            std::move(train::SharedWeights::Create(model::LayoutElements(spec), model::Bytes(c.model.dtype)))
                .value();
      const auto weights =
          std::move(model::Weights::Create(spec, c.model.dtype,
                                           shared != nullptr ? shared->arena() : std::span<std::byte>()))
              .value();
      model::Randomize(*weights, 21, 0.02);
      auto options = train::OptionsFromJob(c);
      ASSERT_TRUE(options.ok()) << options.status().message();
      options->device = device::TestDevice();
      options->part = ep > 1 ? model::Part{rank % ep, ep, model::Cut::kExperts} : model::Part{t, tensor};
      if (c.train.zero > 0) options->shard = {d, data};
      options->share_gradients = c.train.zero >= 2;
      auto trainer = train::Trainer::Create(*weights, *options);
      ASSERT_TRUE(trainer.ok()) << trainer.status().message();
      (*trainer)->Join(ep > 1 ? of_experts.get() : of_tensor.get(), of_same.get());
      if (shared != nullptr) {
        const Status together = shared->Share(*of_data, ::testing::TempDir());
        ASSERT_TRUE(together.ok()) << together.message();
      }
      const auto result = (*trainer)->Step(batch, nullptr, of_data.get());
      ASSERT_TRUE(result.ok()) << result.status().message();
      Held& mine = held[static_cast<size_t>(rank)];
      mine.use = (*trainer)->held();
      if (const auto most = result->metrics.find("memory/gradients_bytes"); most != result->metrics.end())
        mine.most_gradients = most->second;
      if (const auto most = result->metrics.find("memory/weights_bytes"); most != result->metrics.end())
        mine.weights = most->second;
    });
  }
  for (std::thread& r : ranks) r.join();
  return held;
}

TEST(PlannedPartsTest, SlotsThatShareHoldWhatThePlanSays) {
  const auto loaded = config::LoadConfig(std::string(TIDEPOOL_SOURCE_DIR) + "/configs/test/rl_split.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  struct Way {
    int64_t slots, tp, zero;
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Way& way : {Way{1, 1, 0}, Way{2, 1, 0}, Way{2, 1, 1}, Way{2, 1, 2}, Way{3, 1, 2}, Way{2, 1, 3},
                           Way{3, 1, 3}, Way{2, 2, 0}, Way{4, 2, 1}}) {
      SCOPED_TRACE(testing::Message()
                   << way.slots << " slots, tp " << way.tp << ", zero " << way.zero << ", " << Name(dtype));
      JobConfig c = loaded->config;
      c.model.dtype = dtype;
      ModelInit& m = *c.model.init;
      m.hidden_size = 96, m.intermediate_size = 256, m.layers = 6, m.heads = 4, m.kv_heads = 2,
      m.head_size = 24;
      c.cluster.slots = way.slots + 1;
      c.scheduler.actor_slots = way.slots;
      c.train.mesh.tp = way.tp;
      c.train.zero = way.zero;
      c.train.micro_batch_tokens = 256;
      const auto plan = PlanMemory(c);
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      const std::vector<Held> held = HeldBy(c, plan->model);
      int64_t optimizer = 0;
      for (size_t rank = 0; rank < held.size(); ++rank) {
        const model::MemoryUse& planned = plan->processes[rank].actor;
        const model::MemoryUse& use = held[rank].use;
        // The plan is of the rank with the largest part; what remains of a division is small.
        EXPECT_LE(use.optimizer, planned.optimizer) << rank;
        EXPECT_GE(use.optimizer, planned.optimizer * 9 / 10) << rank;
        optimizer = std::max(optimizer, use.optimizer);
        if (way.zero < 2) {
          EXPECT_LE(use.gradients, planned.gradients) << rank;
          EXPECT_GE(use.gradients, planned.gradients * 9 / 10) << rank;
        } else {
          EXPECT_LE(held[rank].most_gradients, static_cast<double>(planned.gradients)) << rank;
          EXPECT_GE(held[rank].most_gradients, 0.8 * static_cast<double>(planned.gradients)) << rank;
        }
        if (way.zero == 3) {
          EXPECT_LE(held[rank].weights, static_cast<double>(planned.weights)) << rank;
          EXPECT_GE(held[rank].weights, 0.9 * static_cast<double>(planned.weights)) << rank;
        }
      }
      EXPECT_EQ(optimizer, plan->processes[0].actor.optimizer) << "the largest part is what is planned";
    }
  }
}

// Experts that are divided: a part of gradients and optimizer, and activations of the rows that come.
TEST(PlannedPartsTest, SlotsThatDivideExpertsHoldWhatThePlanSays) {
  const auto loaded = config::LoadConfig(std::string(TIDEPOOL_SOURCE_DIR) + "/configs/test/rl_split.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  model::ModelSpec spec = model::TinySpec("qwen3_moe");
  spec.vocab_size = 200;
  spec.hidden_size = 96, spec.heads = 4, spec.kv_heads = 2, spec.head_size = 24, spec.layers = 4;
  spec.intermediate_size = 128, spec.moe.intermediate_size = 96;
  spec.moe.experts = 12;
  spec.max_position = 256;
  const std::string folder = ::testing::TempDir() + "planned_experts";
  {
    const auto weights = std::move(model::Weights::Create(spec, DType::kFloat32)).value();
    model::Randomize(*weights, 3, 0.02);
    std::filesystem::create_directories(folder);
    const Status saved = model::SaveHuggingFace(*weights, folder);
    ASSERT_TRUE(saved.ok()) << saved.message();
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [slots, ep] : {std::pair(2, 1), {2, 2}, {4, 4}, {4, 2}}) {
      SCOPED_TRACE(testing::Message() << slots << " slots, ep " << ep << ", " << Name(dtype));
      JobConfig c = loaded->config;
      c.model.init.reset();
      c.model.path = folder;
      c.model.dtype = dtype;
      c.cluster.slots = slots + 1;
      c.scheduler.actor_slots = slots;
      c.train.mesh.ep = ep;
      c.train.micro_batch_tokens = 512;
      c.rollout.max_new_tokens = 60;
      const auto plan = PlanMemory(c);
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      int64_t written = plan->weights_bytes;  // by a checkpoint: the optimizer of each part
      const std::vector<Held> all = HeldBy(c, plan->model);
      for (size_t rank = 0; rank < static_cast<size_t>(ep); ++rank) written += all[rank].use.optimizer;
      EXPECT_LE(written, plan->checkpoint_bytes);
      EXPECT_GE(written, plan->checkpoint_bytes * 9 / 10);
      for (const Held& held : all) {
        const model::MemoryUse& planned = plan->processes[0].actor;
        EXPECT_LE(held.use.optimizer, planned.optimizer);
        EXPECT_GE(held.use.optimizer, planned.optimizer * 9 / 10);
        EXPECT_LE(held.use.gradients, planned.gradients);
        EXPECT_GE(held.use.gradients, planned.gradients * 9 / 10);
      }
    }
  }
}

// Of an engine of several slots each has its part of the weights, and the keys and values of its heads.
TEST(PlannedPartsTest, SlotsOfAnEngineHoldWhatThePlanSays) {
  const auto loaded = config::LoadConfig(std::string(TIDEPOOL_SOURCE_DIR) + "/configs/test/rl_split.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  JobConfig c = loaded->config;
  ModelInit& m = *c.model.init;
  m.hidden_size = 96, m.intermediate_size = 256, m.layers = 6, m.heads = 4, m.kv_heads = 2, m.head_size = 24;
  c.cluster.slots = 3;
  c.rollout.kv_cache_tokens = 4096;
  const auto whole = PlanMemory(c);
  c.rollout.mesh.tp = 2;
  const auto plan = PlanMemory(c);
  ASSERT_TRUE(whole.ok() && plan.ok());
  const model::MemoryUse &planned = plan->processes[1].rollout, &before = whole->processes[1].rollout;
  EXPECT_EQ(planned.kv, before.kv / 2);
  EXPECT_LT(planned.weights, before.weights * 11 / 20);
  EXPECT_GT(plan->shared_memory_bytes(), whole->shared_memory_bytes());
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto group = comm::MakeGroup(
          {.rendezvous = rendezvous, .rank = rank, .size = 2, .shared_folder = ::testing::TempDir()});
      ASSERT_TRUE(group.ok()) << group.status().message();
      train::PartRanks peers(**group);
      engine::Ranks of_engine(**group, peers);
      auto weights = model::Weights::Create(plan->model, c.model.dtype, {}, of_engine.part());
      ASSERT_TRUE(weights.ok()) << weights.status().message();
      EXPECT_LE((*weights)->size(), planned.weights);
      EXPECT_GE((*weights)->size(), planned.weights * 9 / 10);
      engine::EngineOptions options;
      options.block_tokens = c.rollout.block_tokens;
      options.kv_cache_tokens = plan->kv_cache_tokens;
      options.ranks = &of_engine;
      model::MemoryUse held;
      if (rank == 0)
        held = (*engine::Engine::Create(**weights, options))->held();
      else
        held = (*engine::Follower::Create(**weights, options))->held();
      EXPECT_EQ(held.kv, planned.kv);
    });
  }
  for (std::thread& r : ranks) r.join();
}

}  // namespace
}  // namespace tidepool::workers
