#pragma once
// A decoder with a value head: v = score . h, a number for the state before each response token. A critic of
// PPO is one, and a reward model reads the number after the last token. Forward, hand-written backward, AdamW
// with a state of its own.
//
// The head's products are formed in float64 in a fixed order, token by token, so a value depends on its own
// hidden state alone. Not thread-safe; one thread owns it.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/decoder.h"
#include "core/model/memory_use.h"
#include "core/model/weights.h"
#include "core/train/batch.h"
#include "core/train/gradient_shard.h"
#include "core/train/optimizer.h"
#include "core/train/scoring.h"

namespace tidepool::train {

struct ValueModelOptions {
  AdamWOptions optimizer;
  int64_t micro_batch_tokens = 2048;
  bool recompute = false;
  std::shared_ptr<device::Device> device;  // required
  Shard shard = {};                        // of the optimizer's state
  bool share_gradients = false;            // with a shard: its interval's alone
};

// [row][response token]: value of the state before the token; rows not among `places` stay empty. What a
// reward model makes of a row is the value of the state after its last token: that of one token more.
// requires a value head in the weights, which are the decoder's
StatusOr<std::vector<std::vector<float>>> ValuesOf(const model::Weights& weights, model::Decoder& decoder,
                                                   int64_t micro_batch_tokens, std::span<const Row> rows,
                                                   std::span<const int64_t> places,
                                                   const ScoringProgress& progress = nullptr);

class ValueModel {
 public:
  // `weights` has spec().value_head and outlives this. The optimizer updates them where the device has them,
  // and the host's when it is told to.
  static StatusOr<std::unique_ptr<ValueModel>> Create(model::Weights& weights,
                                                      const ValueModelOptions& options);

  // ValuesOf the present weights.
  StatusOr<std::vector<std::vector<float>>> Values(std::span<const Row> rows, std::span<const int64_t> places,
                                                   const ScoringProgress& progress = nullptr);

  // Forward and backward of the rows rows[micro] (of packing.h): `loss` is given their values
  // [micro.size()][tokens] in the order of `order` (places in rows) and fills the slopes, which come with
  // zeros. Adds to the gradients.
  using Loss =
      std::function<Status(std::span<const int64_t> order, const std::vector<std::vector<double>>& values,
                           std::vector<std::vector<double>>& slopes)>;
  Status MicroStep(std::span<const Row> rows, std::span<const int64_t> micro, const Loss& loss);

  [[nodiscard]] model::Gradients& gradients() { return gradients_; }
  [[nodiscard]] GradientShard* gradient_shard() { return gradient_shard_; }  // null: they are whole
  [[nodiscard]] AdamW& optimizer() { return *optimizer_; }
  [[nodiscard]] const model::Weights& weights() const { return weights_; }
  void WeightsChanged() { decoder_.WeightsChanged(); }  // the host's were written
  void ReleaseScratch();
  [[nodiscard]] model::MemoryUse held() const {
    return {.optimizer = optimizer_->bytes(),
            .gradients = gradients_.held_bytes(),
            .activations = decoder_.held_bytes()};
  }

 private:
  ValueModel(model::Weights& weights, const ValueModelOptions& options);
  std::unique_ptr<model::GradientKeeper> Keeper();

  model::Weights& weights_;
  const ValueModelOptions options_;
  model::Decoder decoder_;
  GradientShard* gradient_shard_ = nullptr;  // which keeps them
  model::Gradients gradients_;
  std::unique_ptr<AdamW> optimizer_;
  int64_t score_ = -1;  // place of the head among the parameters
};

}  // namespace tidepool::train
