#pragma once
// How many bytes a model takes in training and in generation, before anything is allocated. The one set of
// formulas for `tidepool train --dry-run`, for the proof of free memory when a slot changes hands, and for
// benchmarks; MemoryUse is also what the roles of a device report of themselves. No LibTorch.
//
// P: elements of the flat parameter space (layout.h), w: bytes of the model's dtype, T: tokens computed
// together, L: layers, V: vocabulary. d, q, kv: widths of the residual stream, of all query heads, of all key
// heads.
//   weights      w P                        one arena, shared by both roles of a process
//                + w P                      where the CPU trains it: laid out for products, for both roles
//                + LaidOutPartBytes         in its place, of ranks that share the weights
//   optimizer    8 P (+ 2 P if w = 2)       moments, and what rounding cut off the float32 master copy
//                where an adapter of P' elements is trained: P' in place of P, here, below and on the CPU
//                above, where the model stands in shared memory (workers/data/host_base.h); a GPU has it, too
//   gradients    4 P                        float32
//                SharedGradientBytes        of ranks that share them
//   activations  T (L A + S)                A: what a training forward keeps of a block,
//                                           S: buffers of one block and of its backward.
//                                           With recompute T (L w d + A + S)
//   workspace    logits of some rows, and what products take: blocks of both operands for each thread
//                and a block of their sums; what attention takes for each thread, and parts of rows that
//                threads share
//                On a GPU what LibTorch keeps for cuBLAS, and partial sums of attention, with the room that
//                graphs leave. Jobs ran on a GPU under this plan; what they took was not compared with it.
//   kv           2 L kv w for each token of the cache,
//                and the experts that were chosen where they are recorded

#include <cstdint>
#include <optional>

#include "core/model/adapter.h"
#include "core/model/spec.h"

namespace tidepool::model {

// Bytes by arena.
struct MemoryUse {
  int64_t weights = 0, optimizer = 0, gradients = 0, activations = 0, workspace = 0, kv = 0;
  // What stays when a role is released.
  [[nodiscard]] int64_t resident() const { return weights + optimizer; }
  // What a role takes when it works and gives back when it is released.
  [[nodiscard]] int64_t passing() const { return gradients + activations + workspace + kv; }
  [[nodiscard]] int64_t total() const { return resident() + passing(); }
  MemoryUse& operator+=(const MemoryUse& other);
};

int64_t ParameterCount(const ModelSpec& spec);  // as people count them, without padding
int64_t WeightBytes(const ModelSpec& spec, DType dtype);
// A second copy that the CPU's products read, beside weights that are trained; 0 where there is none.
int64_t LaidOutBytes(const ModelSpec& spec, DType dtype);
// Of it the most that one part has (layout.h GradientParts): all there is with Weights::LayOutByParts.
int64_t LaidOutPartBytes(const ModelSpec& spec, DType dtype);
int64_t OptimizerBytes(const ModelSpec& spec, DType dtype);
// Of what is trained of a model: an adapter, or all of it.
int64_t TrainedElements(const ModelSpec& spec, const std::optional<AdapterSpec>& adapter);
int64_t OptimizerBytes(int64_t elements, DType dtype);
// Of a rank that keeps the gradients of `owned` elements alone, at most: these, the part of the model that a
// backward is at, the part before it, and the embedding where it is the head, too (layout.h GradientParts).
int64_t SharedGradientBytes(const ModelSpec& spec, int64_t owned);
// What a training forward keeps of the attention part of one block for one token.
int64_t AttentionActivationBytes(const ModelSpec& spec, DType dtype);

// Rows of logits that a trainer holds at a time. Each time the head and its gradient are read and the latter
// is written once, which took a third of the head's time with 256.
inline constexpr int64_t kHeadRows = 1024;
// Of an engine: products are at full speed from 64 rows up.
inline constexpr int64_t kEngineHeadRows = 128;

struct TrainingSizes {
  int64_t tokens = 0;  // computed together: train.micro_batch_tokens or less
  bool recompute = false;
  int64_t threads = 1;  // of the CPU
  bool gpu = false;
  int64_t decoded_keys = 256;  // of the rows that a GPU decodes: of a few, or with deterministic of all
  std::optional<AdapterSpec> adapter = {};
};
// Of the trained model: weights, optimizer, gradients, activations, workspace.
MemoryUse TrainingMemory(const ModelSpec& spec, DType dtype, const TrainingSizes& sizes);

struct GenerationSizes {
  int64_t kv_tokens = 0;  // capacity of the cache
  int64_t rows = 0;       // of an engine step, at most
  int64_t keys = 0;       // of a sample, at most
  bool record_routing = false;
  int64_t threads = 1;  // of the CPU
  bool gpu = false;
  // Where it is a GPU: samples at a time, at most; rows of a step that it decodes: theirs, or with
  // deterministic all; whether steps that only decode run as graphs.
  int64_t running = 0;
  int64_t decoded = 0;
  bool graphs = false;
};
// Of the engine alone: kv, workspace.
MemoryUse GenerationMemory(const ModelSpec& spec, DType dtype, const GenerationSizes& sizes);
int64_t KvTokenBytes(const ModelSpec& spec, DType dtype);

}  // namespace tidepool::model
