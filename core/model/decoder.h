#pragma once
// The one forward for rollout and training, and its hand-written backward.
//
// Rows are tokens, packed without padding: [rows]. A row's keys and values are written to a *slot*
// of a KV memory, and the row attends to the first `length` slots of a list of runs of slots. The
// engine's slots are those of its paged cache; the trainer's are the rows of the packed batch, and
// the rows of a group share the slots of their prompt. Attention takes a row's keys in blocks by their
// positions and adds them up in a fixed order, so the result of a row depends on its own inputs
// alone: not on the batch, not on how slots are cut into runs. Where products are so too
// (Device::batch_invariant), prefill, decode and training are bit-equal.
//
// Not thread-safe; one thread owns a Decoder and its device.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/own_weights.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/model/spec.h"
#include "core/model/weights.h"

namespace tidepool::model {

// Rows that follow each other and are computed with one adapter.
struct AdapterRows {
  int32_t adapter = kOwnWeights;  // or what Decoder::AddAdapter gave
  int64_t rows = 0;
};

// What a packed set of rows attends to. All arrays outlive the call.
struct RaggedBatch {
  std::span<const int32_t> ids;        // [rows] token ids, in [0, vocab)
  std::span<const int32_t> positions;  // [rows] place in the sequence, from 0
  std::span<const int32_t> slots;      // [rows] slot where the row's K and V are written
  std::span<const int32_t> first_run;  // [rows] index into runs of the row's sequence
  std::span<const int32_t> lengths;    // [rows] keys attended, the row itself included (= positions + 1)
  std::span<const device::KvRun>
      runs;  // runs of slots in order of position; a row reads from its first_run on
  // Mixture of experts, [sparse layers, rows, K] expert ids, each row's by falling weight. The order counts:
  // the same set in another order changes bfloat16 sums. `experts`: taken instead of the router's choice
  // (their weights are still the router's), a row of -1 is left to the router; empty: the router chooses.
  // `routed`: gets what was used; may be null.
  std::span<const int32_t> experts = {};
  std::vector<int32_t>* routed = nullptr;
  // Of all rows, in their order; empty: all are of the decoder's own weights, as in training.
  std::span<const AdapterRows> adapters = {};
  // The first of kFillRowsMax slots (graph_rows.h) that are no token's. Where it is named and the device has
  // graphs, rows that are sequences of their own run as one, filled up with rows in these slots, and the
  // result stands until the next forward. -1: no graphs.
  int32_t fill_slot = -1;
};

// K and V of all layers, each [layers * slots, kv_heads * head_size] in the model's dtype, on the device.
struct KvMemory {
  device::View k, v;
};

// Activations kept by a training forward; defined in decoder_impl.h.
struct SavedActivations;
struct SavedDeleter {
  void operator()(SavedActivations*) const;
};
using SavedPtr = std::unique_ptr<SavedActivations, SavedDeleter>;

class Decoder {
 public:
  // `weights` are the host's and outlive the decoder. Of an adapter: what its base computes, changed by it. A
  // device that cannot read them where they stand gets a copy, one for all decoders of these weights on it:
  // what an optimizer writes there, all of them compute with. Their bytes may change between calls (new
  // versions), never during one; then WeightsChanged(). `part`: of the model (cut.h); everything that it
  // computes then needs the other ranks (UsePeers), which compute the same rows. On devices that sum in tiles
  // the results of two, three and four ranks have the bits of the whole model's, but where they cut the inner
  // width into odd parts (sum_cuts.h). Where experts are divided each rank has rows of its own, and every
  // forward and backward of one of them is made by all, by Serve where they have no rows for it.
  Decoder(const Weights& weights, std::shared_ptr<device::Device> device, const Part& part = {});
  ~Decoder();

  // Of this part, for what follows; they outlive it, or null.
  void UsePeers(Peers* peers);
  // With divided experts: the gradient of an expert is formed of each rank's rows apart, and these are added
  // up in the order of the ranks, as ranks that each have all experts add theirs up. Takes the place of a sum
  // over all rows.
  void SumEachRankApart();
  // An adapter on this decoder's model (where that is an adapter's: on its base) for rows that name it
  // (RaggedBatch::adapters). It outlives the decoder, or is removed before; its bytes may change as those of
  // the weights. The model's products are of all rows of a batch at once, and what a row gets of its adapter
  // depends on that row and the adapter alone. Numbers are not used again. requires the whole model
  int32_t AddAdapter(const Weights& adapter);
  void RemoveAdapter(int32_t adapter);  // requires one that was added

  [[nodiscard]] const ModelSpec& spec() const;  // of the part
  [[nodiscard]] device::Device& device() const;
  void WeightsChanged(int32_t adapter = kOwnWeights);
  [[nodiscard]] DeviceWeights& weights();  // that are trained: of an adapter, it alone

  // Final-normed hidden states [rows, hidden] in the model's dtype. Writes K and V of the rows into `kv`.
  device::Array Forward(const RaggedBatch& batch, const KvMemory& kv) const;

  // Logits [n, vocab] (model's dtype product, then widened to float32 by the consumer) of hidden[n, hidden];
  // of a part: of its own tokens, which begin at first_token().
  // `adapters`: of whom the rows are, as in RaggedBatch.
  device::Array Logits(const device::View& hidden, std::span<const AdapterRows> adapters = {}) const;
  [[nodiscard]] int64_t first_token() const;
  // Where sums over the vocabulary are cut, for DrawTokens.
  [[nodiscard]] const device::SumTiles& vocabulary() const;
  // As model::TokenLogProbs and its backward (row_operations.h), with ids of the whole vocabulary. No rank
  // sees logits of another: a few numbers a row are exchanged.
  void TokenLogProbs(const device::View& logits, std::span<const int32_t> ids, float temperature,
                     std::span<float> logprobs, std::span<float> entropy = {},
                     std::span<float> lse = {}) const;
  void TokenLogProbsBackward(const device::View& logits, std::span<const int32_t> ids, float temperature,
                             std::span<const float> lse, std::span<const float> entropy,
                             std::span<const float> dlogprobs, std::span<const float> dentropy) const;

  // The training forward: same numbers, keeps what the backward needs (with `recompute`, only block
  // inputs). The KV memory is the batch itself: slots must be 0..rows-1 in order.
  std::pair<device::Array, SavedPtr> ForwardTraining(const RaggedBatch& batch, bool recompute) const;

  // Adds the gradient of every parameter (of an adapter, of its own alone) to `grads` (same flat index as the
  // weights, float32) given
  // d loss / d hidden [rows, hidden] (model's dtype). Consumes `saved`. With experts, adds the gradient of
  // balance_scale * LoadBalanceLoss(saved).
  void Backward(SavedPtr saved, const device::View& grad_hidden, Gradients& grads,
                double balance_scale = 0) const;
  // With divided experts, what the other ranks' forward and backward ask of this rank's experts; nothing
  // elsewhere. `recompute`: theirs, and the gradients are added to.
  void Serve() const;  // for Forward
  [[nodiscard]] SavedPtr ServeTraining(bool recompute) const;
  void ServeBackward(SavedPtr saved, Gradients& grads) const;
  // How many forwards the rank has that has the most, `mine` being those of this one; mine, where none needs
  // another. They serve each other until all have made theirs.
  [[nodiscard]] int64_t Rounds(int64_t mine) const;
  // How unevenly the experts are used (Switch Transformer, arXiv:2101.03961, equations 4-6; as the reference
  // library computes it, over the rows of all sparse layers together): E sum_e f_e P_e, with f_e the share of
  // rows that chose e (sum K) and P_e the mean probability. K when even; 0 without experts.
  [[nodiscard]] double LoadBalanceLoss(const SavedPtr& saved) const;
  // The head's part: logits = hidden · head^T. dlogits [n, vocab] in the model's dtype. Returns
  // d hidden [n, hidden]; adds to the head's (or tied embedding's) gradient.
  device::Array LogitsBackward(const device::View& hidden, const device::View& dlogits,
                               Gradients& grads) const;
  // Of each row of `values` [n, this part's tokens] the sum over the whole vocabulary.
  [[nodiscard]] std::vector<float> SumOverVocabulary(std::span<const float> values) const;
  // Numbers of all ranks, one rank after the other; `mine` itself where there is one part.
  [[nodiscard]] std::vector<float> OfAllRanks(std::span<const float> mine) const;

  // Gives back the memory that is kept between calls for activations. The next call takes it again.
  void ReleaseScratch();
  [[nodiscard]] int64_t held_bytes() const;       // of that memory, without the device's own
  [[nodiscard]] int64_t recorded_graphs() const;  // since it was made
  // How often there was no memory for one, so that steps ran without until ReleaseScratch().
  [[nodiscard]] int64_t refused_graphs() const;

 private:
  friend struct SavedActivations;
  friend struct SavedDeleter;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::model
