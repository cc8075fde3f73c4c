#include "workers/device/memory_plan.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "core/algorithms/registry.h"
#include "core/model/hugging_face.h"
#include "workers/cli/run_lookup.h"

namespace tidepool::workers {
namespace {

// Measured resident bytes with nothing of the model loaded (docs/design.md, memory).
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kDeviceProcess = 150 * kMiB;
constexpr int64_t kRewardProcess = 35 * kMiB;
constexpr int64_t kControllerProcess = 45 * kMiB;

// core/train/trainer.h (head_rows), core/engine/engine.cc (kHeadRows), workers/device/device_roles.cc
// (kCpuKvBytes).
constexpr int64_t kTrainHeadRows = 256;
constexpr int64_t kEngineHeadRows = 128;
constexpr int64_t kCpuKvBytes = 256 * kMiB;
// core/model/decoder_backward.cc: one bfloat16 product of a weight gradient.
constexpr int64_t kProductElements = int64_t{8} << 20;

int64_t Aligned(int64_t elements) { return (elements + 63) / 64 * 64; }

int64_t CountCharacters(const std::string& utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

// Calls `add` with the elements of each tensor, in the layout of core/model/weights.cc.
template <typename F>
void EachTensor(const ModelSizes& m, F&& add) {
  const int64_t d = m.hidden, qkv = (m.heads + 2 * m.kv_heads) * m.head_size;
  add(m.vocab * d);
  for (int64_t i = 0; i < m.layers; ++i) {
    add(d);
    add(qkv * d);
    if (m.qkv_bias) add(qkv);
    if (m.o_bias) add(d);
    if (m.qk_norm) add(m.head_size), add(m.head_size);
    add(d * m.heads * m.head_size);
    add(d);
    if (i < m.sparse_layers) {  // the order of layers does not count
      add(m.moe.experts * d);
      add(m.moe.experts * 2 * m.moe.intermediate_size * d);
      add(m.moe.experts * d * m.moe.intermediate_size);
      if (const int64_t s = m.moe.shared_intermediate_size; s > 0) add(2 * s * d), add(d * s), add(d);
      continue;
    }
    add(2 * m.intermediate * d);
    add(d * m.intermediate);
    if (m.mlp_bias) add(2 * m.intermediate), add(d);
  }
  add(d);
  if (!m.tied) add(m.vocab * d);
}

std::string Text(int64_t value) { return std::to_string(value); }

std::string Millions(int64_t value) {
  char text[32];
  std::snprintf(text, sizeof(text), value < 10'000'000 ? "%.2f M" : "%.0f M",
                static_cast<double>(value) * 1e-6);
  return text;
}

int64_t Dtype(const JobConfig& c) { return c.model.dtype == "bfloat16" ? 2 : 4; }

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
  if (c.job == "dpo") f.frozen.emplace_back("reference", c.preference.reference);
  if (c.job == "distill") f.frozen.emplace_back("teacher", c.distill.teacher);
  if (c.job != "rl") return f;
  const auto a = algorithms::Resolve(c.algorithm, c.rollout.max_new_tokens);
  if (!a.ok()) return f;
  if (a->needs_reference()) f.frozen.emplace_back("reference", c.algorithm.kl.reference);
  if (a->needs_teacher()) f.frozen.emplace_back("teacher", c.algorithm.teacher);
  f.critic = a->needs_critic();
  return f;
}

// Longest row: the cut of prompts and responses, bounded by the model.
int64_t RowTokens(const JobConfig& c, const ModelSizes& m) {
  const int64_t response = Generates(c) ? c.rollout.max_new_tokens : 0;
  return std::min(c.data.max_prompt_tokens + response, m.max_position);
}

int64_t RowsPerStep(const JobConfig& c) { return c.train.groups_per_step * SamplesPerRow(c); }

// workers/device/device_roles.cc, KvCacheTokens.
int64_t KvTokens(const JobConfig& c, const ModelSizes& m) {
  const RolloutConfig& r = c.rollout;
  int64_t tokens = r.kv_cache_tokens;
  if (tokens <= 0) {
    const int64_t row = RowTokens(c, m) + r.block_tokens;
    const int64_t concurrent = std::min(
        r.max_concurrent, c.train.groups_per_step * r.group_size * (c.scheduler.max_lag_versions + 1));
    const int64_t token_bytes = 2 * m.layers * m.kv_heads * m.head_size * Dtype(c);
    tokens = std::max(row, std::min(concurrent * row, kCpuKvBytes / token_bytes));
  }
  return tokens / r.block_tokens * r.block_tokens;
}

// Buffers of one block that are not kept: normed input, activation, product results, qkv.
int64_t ScratchBytes(const ModelSizes& m, int64_t w) {
  const int64_t dense = m.sparse_layers < m.layers ? m.intermediate : 0,
                k = m.sparse_layers > 0 ? m.moe.experts_per_token : 0;
  return w * (2 * m.hidden + dense + (m.heads + 2 * m.kv_heads) * m.head_size +
              k * (m.hidden + m.moe.intermediate_size) + m.moe.shared_intermediate_size);
}

// Of the MLP of one block, for one token: gate and up; of experts those that the token chose and their
// outputs, the router's probabilities, and the choice with its weights and places.
int64_t MlpBytes(const ModelSizes& m, int64_t w, bool sparse) {
  if (!sparse) return 2 * w * m.intermediate;
  const int64_t k = m.moe.experts_per_token, shared = m.moe.shared_intermediate_size;
  return w * (k * (2 * m.moe.intermediate_size + m.hidden) + 2 * shared + (shared > 0 ? m.hidden : 0)) +
         4 * m.moe.experts + 16 * k;
}
int64_t LargestMlpBytes(const ModelSizes& m, int64_t w) {
  return std::max(m.sparse_layers < m.layers ? MlpBytes(m, w, false) : 0,
                  m.sparse_layers > 0 ? MlpBytes(m, w, true) : 0);
}

// A value head in place of an untied head.
int64_t CriticBytes(const ModelSizes& m, int64_t w) {
  const int64_t elements = FlatElements(m) - (m.tied ? 0 : Aligned(m.vocab * m.hidden)) + Aligned(m.hidden);
  return (w + 8 + (w == 2 ? 2 : 0)) * elements;
}

void AddActor(const JobConfig& c, const ModelSizes& m, ProcessMemory& p) {
  const int64_t w = Dtype(c), elements = FlatElements(m), d = m.hidden;
  p.parts.push_back({"gradients", 4 * elements});
  p.parts.push_back({"optimizer", (8 + (w == 2 ? 2 : 0)) * elements});
  const FurtherModels further = FurtherModelsOf(c);
  for (const auto& [name, folder] : further.frozen) {
    const StatusOr<ModelSizes> sizes =
        folder.empty() ? StatusOr<ModelSizes>(m) : SizesOf(ModelConfig{.path = folder});
    p.parts.push_back({name, w * FlatElements(sizes.ok() ? *sizes : m)});
  }
  // Weights and optimizer; its gradients and activations take the place of the policy's.
  if (further.critic) p.parts.push_back({"critic", CriticBytes(m, w)});
  const int64_t tokens =
      (std::min(c.train.micro_batch_tokens, RowsPerStep(c) * RowTokens(c, m)) + 15) / 16 * 16;
  const int64_t attention = AttentionActivationBytes(m, w), block = attention + LargestMlpBytes(m, w);
  const int64_t blocks = m.layers * attention + m.sparse_layers * MlpBytes(m, w, true) +
                         (m.layers - m.sparse_layers) * MlpBytes(m, w, false);
  // Backward: d attention out and d qkv of one block, the residual's gradient in float32 and rounded, the
  // last hidden states and their gradient, gathered in float32.
  int64_t backward = w * ((2 * m.heads + 2 * m.kv_heads) * m.head_size + 4 * d) + 8 * d;
  // Experts: the gradient of the gathered rows; in float32 the router's, the rows and their sum over experts.
  if (m.sparse_layers > 0) backward += w * (m.moe.experts_per_token + 1) * d + 4 * (m.moe.experts + 2 * d);
  const int64_t kept = c.train.recompute ? m.layers * w * d + block : blocks;
  p.parts.push_back({"activations", tokens * (kept + ScratchBytes(m, w) + backward)});
  int64_t largest = 0;
  EachTensor(m, [&](int64_t n) { largest = std::max(largest, n); });
  // The last term: a product may lay its matrix out anew, the largest one at worst.
  p.parts.push_back({"head", kTrainHeadRows * m.vocab * (w + 4) +
                                 (w == 2 ? 2 * std::min(largest, kProductElements) : 0) + w * largest});
}

void AddRollout(const JobConfig& c, const ModelSizes& m, int64_t kv_tokens, ProcessMemory& p) {
  const int64_t w = Dtype(c);
  p.parts.push_back({"kv_cache", kv_tokens * 2 * m.layers * m.kv_heads * m.head_size * w});
  const int64_t rows = std::max(c.rollout.max_batched_tokens, c.rollout.max_concurrent);
  const int64_t row =
      w * (2 * m.hidden + 2 * m.heads * m.head_size) + LargestMlpBytes(m, w) + ScratchBytes(m, w);
  if (c.rollout.record_routing)
    p.parts.push_back(
        {"routing", kv_tokens * m.sparse_layers * m.moe.experts_per_token * (m.moe.experts <= 256 ? 1 : 2)});
  // A step has no more rows than the samples in flight have tokens.
  const int64_t most = std::min(rows, kv_tokens);
  p.parts.push_back({"engine", most * row + kEngineHeadRows * m.vocab * (w + 4)});
}

}  // namespace

int64_t ProcessMemory::total() const {
  int64_t sum = 0;
  for (const MemoryPart& part : parts) sum += part.bytes;
  return sum;
}

int64_t MemoryPlan::total() const {
  int64_t sum = shared_memory_bytes;
  for (const ProcessMemory& p : processes) sum += p.total();
  return sum;
}

StatusOr<ModelSizes> SizesOf(const ModelConfig& model) {
  ModelSizes m;
  if (model.init) {
    const ModelInit& i = *model.init;
    m = {i.architecture,
         CountCharacters(i.alphabet) + 3,
         i.hidden_size,
         i.intermediate_size,
         i.layers,
         i.heads,
         i.kv_heads,
         i.head_size,
         i.max_position,
         i.architecture == "qwen2",
         i.architecture == "qwen3",
         i.tie_embeddings};
    return m;
  }
  const StatusOr<model::ModelSpec> read = model::ReadSpec(model.path);
  if (!read.ok()) return read.status().At("model.path");
  const model::ModelSpec& spec = *read;
  m = {spec.architecture, spec.vocab_size, spec.hidden_size,     spec.intermediate_size,
       spec.layers,       spec.heads,      spec.kv_heads,        spec.head_size,
       spec.max_position, spec.qkv_bias,   spec.qk_norm,         spec.tie_embeddings,
       spec.o_bias,       spec.mlp_bias,   spec.sparse_layers(), spec.moe};
  return m;
}

int64_t Parameters(const ModelSizes& m) {
  int64_t sum = 0;
  EachTensor(m, [&](int64_t n) { sum += n; });
  return sum;
}

int64_t FlatElements(const ModelSizes& m) {
  int64_t sum = 0;
  EachTensor(m, [&](int64_t n) { sum += Aligned(n); });
  return sum;
}

int64_t AttentionActivationBytes(const ModelSizes& m, int64_t w) {
  const int64_t q = m.heads * m.head_size, kv = m.kv_heads * m.head_size;
  return w * (2 * m.hidden + 2 * q + 2 * kv + (m.qk_norm ? q + 2 * kv : 0)) + 4 * (2 + m.heads);
}

// What a slot may ever hold: with colocated and elastic both roles anywhere, with split one, with multiplexed
// the training slots both and the others generation.
bool MayTrain(const JobConfig& c, int64_t slot) {
  return c.scheduler.placement == "colocated" || c.scheduler.placement == "elastic" ||
         slot < c.scheduler.actor_slots;
}
bool MayGenerate(const JobConfig& c, int64_t slot) {
  return c.scheduler.placement != "split" || slot >= c.scheduler.actor_slots;
}

StatusOr<MemoryPlan> PlanMemory(const JobConfig& c) {
  if (c.cluster.device != "cpu")
    return Unimplemented("memory is predicted for cluster.device: cpu only, this is " + c.cluster.device);
  if (!c.model.policy.empty())
    return Unimplemented("a policy of control tasks takes some megabytes beside its processes");
  MemoryPlan plan;
  TP_ASSIGN_OR_RETURN(plan.model, SizesOf(c.model));
  const ModelSizes& m = plan.model;
  const bool generates = Generates(c);
  const int64_t w = Dtype(c), weights = w * FlatElements(m);
  if (generates) plan.kv_cache_tokens = KvTokens(c, m);
  const int64_t devices = c.cluster.slots;
  for (int64_t slot = 0; slot < devices; ++slot) {
    const bool actor = MayTrain(c, slot), rollout = generates && MayGenerate(c, slot);
    ProcessMemory p{"device-" + Text(slot),
                    actor && rollout ? "rollout and actor"
                    : actor          ? "actor"
                                     : "rollout",
                    {}};
    p.parts.push_back({"process", kDeviceProcess});
    p.parts.push_back({"weights", weights});
    if (actor) AddActor(c, m, p);
    if (rollout) AddRollout(c, m, plan.kv_cache_tokens, p);
    if (actor && devices > 1 && c.cluster.weight_transport == "stream")
      p.parts.push_back({"snapshot", weights});
    plan.processes.push_back(std::move(p));
  }
  if (generates) {
    const bool environment = c.job == "rl" && !c.environment.name.empty();
    for (int64_t i = 0; i < std::max<int64_t>(environment ? c.environment.workers : c.reward.workers, 1);
         ++i) {
      plan.processes.push_back({(environment ? "environment-" : "reward-") + Text(i),
                                environment ? "episodes" : "grading",
                                {{"process", kRewardProcess}}});
    }
  }
  plan.processes.push_back({"controller", "decisions", {{"process", kControllerProcess}}});
  const int64_t state = weights + (8 + (w == 2 ? 2 : 0)) * FlatElements(m) +
                        (FurtherModelsOf(c).critic ? CriticBytes(m, w) : 0);
  plan.checkpoint_bytes = state;
  // Two buffers each (workers/data/shared_arena.h).
  if (devices > 1 && c.cluster.weight_transport == "shared_memory") plan.shared_memory_bytes += 2 * weights;
  if (c.checkpoint.recovery_every_steps > 0) plan.shared_memory_bytes += 2 * state;
  return plan;
}

std::string DescribePlan(const JobConfig& c) {
  std::ostringstream out;
  const bool rl = c.job == "rl";
  out << "# plan\n";
  const int64_t devices = c.cluster.slots;
  out << "placement    " << c.scheduler.placement << ", " << devices << (devices == 1 ? " slot" : " slots")
      << " of " << c.cluster.threads_per_slot << (c.cluster.threads_per_slot == 1 ? " thread" : " threads")
      << " (" << c.cluster.device << ")\n";
  if (!c.model.policy.empty()) {
    out << "step         " << c.train.groups_per_step << " fragments of " << c.environment.instances
        << " instances x " << c.rollout.steps_per_fragment
        << " steps = " << c.train.groups_per_step * c.rollout.max_new_tokens << " environment steps; "
        << c.train.steps << " steps\n"
        << "updates      " << c.train.epochs << " epochs of " << c.train.minibatches << " minibatches\n";
  } else if (rl) {
    const int64_t rows = RowsPerStep(c), ahead = c.scheduler.max_lag_versions + 1;
    out << "step         " << c.train.groups_per_step << " groups x " << c.rollout.group_size
        << " samples = " << rows << " sequences, at most " << rows * c.rollout.max_new_tokens
        << " new tokens; " << c.train.steps << " steps\n";
    out << "in flight    at most " << ahead * c.train.groups_per_step << " groups open (lag at most "
        << c.scheduler.max_lag_versions << " versions), " << std::min(c.rollout.max_concurrent, ahead * rows)
        << " samples at a time\n";
  } else {
    out << "step         " << c.train.groups_per_step << " rows; " << c.train.steps << " steps\n";
  }
  if (c.model.policy.empty())
    out << "micro-batch  at most " << c.train.micro_batch_tokens << " computed tokens"
        << (c.train.recompute ? ", activations recomputed" : "") << "\n";
  const auto plan = PlanMemory(c);
  if (!plan.ok()) {
    out << "memory       not predicted: " << plan.status().message() << "\n";
    return out.str();
  }
  const ModelSizes& m = plan->model;
  out << "model        " << m.architecture << ", " << Millions(Parameters(m)) << " parameters in "
      << c.model.dtype << ", " << m.layers << " layers, width " << m.hidden << ", vocabulary " << m.vocab
      << "\n";
  if (rl) out << "kv cache     " << plan->kv_cache_tokens << " tokens a rollout worker\n";
  out << "memory       predicted about " << BytesText(plan->total()) << " in all processes and /dev/shm\n";
  for (const ProcessMemory& p : plan->processes) {
    std::string parts;
    for (const MemoryPart& part : p.parts)
      parts += (parts.empty() ? "" : ", ") + part.name + " " + BytesText(part.bytes);
    char head[64];
    std::snprintf(head, sizeof(head), "  %-11s%-10s", p.name.c_str(), BytesText(p.total()).c_str());
    out << head << " " << p.roles << (p.parts.size() > 1 ? ": " + parts : "") << "\n";
  }
  if (plan->shared_memory_bytes > 0) out << "  /dev/shm   " << BytesText(plan->shared_memory_bytes) << "\n";
  out << "disk         " << BytesText(plan->checkpoint_bytes) << " a checkpoint, up to "
      << c.checkpoint.keep + 1 << " at a time\n";
  return out.str();
}

}  // namespace tidepool::workers
