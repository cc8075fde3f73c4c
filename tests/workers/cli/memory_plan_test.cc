#include "workers/device/memory_plan.h"

#include <gtest/gtest.h>

#include "core/config/load.h"
#include "core/cuda/model_check.h"
#include "core/device/cpu/kernels.h"
#include "core/model/graph_rows.h"
#include "core/model/memory_use.h"
#include "core/policy/memory_use.h"
#include "core/storage/disk_use.h"
#include "tests/workers/cli/runner.h"
#include "workers/cli/plan_text.h"
#include "workers/controller/host_memory.h"
#include "workers/device/disk_plan.h"
#include "workers/device/file_plan.h"
#include "workers/device/memory_proof.h"

namespace tidepool::workers {
namespace {

// config.json of SmolLM2-135M-Instruct, the keys that sizes come from.
constexpr const char* kSmolLm =
    R"({"model_type":"llama","vocab_size":49152,"hidden_size":576,"intermediate_size":1536,
  "num_hidden_layers":30,"num_attention_heads":9,"num_key_value_heads":3,"max_position_embeddings":8192,"tie_word_embeddings":true})";

TEST(MemoryPlanTest, CountsTheParametersOfAKnownModel) {
  const ScratchFolder scratch;
  scratch.Write("m/config.json", kSmolLm);
  ModelConfig model;
  model.path = "m";
  const auto sizes = SpecOf(model);
  ASSERT_TRUE(sizes.ok()) << sizes.status().ToString();
  EXPECT_EQ(model::ParameterCount(*sizes), 134'515'008);  // as published
  EXPECT_EQ(model::WeightBytes(*sizes, model::DType::kBFloat16) % 128, 0);
  EXPECT_EQ(sizes->head_size, 64);
}

TEST(MemoryPlanTest, WhatThisHostHasTooLittleMemoryForIsRefusedWithWhatMakesItSmaller) {
  const ScratchFolder scratch;
  scratch.Write("m/config.json", kSmolLm);
  config::LoadedConfig loaded;
  JobConfig& c = loaded.config;
  c.model = {.path = "m", .dtype = model::DType::kBFloat16};
  c.rollout.kv_cache_tokens = 20'000'000;
  c.scheduler.placement = PlacementKind::kColocated;
  const auto plan = PlanMemory(c);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  int64_t least = 0;
  for (const ProcessMemory& p : plan->processes) least += p.roles == "rollout and actor" ? p.least() : 0;
  EXPECT_EQ(CheckMemory(loaded, least), OkStatus());
  EXPECT_EQ(CheckMemory(loaded, 0), OkStatus()) << "nobody knows what the machine has";
  const Status refused = CheckMemory(loaded, least - 1);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find(BytesText(least)), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("device-0: kv_cache "), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("; lower rollout.kv_cache_tokens"), std::string::npos)
      << refused.message();
  c.cluster.launch_workers = false;
  EXPECT_EQ(CheckMemory(loaded, least - 1), OkStatus()) << "the workers are elsewhere";
  c.cluster.launch_workers = true;
  c.cluster.slots = 2;
  c.scheduler.placement = PlacementKind::kSplit;
  EXPECT_EQ(CheckMemory(loaded, least - 1), OkStatus()) << "keys and values may never be filled";
  EXPECT_EQ(CheckMemory(loaded, 100 << 20).code(), StatusCode::kFailedPrecondition)
      << "a state that trains is";
}

TEST(MemoryPlanTest, NamesWhatIsWrongInConfigJson) {
  const ScratchFolder scratch;
  ModelConfig model;
  model.path = "m";
  EXPECT_EQ(SpecOf(model).status().code(), StatusCode::kNotFound);
  scratch.Write("m/config.json", R"({"vocab_size": 100})");
  EXPECT_NE(SpecOf(model).status().message().find("model_type"), std::string::npos);
  scratch.Write("m/config.json", R"({"model_type": "llama", "vocab_size": -4})");
  EXPECT_NE(SpecOf(model).status().message().find("vocab_size"), std::string::npos);
  scratch.Write("m/config.json", "[");
  EXPECT_EQ(SpecOf(model).status().code(), StatusCode::kInvalidArgument);
}

// What the ranks of a shared optimizer hold (core/sharding) is what the plan says of each.
TEST(MemoryPlanTest, SlotsThatTrainShareTheOptimizerAndGradients) {
  const ScratchFolder scratch;
  scratch.Write("m/config.json", kSmolLm);
  JobConfig c;
  c.model = {.path = "m", .dtype = model::DType::kBFloat16};
  c.scheduler.placement = PlacementKind::kSplit;
  c.cluster.slots = 4;
  c.scheduler.actor_slots = 3;
  const auto whole = PlanMemory(c);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  c.train.zero = 1;
  const auto shared = PlanMemory(c);
  ASSERT_TRUE(shared.ok());
  for (size_t slot = 0; slot < 3; ++slot) {
    const auto all = static_cast<double>(whole->processes[slot].actor.optimizer);
    EXPECT_NEAR(static_cast<double>(shared->processes[slot].actor.optimizer), all / 3, all / 300);
    EXPECT_EQ(shared->processes[slot].actor.gradients, whole->processes[slot].actor.gradients);
  }
  EXPECT_EQ(shared->checkpoint_bytes, whole->checkpoint_bytes);
  // Of gradients: a third, two blocks, and the embedding, which is the head.
  c.train.zero = 2;
  const auto gradients = PlanMemory(c);
  ASSERT_TRUE(gradients.ok());
  const ProcessMemory& slot = gradients->processes[0];
  EXPECT_EQ(slot.actor.optimizer, shared->processes[0].actor.optimizer);
  const auto all = static_cast<double>(whole->processes[0].actor.gradients);
  const int64_t d = 576, embedding = 49152 * d, block = 2 * d + (9 + 6) * 64 * d + d * d + 3 * 1536 * d;
  EXPECT_NEAR(static_cast<double>(slot.actor.gradients),
              all / 3 + 4.0 * static_cast<double>(embedding + 2 * block), all / 300);
  EXPECT_LT(static_cast<double>(slot.actor.gradients), 0.65 * all);
  // Of weights a third, and the largest part laid out.
  c.train.zero = 3;
  const auto weights = PlanMemory(c);
  ASSERT_TRUE(weights.ok());
  for (size_t i = 0; i < 3; ++i) {
    const ProcessMemory& trains = weights->processes[i];
    const auto planned = static_cast<double>(std::max(trains.rollout.weights, trains.actor.weights)),
               third = static_cast<double>(weights->weights_bytes) / 3;
    EXPECT_NEAR(planned, third + 2.0 * embedding, third / 100);
    EXPECT_EQ(trains.total() + slot.actor.weights - trains.actor.weights, gradients->processes[i].total());
  }
  EXPECT_EQ(weights->processes[3].total(), gradients->processes[3].total()) << "it generates";
  EXPECT_EQ(weights->shared_memory_bytes(), gradients->shared_memory_bytes()) << "they are counted once";
  EXPECT_EQ(weights->dev_shm_bytes(), gradients->dev_shm_bytes() + weights->weights_bytes)
      << "but they lie there";
  c.train.zero = 2;
  // With deterministic: true whole ones keep sums of earlier micro-batches beside them.
  c.deterministic = true;
  EXPECT_EQ(PlanMemory(c)->processes[0].actor.gradients, slot.actor.gradients);
  c.train.zero = 0;
  EXPECT_NEAR(static_cast<double>(PlanMemory(c)->processes[0].actor.gradients), all * 4 / 3, all / 300);
  c.scheduler.placement = PlacementKind::kColocated;
  c.cluster.slots = 1;
  for (const int64_t zero : {0, 1, 2, 3}) {
    c.train.zero = zero;
    EXPECT_EQ(PlanMemory(c)->processes[0].actor.optimizer, whole->processes[0].actor.optimizer);
    EXPECT_EQ(PlanMemory(c)->processes[0].actor.gradients, whole->processes[0].actor.gradients);
  }
}

TEST(MemoryPlanTest, CountsExperts) {
  const ScratchFolder scratch;
  // Qwen3-30B-A3B: 30.5 billion parameters as published.
  scratch.Write(
      "m/config.json",
      R"({"model_type":"qwen3_moe","vocab_size":151936,"hidden_size":2048,"intermediate_size":6144,"num_hidden_layers":48,
    "num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768,
    "norm_topk_prob":true,"max_position_embeddings":40960})");
  JobConfig c;
  c.model.path = "m";
  c.model.dtype = DType::kBFloat16;
  const auto plan = PlanMemory(c);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(model::ParameterCount(plan->model), 30'532'122'624);
  const int64_t plain = plan->total();
  c.rollout.record_routing = true;
  EXPECT_EQ(PlanMemory(c)->total() - plain, plan->kv_cache_tokens * 48 * 8);
}

TEST(MemoryPlanTest, SplitsRolesOverWorkersAndKeepsTwoPublishedCopies) {
  JobConfig c;
  c.model.init = ModelInit{};
  c.model.dtype = DType::kBFloat16;
  const auto colocated = PlanMemory(c);
  ASSERT_TRUE(colocated.ok());
  ASSERT_EQ(colocated->processes.size(), 3U);  // device, reward, controller
  EXPECT_EQ(colocated->shared_memory_bytes(), 0);
  const int64_t elements = model::WeightBytes(colocated->model, model::DType::kBFloat16) / 2;
  // Twice where it trains on the CPU: once more for its products.
  EXPECT_EQ(colocated->processes[0].actor.weights, 2 * 2 * elements);
  EXPECT_EQ(colocated->processes[0].actor.gradients, 4 * elements);
  EXPECT_EQ(colocated->processes[0].actor.optimizer, 10 * elements);

  c.scheduler.placement = PlacementKind::kSplit;
  c.cluster.slots = 3;
  const auto split = PlanMemory(c);
  ASSERT_TRUE(split.ok());
  ASSERT_EQ(split->processes.size(), 5U);
  EXPECT_EQ(split->processes[0].roles, "actor");
  EXPECT_EQ(split->processes[0].rollout.passing(), 0);
  EXPECT_EQ(split->processes[2].roles, "rollout");
  EXPECT_EQ(split->processes[2].resident(), 2 * elements);
  EXPECT_EQ(NeedsOfRoles(*split).rollout, split->processes[2].rollout.passing());
  EXPECT_EQ(NeedsOfRoles(*split).actor, split->processes[0].actor.passing());
  EXPECT_EQ(split->shared_memory_bytes(), 2 * 2 * elements);
  c.cluster.weight_transport = WeightTransport::kStream;  // each host has its copies there, too
  const auto stream = PlanMemory(c);
  ASSERT_EQ(stream->shared_memory.size(), 1U);
  EXPECT_EQ(stream->shared_memory[0].bytes, 2 * 2 * elements);
  EXPECT_EQ(stream->shared_memory[0].key, "cluster.weight_transport: stream");
  EXPECT_EQ(stream->total(), split->total());
}

TEST(MemoryPlanTest, RolesThatTakeTurnsInMemoryNeedTheLargerOfThem) {
  JobConfig c;
  c.model.init = ModelInit{};
  const ProcessMemory both = PlanMemory(c)->processes[0];
  EXPECT_EQ(NeedsOfRoles(*PlanMemory(c)).offload, 0);
  c.train.offload_optimizer = Offload::kDisk;
  const auto plan = PlanMemory(c);
  const ProcessMemory& device = plan->processes[0];
  const int64_t trains = both.actor.passing() + both.actor.optimizer;
  EXPECT_EQ(device.resident(), both.actor.weights) << "the weights alone stay";
  EXPECT_EQ(device.total(), both.process + both.actor.weights + std::max(both.rollout.passing(), trains));
  EXPECT_LT(device.total(), both.total());
  EXPECT_EQ(NeedsOfRoles(*plan).rollout, both.rollout.passing());
  EXPECT_EQ(NeedsOfRoles(*plan).actor, trains);
  EXPECT_EQ(NeedsOfRoles(*plan).offload, both.actor.optimizer);
  EXPECT_NE(DescribePlan(c).find("rollout and actor, one at a time"), std::string::npos) << DescribePlan(c);
}

TEST(MemoryPlanTest, RecomputeKeepsLess) {
  JobConfig c;
  c.model.init = ModelInit{};
  c.model.init->layers = 12;
  const int64_t all = PlanMemory(c)->processes[0].actor.activations;
  c.train.recompute = true;
  EXPECT_LT(PlanMemory(c)->processes[0].actor.activations, all / 2);
}

TEST(MemoryPlanTest, TheKvCacheFollowsItsKeyOrItsRule) {
  JobConfig c;
  c.model.init = ModelInit{};
  c.rollout.kv_cache_tokens = 1000;
  EXPECT_EQ(PlanMemory(c)->kv_cache_tokens, 992);  // whole blocks of 16
  c.rollout.kv_cache_tokens = 0;
  c.rollout.max_new_tokens = 16;
  c.data.max_prompt_tokens = 64;
  c.train.groups_per_step = 2;
  c.rollout.group_size = 4;
  EXPECT_EQ(PlanMemory(c)->kv_cache_tokens, 8 * (64 + 16 + 16));
}

TEST(MemoryPlanTest, AGpuHasItsOwnMemoryAndTheHostACopyOfTheWeights) {
  JobConfig c;
  c.model.init = ModelInit{};
  c.model.dtype = DType::kBFloat16;
  c.cluster.slots = 2;
  c.cluster.weight_transport = WeightTransport::kStream;
  const ProcessMemory cpu = PlanMemory(c)->processes[0];
  EXPECT_EQ(cpu.gpu(), 0);
  c.cluster.device = DeviceKind::kCuda;
  const auto plan = PlanMemory(c);
  const ProcessMemory& gpu = plan->processes[0];
  const int64_t weights = cpu.rollout.weights;
  EXPECT_EQ(gpu.total(), gpu.process + weights);
  EXPECT_EQ(gpu.resident(), weights + gpu.actor.optimizer) << "copies for others are with the host";
  EXPECT_EQ(gpu.gpu(), gpu.context + gpu.resident() + gpu.rollout.passing() + gpu.actor.passing());
  EXPECT_EQ(gpu.actor.optimizer, cpu.actor.optimizer);
  EXPECT_EQ(gpu.rollout.kv,
            cpu.rollout.kv + model::kFillRowsMax * model::KvTokenBytes(plan->model, model::DType::kBFloat16))
      << "what the samples need is below either limit, and graphs are filled up";
  c.rollout.cuda_graphs = false;
  EXPECT_EQ(PlanMemory(c)->processes[0].rollout.kv, cpu.rollout.kv);
  EXPECT_LT(PlanMemory(c)->processes[0].rollout.workspace, gpu.rollout.workspace);
  c.rollout.cuda_graphs = true;
  int64_t parts = 0;
  for (const ProcessMemory::Part& part : gpu.parts()) parts += part.bytes;
  EXPECT_EQ(parts, gpu.gpu());
  EXPECT_EQ(NeedsOfRoles(*plan).actor, gpu.actor.passing());
  EXPECT_NE(DescribePlan(c).find("its GPU"), std::string::npos) << DescribePlan(c);
  // The threads of the CPU take nothing there.
  c.cluster.threads_per_slot = 64;
  EXPECT_EQ(PlanMemory(c)->processes[0].gpu(), gpu.gpu());
  // All rows are decoded then, each with the parts of its keys.
  c.deterministic = true;
  EXPECT_GT(PlanMemory(c)->processes[0].rollout.workspace, gpu.rollout.workspace);
}

TEST(MemoryPlanTest, WhoOnlyGeneratesNeedsNothingToTrain) {
  JobConfig c;
  c.model.init = ModelInit{};
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    c.cluster.device = device;
    const ProcessMemory job = PlanMemory(c)->processes[0],
                        asked = PlanMemory(c, SlotUse::kGeneration)->processes[0];
    EXPECT_EQ(asked.need(Role::kActor), 0);
    EXPECT_EQ(asked.kept(), 0);
    EXPECT_EQ(asked.resident(), model::WeightBytes(PlanMemory(c)->model, c.model.dtype));
    EXPECT_EQ(asked.need(Role::kRollout), job.need(Role::kRollout));
  }
}

TEST(MemoryPlanTest, KernelsOfAGpuHaveLimits) {
  model::ModelSpec spec{.vocab_size = 327'680, .head_size = 512};
  spec.moe.experts = 1024;
  EXPECT_EQ(cuda::CheckModel(spec), OkStatus());
  spec.moe.experts = 1025;
  EXPECT_NE(cuda::CheckModel(spec).message().find("the number of experts is 1025"), std::string::npos);
  spec.vocab_size = 327'681;
  EXPECT_NE(cuda::CheckModel(spec).message().find(
                "(vocab_size) is 327681, and the CUDA kernels have it up to 327680"),
            std::string::npos);
}

TEST(MemoryPlanTest, CountsAPolicyOfControlTasks) {
  const auto loaded = config::LoadConfig("configs/control/cartpole.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const auto plan = PlanMemory(loaded->config);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const ProcessMemory& device = plan->processes[0];
  const auto spec = policy::SpecOfJob(loaded->config);
  EXPECT_GE(device.actor.weights, 4 * policy::ParameterCount(*spec));
  EXPECT_EQ(device.actor.optimizer, 2 * device.actor.weights);
  EXPECT_EQ(device.rollout.weights, device.actor.weights) << "one arena";
  EXPECT_EQ(plan->checkpoint_bytes, 3 * device.actor.weights);
  EXPECT_GT(NeedsOfRoles(*plan).rollout, 0) << "a role that needs nothing proves nothing";
  EXPECT_GT(NeedsOfRoles(*plan).actor, device.actor.gradients);
  EXPECT_NE(DescribePlan(loaded->config).find("mlp policy"), std::string::npos);
}

TEST(MemoryProofTest, AGpusDriverSaysWhatIsFree) {
  const ProcessMemory plan{.name = "device-0",
                           .roles = "rollout and actor",
                           .process = 10,
                           .rollout = {.weights = 100, .kv = 50},
                           .actor = {.weights = 100, .optimizer = 400, .gradients = 200},
                           .on_gpu = true};
  // The trainer is not there yet: its optimizer's room is set aside.
  EXPECT_EQ(ProvenFreeOnGpu(1000, plan, {.roles = {.weights = 100, .kv = 50}}), 600);
  // Both are there, and the rollout has kept what it is about to need.
  EXPECT_EQ(
      ProvenFreeOnGpu(300, plan, {.roles = {.weights = 100, .optimizer = 400, .kv = 50}, .of_next = 50}),
      350);
}

TEST(MemoryProofTest, SetsAsideWhatStaysAndIsNotThereYet) {
  ProcessMemory plan{
      .name = "device-0", .roles = "rollout and actor", .process = 100, .rollout = {}, .actor = {}};
  plan.actor = {.weights = 50, .optimizer = 200, .gradients = 100};
  EXPECT_EQ(ProvenFree(1000, plan, {}), 1000 - 100 - 250);
  HeldMemory held{.roles = {.weights = 50, .optimizer = 200}, .further = 0, .resident_private = 0};
  EXPECT_EQ(ProvenFree(1000, plan, held), 1000 - 100 - 250);  // the same when it is there
  held.roles.gradients = 100;
  EXPECT_EQ(ProvenFree(1000, plan, held), 1000 - 100 - 350);
  held.resident_private = 900;  // the system counts more than the roles
  EXPECT_EQ(ProvenFree(1000, plan, held), 100);
  held.of_next = 100;  // what the next role needs and has kept is not taken twice
  EXPECT_EQ(ProvenFree(1000, plan, held), 200);
}

TEST(DescribePlanTest, SaysHowTheQuickstartWillRun) {
  const auto loaded = config::LoadConfig("configs/quickstart.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const std::string text = DescribePlan(loaded->config);
  for (const char* part :
       {"colocated, 1 slot", "16 groups x 8 samples = 128 sequences", "device-0", "rollout and actor",
        "reward-0", "controller", "disk         predicted about", "checkpoints of"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(DescribePlanTest, ALongNameIsApartFromItsSize) {
  const auto loaded = config::LoadConfig("configs/control/cartpole.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const std::string text = DescribePlan(loaded->config);
  EXPECT_NE(text.find("environment-0 "), std::string::npos) << text;
}

TEST(FilePlanTest, CountsConnectionAndReportOfEachProcessAndEachCallOfAReward) {
  const auto loaded = config::LoadConfig("configs/test/rl_colocated.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  JobConfig c = loaded->config;
  const int64_t few = PlanFiles(c);
  EXPECT_LE(few, 64) << "with so many it works";
  c.cluster.slots += 6;
  c.reward.workers += 3;
  EXPECT_EQ(PlanFiles(c), few + 2 * 9);
  c.reward.functions = {{.name = "judge", .endpoint = "unix:/x"}};
  c.reward.concurrency = 500;
  EXPECT_GT(PlanFiles(c), 500);
}

TEST(DiskPlanTest, SaysWhatMayNotFit) {
  const auto loaded = config::LoadConfig("configs/test/rl_colocated.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const auto plan = PlanDisk(loaded->config);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(SpaceWarning(*plan, "runs", plan->total()), "");
  EXPECT_NE(SpaceWarning(*plan, "runs", plan->total() - 1).find("runs: the disk has "), std::string::npos);
}

TEST(DiskPlanTest, WhatARunThatGoesOnHasAlreadyIsNotNeededAgain) {
  const auto loaded = config::LoadConfig("configs/test/rl_colocated.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  JobConfig c = loaded->config;
  const auto plan = PlanDisk(c);
  ASSERT_TRUE(plan.ok());
  const ScratchFolder scratch;
  scratch.Write("run/checkpoints/step_1/weights", std::string(100000, 'x'));
  scratch.Write("run/final/weights", std::string(100000, 'x'));  // stays until the next one is whole
  EXPECT_EQ(RoomFor(*plan, c).bytes, plan->certain());
  EXPECT_EQ(RoomFor(*plan, c, "run").bytes, plan->certain() - storage::DiskBytes("run/checkpoints"));
  EXPECT_GE(storage::DiskBytes("run/checkpoints"), 100000);
  c.checkpoint.keep = 3;
  EXPECT_TRUE(RoomFor(*plan, c).fewer_checkpoints);
}

TEST(DiskPlanTest, CountsCheckpointsAsTheyComeAndWhatElseIsKept) {
  const auto loaded = config::LoadConfig("configs/test/rl_colocated.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  JobConfig c = loaded->config;
  const auto memory = PlanMemory(c);
  ASSERT_TRUE(memory.ok());
  const auto certain = [](const JobConfig& config) { return PlanDisk(config)->certain(); };
  c.checkpoint = {.every_steps = 2, .keep = 2, .save_final = false};
  const int64_t first = memory->weights_bytes, one = memory->checkpoint_bytes;  // made from the seed: no base
  c.train.steps = 1;
  EXPECT_EQ(certain(c), first + one) << "that of step 0 has zeros beside the weights";
  c.train.steps = 5;
  EXPECT_EQ(certain(c), first + 3 * one) << "two are kept while the third is written";
  c.train.steps = 100;
  EXPECT_EQ(certain(c), first + 3 * one);
  c.checkpoint.every_steps = 0;
  EXPECT_EQ(certain(c), first + one);
  c.checkpoint.save_final = true;
  EXPECT_EQ(certain(c), first + one + memory->weights_bytes);
  c.checkpoint.keep_best = "eval/accuracy";
  EXPECT_EQ(certain(c), first + one + 2 * memory->weights_bytes);
  c.checkpoint.every_steps = 2;
  EXPECT_EQ(certain(c), first + 3 * one + 3 * memory->weights_bytes) << "best/ and the one that it replaces";
  c.checkpoint.every_steps = 0;
  const int64_t before = certain(c);
  c.train.offload_optimizer = Offload::kDisk;
  EXPECT_EQ(certain(c), before + NeedsOfRoles(*PlanMemory(c)).offload) << "it was not counted once";
  // What depends on how long samples become is said, and refuses nothing.
  const int64_t total = PlanDisk(c)->total();
  c.observe.samples_per_step = -1;
  EXPECT_GT(PlanDisk(c)->total(), total);
  EXPECT_EQ(certain(c), before + NeedsOfRoles(*PlanMemory(c)).offload);
  EXPECT_NE(PlanDisk(c)->Text(true).find(" for payload/"), std::string::npos);
  EXPECT_EQ(PlanDisk(c)->Text(false).find("payload/"), std::string::npos);
}

TEST(DiskPlanTest, CountsTheWarmStartOfItsOwnRun) {
  const auto loaded = config::LoadConfig("configs/quickstart.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_NE(PlanDisk(loaded->config)->Text(true).find(" for warm_start/"), std::string::npos);
}

TEST(DescribePlanTest, AModelThatIsNotThereIsALineNotAFailure) {
  JobConfig c;
  c.model.path = "nowhere";
  EXPECT_NE(DescribePlan(c).find("not predicted: model.path: nowhere/config.json"), std::string::npos)
      << DescribePlan(c);
}

}  // namespace
}  // namespace tidepool::workers
