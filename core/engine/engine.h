#pragma once
// The generation engine: continuous batching over a paged KV cache.
//
// Requests are chunks of samples (request.h). Each Step() admits what fits, computes one ragged batch
// (decoding rows first, then pieces of prefill), draws a token for every request whose tokens all have
// KV, and hands out what happened. The prompt of a group is computed once: requests that begin alike
// wait for the first of them, share its full blocks and copy the last, partly filled one; siblings that
// come later find it in the prefix tree, with the final hidden state, and compute no row for it.
//
// Admission is arithmetic: KV blocks to the end of the chunk are promised, nothing is preempted inside
// a chunk. KV of a finished chunk, or turn of an episode, stays for what follows until others need the room
// (oldest first); where it is gone it is computed again. Noise is keyed by (seed, sample, position), so where
// equal rows have equal bits (core/model/decoder.h) a sample's ids and log-probs depend on weights, prompt,
// seed and sampling alone: not on batch, chunking, sharing, eviction, max_batched_tokens or the order of
// Add().
//
// Owned by one thread; no threads of its own, but for those of its device.
// Commands take effect between steps. No function throws, but Step().

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/choices.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/engine/request.h"
#include "core/engine/stop_strings.h"
#include "core/model/memory_use.h"
#include "core/model/weights.h"

namespace tidepool::engine {

class Ranks;

struct EngineOptions {
  uint64_t seed = 0;                                 // of the run: key of its own weights' sampling noise
  std::shared_ptr<device::Device> device = nullptr;  // null: the CPU
  int64_t block_tokens = 16;                         // 1..1024
  int64_t kv_cache_tokens = 0;                       // capacity, >= block_tokens; rounded down to blocks
  int64_t max_batched_tokens = 2048;                 // rows of a step, >= max_running
  int64_t max_running = 256;                         // requests admitted at a time
  TokenBytes token_bytes = {};                       // needed by requests with stop strings only
  bool graphs = true;           // where the device has them, a step that only decodes is one launch
  bool record_routing = false;  // experts of each row into Delta::routing; nothing without experts
  Version version = {};         // of the weights as they are now
  // That have the other parts of the model, where this one leads; it outlives the engine. Null: the model is
  // whole. On the CPU, without experts.
  Ranks* ranks = nullptr;
};

class Engine {
 public:
  // `weights`, a model or an adapter on one, outlives the engine; its bytes change only between steps,
  // followed by SetVersion().
  // kInvalidArgument: an option is out of range; kResourceExhausted: the KV cache cannot be allocated.
  static StatusOr<std::unique_ptr<Engine>> Create(const model::Weights& weights, EngineOptions options);
  ~Engine();

  // Another adapter on the same model, whose requests name what this gives: they share the batches and the KV
  // cache with all others, but no KV, no names and no noise. Numbers are not used again. `adapter` as
  // Create's; it outlives its requests. `seed` as the options'. requires an engine that is whole
  int32_t AddAdapter(const model::Weights& adapter, Version version, uint64_t seed);
  // Its requests end without a delta (Drain() gives those), and nothing of it is left. requires that it was
  // added
  void RemoveAdapter(int32_t adapter);

  // kInvalidArgument: the request is wrong (unknown adapter, empty prompt, id outside the vocabulary, limits,
  // positions beyond the model's, sampling); kAlreadyExists: this attempt is here; kResourceExhausted: its
  // chunk can never fit into the KV cache (with the numbers).
  Status Add(ChunkRequest request);
  // In the place of EngineOptions::token_bytes.
  void SetTokenBytes(TokenBytes bytes);
  // Ends a request without a delta and drops its own KV. False: it is not here.
  bool Cancel(const SampleId& tid, int32_t attempt, int32_t adapter = kOwnWeights);
  // One step. A request that fails (a value that is not finite) ends with kError. Throws
  // c10::OutOfMemoryError where the device has no memory for it, and model::PeersFailed where other ranks are
  // lost; nothing but the destructor may be called then.
  StepOutput Step();
  // Is there anything to do for Step()? False while the memory is released.
  [[nodiscard]] bool HasWork() const;

  // Drops KV that was kept of this group's prompt and its samples. What running requests use stays until they
  // end.
  void ForgetGroup(GroupId gid, int32_t adapter = kOwnWeights);

  // Ends all requests between steps, or those of an adapter; a kCancelled delta each, without tokens (Step()
  // has handed them out). Their KV stays, as after a chunk.
  std::vector<Delta> Drain();
  std::vector<Delta> Drain(int32_t adapter);

  // The weights of an adapter were changed in place and are now `version`. Its running requests keep their
  // tokens. kRecompute: KV of the old weights is dropped and computed again, so every token from now on has
  // the log-probability of a clean forward of `version`. kKeep: requests go on with the KV that they have
  // (cheaper; the trainer's recomputation then differs by what the old KV changes), which serves nobody
  // else. No effect if it is the current version. Of a model, what its adapters compute has changed, too.
  void SetVersion(int32_t adapter, Version version, KvOnUpdate kv = KvOnUpdate::kRecompute);
  void SetVersion(Version version, KvOnUpdate kv = KvOnUpdate::kRecompute) {
    SetVersion(kOwnWeights, version, kv);
  }

  // Frees the KV cache and the scratch of steps (requests keep their tokens and wait); returns the bytes
  // freed.
  int64_t ReleaseMemory();
  Status AcquireMemory();  // kResourceExhausted; no effect if it is there

  // What is held at present: kv and workspace.
  [[nodiscard]] model::MemoryUse held() const;

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::engine
