#pragma once
// How much memory a job will take on its slots, before anything is started: `tidepool train --dry-run`, and
// what a role needs when a slot changes hands. Formulas of a model's arenas are in core/model/memory_use.h
// and core/policy/memory_use.h. Here are those of a job: which slot may hold which role, how large caches and
// micro-batches are, which further models (reference, teacher, critic) stand beside the trained one, and what
// processes take that hold no model (measured).
//
// A slot that may hold both roles is planned for both at a time, or with train.offload_optimizer for the
// larger of them. Measured against predicted on the CPU: docs/design.md, Memory; on a GPU not compared
// yet. Pure apart from reading config.json; any thread.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/model/memory_use.h"
#include "core/model/spec.h"

namespace tidepool::workers {

// Shape of the model of config.json or model.init.
// kNotFound, kInvalidArgument: config.json is not there, or a key is missing or out of range.
StatusOr<model::ModelSpec> SpecOf(const ModelConfig& model);

struct ProcessMemory {
  std::string name;          // "device-0", "reward-0", "controller"
  std::string roles;         // "rollout and actor", "actor", "rollout", "grading", "decisions"
  int64_t process = 0;       // program, LibTorch, gRPC, threads
  model::MemoryUse rollout;  // without the weights, which both roles share
  model::MemoryUse actor;
  std::vector<std::pair<std::string, int64_t>> further = {};  // models beside the trained one
  bool offloads = false;  // train.offload_optimizer: the roles take turns in memory
  // A slot that is a GPU: `rollout`, `actor` and `further` are in its memory, beside its context; weights of
  // all models are with the host, too.
  bool on_gpu = false;
  int64_t context = 0;
  int64_t host_weights = 0;
  // What the trainer keeps between its steps beside the weights: optimizer, further models.
  [[nodiscard]] int64_t kept() const;
  // What stays when its roles are released: weights, and unless they are offloaded what the trainer keeps.
  [[nodiscard]] int64_t resident() const;
  // What the role takes beyond that when it is granted.
  [[nodiscard]] int64_t need(Role role) const;
  [[nodiscard]] int64_t gpu() const;    // of the GPU's memory; 0 on the CPU
  [[nodiscard]] int64_t total() const;  // of the machine's memory
  // The least of it that is enough: a released role gives back what passes where the other one lacks it.
  [[nodiscard]] int64_t least() const;
  // By part, in the slot's memory: what it is for, bytes, and what makes it smaller. Parts of 0 are left out.
  struct Part {
    std::string name;
    int64_t bytes = 0;
    const char* smaller = "";
  };
  [[nodiscard]] std::vector<Part> parts() const;
  // The largest first, and how the largest that can be made smaller is: "kv_cache 2.0 GiB, weights 1.0 GiB;
  // lower rollout.kv_cache_tokens".
  [[nodiscard]] std::string PartsText() const;

 private:
  [[nodiscard]] int64_t of_slot() const;
};
struct MemoryPlan {
  model::ModelSpec model;       // of a language model
  int64_t kv_cache_tokens = 0;  // capacity of one rollout worker
  std::vector<ProcessMemory> processes;
  // In /dev/shm of each host, where there is room: published weights of two versions (2 or more slots; with
  // cluster.weight_transport: stream they are in the workers' own memory else), what ranks of one host
  // exchange, and on the trainer's host recovery copies. Key: that makes it smaller. of_slots: it is counted
  // with the processes, each its part (train.zero: 3), and not in the sum.
  struct SharedPart {
    std::string name, key;
    int64_t bytes = 0;
    bool of_slots = false;
  };
  std::vector<SharedPart> shared_memory;
  [[nodiscard]] int64_t shared_memory_bytes() const;  // beside the processes
  [[nodiscard]] int64_t dev_shm_bytes() const;        // of_slots among it
  int64_t weights_bytes = 0;                          // of the trained model, in memory and on disk
  int64_t checkpoint_bytes = 0;                       // one on disk (workers/device/disk_plan.h)
  [[nodiscard]] int64_t total() const;                // all processes and /dev/shm
};
// What slots are for: what the job says, or to generate alone (`generate`, `eval`), whatever it says.
enum class SlotUse { kJob, kGeneration };
// Errors of SpecOf; of a policy of control tasks those of policy::SpecOfJob.
StatusOr<MemoryPlan> PlanMemory(const JobConfig& config, SlotUse use = SlotUse::kJob);

// Whether a slot may ever hold the actor's role: any slot with colocated and elastic, with split and
// multiplexed those of training.
bool MayTrain(const JobConfig& config, int64_t slot);

// The reference is the adapter that training begins with (model.lora.path), which is read at each start.
bool RefersToFirstAdapter(const JobConfig& config);

// Tokens that a rollout worker's KV cache holds: rollout.kv_cache_tokens, or what the largest number of
// concurrent samples needs, up to 256 MiB (4 GiB on a GPU); past it requests wait for room. A whole number of
// blocks.
int64_t KvCacheTokens(const JobConfig& config, const model::ModelSpec& spec);

// Bytes that a role takes when a slot is granted it, beyond what is resident on the slot at all times.
struct RoleNeeds {
  int64_t rollout = 0, actor = 0;
  int64_t offload = 0;  // what a released actor may write to disk first
};
RoleNeeds NeedsOfRoles(const MemoryPlan& plan);

}  // namespace tidepool::workers
