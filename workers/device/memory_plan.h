#pragma once
// How much memory a job will take on CPU slots, before anything is started: `tidepool train --dry-run`.
//
// The sizes are those of the code that allocates (core/train, core/model, core/engine and
// workers/device/device_roles.cc), in bytes, with P' the elements of the flat parameter space (each tensor
// rounded up to 64), w the bytes of model.dtype, T the tokens computed together:
//   weights      w P'                              one arena, shared by both roles of a worker
//   gradients    4 P'                              float32
//   optimizer    8 P' (+ 2 P' if w = 2)            moments, and what rounding cut off the master copy
//   activations  T (L A + S), A as in BlockActivationBytes; with train.recompute T (L w d + A + S)
//   head         256 V (w + 4), forward and backward of 256 rows of logits, and one copy of the largest
//   matrix kv_cache     2 L Hkv D w (tokens of rollout.kv_cache_tokens, or its default rule) engine scratch
//   of rollout.max_batched_tokens rows, 128 V w of logits process      program, LibTorch, gRPC, threads:
//   measured
// Expected is the sum of a worker's parts: the KV cache is given back while a colocated worker trains, but
// activations stay while it generates. Measured against predicted: docs/design.md, Memory. Pure apart from
// reading config.json; any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/model/spec.h"

namespace tidepool::workers {

// Sizes of a decoder as config.json or model.init gives them.
struct ModelSizes {
  std::string architecture;
  int64_t vocab = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_size = 0,
          max_position = 0;
  bool qkv_bias = false, qk_norm = false, tied = false, o_bias = false, mlp_bias = false;
  int64_t sparse_layers = 0;  // with experts in place of the MLP
  model::MoeSpec moe = {};
};
// kNotFound, kInvalidArgument: config.json is not there, or a key is missing or out of range.
StatusOr<ModelSizes> SizesOf(const ModelConfig& model);
int64_t Parameters(const ModelSizes& m);    // as people count them
int64_t FlatElements(const ModelSizes& m);  // P'
// What a training forward keeps of one block for one token, apart from its MLP: x, q, k, v, attention out, x
// after attention (and qkv with head norms) in the model's dtype, two rstd and an lse a head in float32.
int64_t AttentionActivationBytes(const ModelSizes& m, int64_t w);

struct MemoryPart {
  std::string name;  // of the list above
  int64_t bytes = 0;
};
struct ProcessMemory {
  std::string name;   // "device-0", "reward-0", "controller"
  std::string roles;  // "rollout and actor", "actor", "rollout", "grading", "decisions"
  std::vector<MemoryPart> parts;
  [[nodiscard]] int64_t total() const;
};
struct MemoryPlan {
  ModelSizes model;
  int64_t kv_cache_tokens = 0;  // capacity of one rollout worker
  std::vector<ProcessMemory> processes;
  int64_t shared_memory_bytes = 0;      // /dev/shm: published weights (split), recovery copies
  int64_t checkpoint_bytes = 0;         // one on disk; checkpoint.keep of them and one being written
  [[nodiscard]] int64_t total() const;  // all processes and /dev/shm
};
// Errors of SizesOf; kUnimplemented for a device other than cpu.
StatusOr<MemoryPlan> PlanMemory(const JobConfig& config);

// The answer of --dry-run: slots and roles, groups, sequences and tokens of a step, memory by part. What
// cannot be predicted is said in a line, so it never fails.
std::string DescribePlan(const JobConfig& config);

}  // namespace tidepool::workers
