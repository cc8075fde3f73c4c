#include "workers/device/memory_plan.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "core/algorithms/registry.h"
#include "core/base/places.h"
#include "core/base/utf8.h"
#include "core/comm/host_group.h"
#include "core/config/training_slots.h"
#include "core/model/activation_arena.h"
#include "core/model/cut.h"
#include "core/model/gguf_folder.h"
#include "core/model/hugging_face.h"
#include "core/model/layout.h"
#include "core/model/memory_use.h"
#include "core/model/sum_cuts.h"
#include "core/policy/memory_use.h"
#include "core/sharding/intervals.h"
#include "workers/device/disk_plan.h"
#include "workers/side/model_reward.h"

namespace tidepool::workers {
namespace {

// Measured resident bytes with nothing of the model loaded (docs/design.md, memory).
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kDeviceProcess = 150 * kMiB;
constexpr int64_t kRewardProcess = 35 * kMiB;
constexpr int64_t kControllerProcess = 80 * kMiB;  // 62 to 67 after 300 steps, as busy as the machine is

// Not measured: with LibTorch's CUDA libraries, and a context with its kernels and cuBLAS' workspaces.
constexpr int64_t kGpuProcess = 2048 * kMiB;
constexpr int64_t kGpuContext = 600 * kMiB;

constexpr int64_t kCpuKvBytes = 256 * kMiB, kGpuKvBytes = 4096 * kMiB;

bool OnGpu(const JobConfig& c) { return c.cluster.device == DeviceKind::kCuda; }

// Roles that generate are there: always for rl, for a supervised job where it is evaluated on the way.
bool Generates(const JobConfig& c) { return AnswersHeldOut(c); }

// Models beside the trained one, as core/train/job_options.cc (Needed) decides: their folders, "" for what
// the run starts from.
struct FurtherModels {
  std::vector<std::pair<std::string, std::string>> frozen;  // name, folder
  bool critic = false;
};
FurtherModels FurtherModelsOf(const JobConfig& c) {
  FurtherModels f;
  if (const auto* dpo = std::get_if<DpoJob>(&c.job))
    f.frozen.emplace_back("reference", dpo->preference.reference);
  if (const auto* distill = std::get_if<DistillJob>(&c.job))
    f.frozen.emplace_back("teacher", distill->distill.teacher);
  if (c.rl() == nullptr) return f;
  const AlgorithmConfig& algorithm = c.rl()->algorithm;
  const auto a = algorithms::Resolve(algorithm, c.rollout.max_new_tokens);
  if (!a.ok()) return f;
  if (a->needs_reference()) f.frozen.emplace_back("reference", algorithm.kl.reference);
  if (a->needs_teacher()) f.frozen.emplace_back("teacher", algorithm.teacher);
  f.critic = a->needs_critic();
  return f;
}

// Longest row: the cut of prompts and responses, bounded by the model.
int64_t RowTokens(const JobConfig& c, const model::ModelSpec& m) {
  const int64_t response = Generates(c) ? c.rollout.max_new_tokens : 0;
  return std::min(c.data.max_prompt_tokens + response, m.max_position);
}

int64_t RowsPerStep(const JobConfig& c) { return c.train.groups_per_step * TrainedPerRow(c); }

// What the slot of an engine has that has the largest part of its model (rollout.mesh.tp): the last one has
// the most of the vocabulary.
model::ModelSpec EnginePart(const JobConfig& c, const model::ModelSpec& m) {
  const int64_t tp = c.rollout.mesh.tp;
  return tp > 1 && model::CheckCut(m, tp).ok() ? model::PartSpec(m, {tp - 1, tp}) : m;
}

model::ModelSpec WithValueHead(model::ModelSpec spec) {
  spec.value_head = true;
  return spec;
}

// The largest part of an optimizer's state that a slot has (train.zero), of as many bytes.
int64_t ShareOf(const JobConfig& c, int64_t optimizer, int64_t elements) {
  const int64_t world = c.train.zero > 0 ? config::TrainingSlots(c) / c.train.mesh.tp : 1;
  if (world == 1) return optimizer;
  return optimizer / elements * sharding::Owned(elements, {0, world}).size();
}

// Of the slot with the largest part, of a model (or the part of it that a slot has) where `whole` is what one
// has that shares nothing.
int64_t GradientsOf(const JobConfig& c, const model::ModelSpec& m, int64_t whole) {
  const int64_t world = config::TrainingSlots(c) / c.train.mesh.tp;
  if (world <= 1) return whole;
  const int64_t trained = model::TrainedElements(m, model::AdapterOf(c)),
                owned = sharding::Owned(trained, {0, world}).size();
  if (c.train.zero >= 2) return model::SharedGradientBytes(m, owned);
  // Sums of earlier micro-batches (core/train/group_update.h).
  return whole + (c.deterministic ? 4 * owned : 0);
}

// Of a row of hidden states, what the rank with the most sums of its own has for the others.
int64_t SumBytes(const model::ModelSpec& m, int64_t tp, bool in_tiles) {
  const model::SumCuts cuts(m, {0, tp}, in_tiles);
  size_t most = 0;
  for (const auto& nodes : cuts.nodes()) most = std::max(most, nodes.size());
  return static_cast<int64_t>(most) * 4 * m.hidden_size;
}

// Elements of the largest parameter of the whole.
int64_t LargestCollected(const model::ModelSpec& m, bool experts) {
  const int64_t of_experts = experts ? m.moe.experts * 2 * m.moe.intermediate_size * m.hidden_size : 0;
  return std::max(m.vocab_size * m.hidden_size, of_experts);
}

// Of the slots that train, the part of the model that the one with the largest has (train.mesh): the last one
// has the most of the vocabulary.
model::Part TrainedPart(const JobConfig& c, const model::ModelSpec& m) {
  const int64_t tp = c.train.mesh.tp, ep = c.train.mesh.ep;
  if (ep > 1 && model::CheckCut(m, ep, model::Cut::kExperts).ok()) return {ep - 1, ep, model::Cut::kExperts};
  if (tp > 1 && model::CheckCut(m, tp).ok()) return {tp - 1, tp};
  return {};
}

void AddActor(const JobConfig& c, const model::ModelSpec& m, bool generates, ProcessMemory& p) {
  const model::DType dtype = c.model.dtype;
  const int64_t tokens = std::min(c.train.micro_batch_tokens, RowsPerStep(c) * RowTokens(c, m));
  // It stands beside the whole model's weights.
  const model::Part trained = TrainedPart(c, m);
  const bool cut = !trained.whole(), divided = cut && trained.what == model::Cut::kExperts;
  const model::ModelSpec part = model::PartSpec(m, trained);
  p.actor = model::TrainingMemory(part, dtype,
                                  {.tokens = (tokens + 15) / 16 * 16,
                                   .recompute = c.train.recompute,
                                   .threads = c.cluster.threads_per_slot,
                                   .gpu = OnGpu(c),
                                   .decoded_keys = c.deterministic ? RowTokens(c, m) : 256,
                                   .adapter = model::AdapterOf(c)});
  p.actor.optimizer = ShareOf(c, p.actor.optimizer, model::LayoutElements(part));
  p.actor.gradients = GradientsOf(c, part, p.actor.gradients);
  // Its part of what stands in shared memory once, and what it lays out. Such a slot does not generate.
  if (const int64_t world = config::TrainingSlots(c); c.train.zero >= 3 && world > 1) {
    const int64_t laid_out = model::LaidOutPartBytes(m, dtype);
    p.actor.weights =
        sharding::Owned(model::LayoutElements(m), {0, world}).size() * model::Bytes(dtype) + laid_out;
    p.rollout.weights = 0;
    // Until the first step, which shares them, each slot has all of them and nothing that a step takes.
    p.actor.workspace += std::max<int64_t>(0, model::WeightBytes(m, dtype) - laid_out - p.actor.gradients -
                                                  p.actor.activations - p.actor.workspace);
  }
  // The largest matrix of the whole stands by itself while parts are brought together.
  if (cut) p.actor.workspace += LargestCollected(m, divided) * model::Bytes(dtype);
  // Of one expert, what the rows of each rank add to a matrix of it.
  if (divided && c.deterministic)
    p.actor.workspace += trained.of * 4 * 2 * m.moe.intermediate_size * m.hidden_size;
  // Sums on their way to the other ranks.
  if (cut && !divided) p.actor.workspace += tokens * SumBytes(m, trained.of, !OnGpu(c));
  // Beside it an engine's whole model as products read it, or its part, where that is another one.
  const int64_t engine = c.rollout.mesh.tp;
  if (cut) p.actor.weights += model::WeightBytes(m, dtype);
  if (cut && generates && engine == 1) p.actor.weights += model::LaidOutBytes(m, dtype);
  if (generates && engine > 1 && engine != c.train.mesh.tp) {
    const model::ModelSpec other = EnginePart(c, m);
    p.actor.weights += model::WeightBytes(other, dtype) + model::LaidOutBytes(other, dtype);
  }
  const FurtherModels further = FurtherModelsOf(c);
  for (const auto& [name, folder] : further.frozen) {
    if (c.model.trains_adapter() && folder.empty()) {  // the model without the adapter, or with the first one
      const auto adapter = model::AdapterOf(c);
      if (adapter && !c.model.lora.path.empty())
        p.further.emplace_back(name, model::AdapterElements(m, *adapter) * model::Bytes(dtype));
      continue;
    }
    const StatusOr<model::ModelSpec> other =
        folder.empty() ? StatusOr<model::ModelSpec>(m) : SpecOf(ModelConfig{.path = folder});
    p.further.emplace_back(name, model::WeightBytes(other.ok() ? *other : m, dtype));
    p.host_weights += p.further.back().second;
    if (OnGpu(c)) p.actor.activations += model::ActivationArena::kChunkBytes;
    // Its logits beside those of the student, and one of them in float32 on its way to or from the host.
    if (name == "teacher" && c.kind() == JobKind::kDistill)
      p.actor.workspace += model::kHeadRows * m.vocab_size * (model::Bytes(dtype) + 4);
  }
  if (!further.critic) return;
  // Weights and optimizer; its gradients and activations take the place of the policy's.
  const model::ModelSpec critic = WithValueHead(m);
  p.further.emplace_back(
      "critic", model::WeightBytes(critic, dtype) + (OnGpu(c) ? 0 : model::LaidOutBytes(critic, dtype)) +
                    ShareOf(c, model::OptimizerBytes(critic, dtype), model::LayoutElements(critic)));
  p.host_weights += model::WeightBytes(critic, dtype);
}

// Of a reward worker whose functions grade by models: weights, and what computing with them takes.
void AddModels(const JobConfig& c, ProcessMemory& p) {
  if (c.reward.by_model()) p.process = kDeviceProcess;
  for (const RewardFunction& f : c.reward.functions) {
    const auto spec = f.by_model() ? SpecOf(f) : NotFound("");
    if (!spec.ok()) continue;
    const int64_t tokens = MostTokens(f, *spec);
    const model::GenerationSizes sizes{.kv_tokens = IsJudge(f) ? JudgeKvTokens(f, c.reward, *spec) : tokens,
                                       .rows = std::max(tokens, c.reward.concurrency * c.reward.batch),
                                       .keys = tokens,
                                       .threads = c.reward.threads};
    p.further.emplace_back(
        f.name, model::WeightBytes(*spec, f.dtype) + model::GenerationMemory(*spec, f.dtype, sizes).total());
  }
}

// Of the roles of a policy of control tasks.
struct PolicyMemory {
  model::MemoryUse rollout, actor;
};
StatusOr<PolicyMemory> PolicyMemoryOf(const JobConfig& c) {
  TP_ASSIGN_OR_RETURN(const policy::PolicySpec spec, policy::SpecOfJob(c));
  policy::MemorySizes sizes{.fragment_cells = c.rollout.max_new_tokens,
                            .fragments = c.train.groups_per_step,
                            .minibatches = c.train.minibatches,
                            .replay_capacity = c.rl()->algorithm.replay.capacity,
                            .replay_batch = c.rl()->algorithm.replay.batch_size};
  PolicyMemory use;
  use.actor = policy::TrainingMemory(spec, sizes);
  sizes.fragments *= c.scheduler.max_lag_versions + 1;
  use.rollout = policy::PlayingMemory(spec, sizes);
  use.rollout.weights = use.actor.weights;
  return use;
}

// With split a slot holds one role, else any slot may generate.
bool MayGenerate(const JobConfig& c, int64_t slot) {
  return c.scheduler.placement != PlacementKind::kSplit || slot >= c.scheduler.actor_slots;
}

}  // namespace

bool RefersToFirstAdapter(const JobConfig& c) {
  return !c.model.lora.path.empty() && std::ranges::any_of(FurtherModelsOf(c).frozen, [](const auto& model) {
    return model.first == "reference" && model.second.empty();
  });
}

bool MayTrain(const JobConfig& c, int64_t slot) {
  return c.scheduler.placement == PlacementKind::kColocated ||
         c.scheduler.placement == PlacementKind::kElastic || slot < c.scheduler.actor_slots;
}

int64_t ProcessMemory::kept() const {
  int64_t sum = actor.optimizer;
  for (const auto& [name, bytes] : further) sum += bytes;
  return sum;
}

int64_t ProcessMemory::resident() const {
  return std::max(rollout.weights, actor.weights) + (offloads ? 0 : kept());
}

int64_t ProcessMemory::need(Role role) const {
  return role == Role::kRollout ? rollout.passing() : actor.passing() + (offloads ? kept() : 0);
}

int64_t ProcessMemory::total() const { return process + (on_gpu ? host_weights : of_slot()); }
int64_t ProcessMemory::gpu() const { return on_gpu ? context + of_slot() : 0; }
int64_t ProcessMemory::least() const {
  if (on_gpu) return total();
  return process + resident() + std::max(need(Role::kRollout), need(Role::kActor));
}
int64_t ProcessMemory::of_slot() const {
  const int64_t generates = need(Role::kRollout), trains = need(Role::kActor);
  return resident() + (offloads ? std::max(generates, trains) : generates + trains);
}

std::vector<ProcessMemory::Part> ProcessMemory::parts() const {
  constexpr const char* kModel = "take a smaller model, or model.dtype: bfloat16";
  constexpr const char* kGradients =
      "let more slots train and share them (train.zero: 2, where train.mesh.tp is 1), take a smaller model, "
      "or separate the roles "
      "(scheduler.placement: split, or train.offload_optimizer: disk)";
  constexpr const char* kOptimizer =
      "let more slots train and share it (train.zero: 1), take a smaller model, or separate the roles "
      "(scheduler.placement: split, or train.offload_optimizer: disk)";
  std::vector<Part> list = {
      {"context", context},
      {"weights", std::max(rollout.weights, actor.weights), kModel},
      {"optimizer", actor.optimizer, kOptimizer},
      {"gradients", actor.gradients, kGradients},
      {"activations", actor.activations, "lower train.micro_batch_tokens, or set train.recompute: true"},
      {"training workspace", actor.workspace, "lower train.micro_batch_tokens"},
      {"kv_cache", rollout.kv, "lower rollout.kv_cache_tokens (where it is 0: rollout.max_concurrent)"},
      {"engine workspace", rollout.workspace, "lower rollout.max_batched_tokens"}};
  for (const auto& [name, bytes] : further) list.push_back({name, bytes, kModel});
  std::erase_if(list, [](const Part& part) { return part.bytes == 0; });
  return list;
}

std::string ProcessMemory::PartsText() const {
  std::vector<Part> sorted = parts();
  std::ranges::stable_sort(sorted, std::greater(), &Part::bytes);
  std::string text;
  for (const Part& part : sorted)
    text += (text.empty() ? "" : ", ") + part.name + " " + BytesText(part.bytes);
  // The context alone is nobody's choice.
  const auto largest = std::ranges::find_if(sorted, [](const Part& part) { return *part.smaller != 0; });
  return text + (largest == sorted.end() ? "" : std::string("; ") + largest->smaller);
}

int64_t MemoryPlan::total() const {
  int64_t sum = shared_memory_bytes();
  for (const ProcessMemory& p : processes) sum += p.total();
  return sum;
}

StatusOr<model::ModelSpec> SpecOf(const ModelConfig& model) {
  if (!model.init) {
    StatusOr<model::ModelSpec> read = model::ReadSpec(model.path);
    if (!read.ok()) return read.status().At("model.path");
    return read;
  }
  const ModelInit& i = *model.init;
  model::ModelSpec spec;
  spec.architecture = i.architecture;
  spec.vocab_size = CharacterCount(i.alphabet) + 3;
  spec.hidden_size = i.hidden_size;
  spec.intermediate_size = i.intermediate_size;
  spec.layers = i.layers;
  spec.heads = i.heads;
  spec.kv_heads = i.kv_heads;
  spec.head_size = i.head_size;
  spec.max_position = i.max_position;
  spec.qkv_bias = i.architecture == "qwen2";
  spec.qk_norm = i.architecture == "qwen3";
  spec.tie_embeddings = i.tie_embeddings;
  return spec;
}

int64_t KvCacheTokens(const JobConfig& c, const model::ModelSpec& m) {
  const RolloutConfig& r = c.rollout;
  int64_t tokens = r.kv_cache_tokens;
  if (tokens <= 0) {
    const int64_t row =
        std::min(c.data.max_prompt_tokens + r.max_new_tokens, m.max_position) + r.block_tokens;
    const int64_t concurrent = std::min(
        r.max_concurrent, c.train.groups_per_step * SamplesPerRow(c) * (c.scheduler.max_lag_versions + 1));
    const int64_t most = OnGpu(c) ? kGpuKvBytes : kCpuKvBytes;
    tokens = std::max(
        row, std::min(concurrent * row, most / model::KvTokenBytes(EnginePart(c, m), c.model.dtype)));
  }
  return tokens / r.block_tokens * r.block_tokens;
}

StatusOr<MemoryPlan> PlanMemory(const JobConfig& c, SlotUse use) {
  MemoryPlan plan;
  PolicyMemory of_policy;
  const bool policy = c.model.is_policy();
  if (policy) {
    TP_ASSIGN_OR_RETURN(of_policy, PolicyMemoryOf(c));
  } else {
    TP_ASSIGN_OR_RETURN(plan.model, SpecOf(c.model));
  }
  const model::ModelSpec& m = plan.model;
  const model::DType dtype = c.model.dtype;
  const bool generates = Generates(c);
  int64_t weights = policy ? of_policy.actor.weights : model::WeightBytes(m, dtype);
  // Nothing but an adapter is trained on such a folder.
  if (!policy && !OnGpu(c) && !c.model.init && model::HoldsGguf(c.model.path)) {
    TP_ASSIGN_OR_RETURN(const auto gguf, model::GgufFolder::Open(c.model.path));
    weights = model::LayoutInBlocks(m, dtype, gguf.BlockTypes()).bytes;
  }
  if (generates && !policy) plan.kv_cache_tokens = KvCacheTokens(c, m);
  const auto adapter = model::AdapterOf(c);  // beside the model
  const int64_t adapter_bytes = adapter ? model::AdapterElements(m, *adapter) * model::Bytes(dtype) : 0;
  const bool mapped = adapter && use == SlotUse::kJob;  // the model stands in shared memory
  const int64_t devices = c.cluster.slots;
  for (int64_t slot = 0; slot < devices; ++slot) {
    const bool actor = use == SlotUse::kJob && MayTrain(c, slot), rollout = generates && MayGenerate(c, slot);
    ProcessMemory p{.name = PlaceName(c, slot),
                    .roles = actor && rollout ? "rollout and actor"
                             : actor          ? "actor"
                                              : "rollout",
                    .process = OnGpu(c) ? kGpuProcess : kDeviceProcess,
                    .rollout = {.weights = adapter_bytes + (mapped && !OnGpu(c) ? 0 : weights)},
                    .actor = {},
                    .offloads = c.train.offload_optimizer == Offload::kDisk,
                    .on_gpu = OnGpu(c),
                    .context = OnGpu(c) ? kGpuContext : 0,
                    .host_weights = adapter_bytes + (mapped ? 0 : weights)};
    if (policy) {
      if (actor) p.actor = of_policy.actor;
      if (rollout) p.rollout = of_policy.rollout;
    } else if (actor) {
      AddActor(c, m, rollout, p);
    }
    if (rollout && !policy) {
      const model::ModelSpec part = EnginePart(c, m);
      if (c.rollout.mesh.tp > 1) {
        if (!actor) p.rollout.weights = p.host_weights = model::WeightBytes(part, dtype);
        // All ranks' logits as they come, row by row, and in float32 for the draw.
        p.rollout.workspace += model::kEngineHeadRows * m.vocab_size * (3 * model::Bytes(dtype) + 4);
      }
      // Sums on their way to the other ranks, of all rows of a step.
      if (part.vocab_size < m.vocab_size)
        p.rollout.workspace +=
            std::min(std::max(c.rollout.max_batched_tokens, c.rollout.max_concurrent), plan.kv_cache_tokens) *
            SumBytes(m, c.rollout.mesh.tp, !OnGpu(c));
      p.rollout += model::GenerationMemory(
          part, dtype,
          {.kv_tokens = plan.kv_cache_tokens,
           .rows = std::max(c.rollout.max_batched_tokens, c.rollout.max_concurrent),
           .keys = RowTokens(c, m),
           .record_routing = c.rollout.record_routing,
           .threads = c.cluster.threads_per_slot,
           .gpu = OnGpu(c),
           .running = c.rollout.max_concurrent,
           .decoded = c.deterministic ? std::numeric_limits<int64_t>::max() : c.rollout.max_concurrent,
           .graphs = c.rollout.cuda_graphs});
    }
    plan.processes.push_back(std::move(p));
  }
  if (generates) {
    const EnvironmentConfig* environment = c.environment();
    for (int64_t i = 0;
         i < std::max<int64_t>(environment != nullptr ? environment->workers : c.reward.workers, 1); ++i) {
      plan.processes.push_back({.name = PlaceName(c, devices + i),
                                .roles = environment != nullptr ? "episodes" : "grading",
                                .process = kRewardProcess,
                                .rollout = {},
                                .actor = {}});
      if (environment == nullptr) AddModels(c, plan.processes.back());
    }
  }
  plan.processes.push_back({.name = "controller",
                            .roles = "decisions",
                            .process = kControllerProcess,
                            .rollout = {},
                            .actor = {}});
  // What every part of a model has is in the file of each.
  const model::Part trained = policy ? model::Part() : TrainedPart(c, m);
  const int64_t published = policy ? weights : model::TrainedElements(m, adapter) * model::Bytes(dtype);
  int64_t state =
      published + (policy    ? of_policy.actor.optimizer
                   : adapter ? model::OptimizerBytes(model::TrainedElements(m, adapter), dtype)
                             : trained.of * model::OptimizerBytes(model::PartSpec(m, trained), dtype));
  if (!policy && FurtherModelsOf(c).critic) {
    const model::ModelSpec critic = WithValueHead(m);
    state += model::WeightBytes(critic, dtype) + model::OptimizerBytes(critic, dtype);
  }
  plan.weights_bytes = published;
  plan.checkpoint_bytes = state;
  if (mapped) plan.shared_memory.push_back({"the model below the adapter", "model.path", weights});
  // Two buffers each (workers/data/shared_arena.h).
  if (devices > 1)
    plan.shared_memory.push_back(
        {"published weights", "cluster.weight_transport: " + std::string(Name(c.cluster.weight_transport)),
         2 * published});
  if (const int64_t ranks = config::TrainingSlots(c); ranks > 1) {
    const int64_t tp = c.train.mesh.tp, dp = ranks / tp;  // as many groups of the other size
    const auto groups = [](int64_t of, int64_t n) {
      return of > 1 ? n * comm::HostMemory::Bytes(static_cast<int>(of)) : 0;
    };
    if (c.train.zero >= 3)
      plan.shared_memory.push_back({"weights of training slots", "train.zero", weights, true});
    const int64_t ep = c.train.mesh.ep;
    plan.shared_memory.push_back(
        {"what training slots exchange", "scheduler.actor_slots",
         groups(tp, dp) + groups(dp, tp) + (ep > 1 ? groups(ep, dp / ep) + groups(dp / ep, ep) : 0)});
  }
  if (const auto engines = static_cast<int64_t>(config::EngineGangs(c).size()); generates && engines > 0)
    plan.shared_memory.push_back({"what slots of an engine exchange", "rollout.mesh.tp",
                                  engines * comm::HostMemory::Bytes(static_cast<int>(c.rollout.mesh.tp))});
  if (c.checkpoint.recovery_every_steps > 0)
    plan.shared_memory.push_back({"recovery copies", "checkpoint.recovery_every_steps", 2 * state});
  return plan;
}

int64_t MemoryPlan::shared_memory_bytes() const {
  int64_t sum = 0;
  for (const SharedPart& part : shared_memory) sum += part.of_slots ? 0 : part.bytes;
  return sum;
}

int64_t MemoryPlan::dev_shm_bytes() const {
  int64_t sum = 0;
  for (const SharedPart& part : shared_memory) sum += part.bytes;
  return sum;
}

RoleNeeds NeedsOfRoles(const MemoryPlan& plan) {
  RoleNeeds needs;
  for (const ProcessMemory& p : plan.processes) {
    needs.rollout = std::max(needs.rollout, p.need(Role::kRollout));
    needs.actor = std::max(needs.actor, p.need(Role::kActor));
    if (p.offloads) needs.offload = std::max(needs.offload, p.kept());
  }
  return needs;
}

}  // namespace tidepool::workers
