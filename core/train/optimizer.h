#pragma once
// AdamW (arXiv:1711.05101) over the flat arena of a model's weights, in one pass.
//
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  g after global-norm clipping
//   p = p (1 - lr wd) - lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)
//
// Weight decay applies to matrices, not to norms and biases. With bfloat16 weights the float32
// master copy is kept as what rounding cut off: 16 bits beside each weight give the master back
// exactly (bits of p = weight << 16 plus a signed 16-bit rest; a tie rounds away from zero), so a
// parameter costs 2 + 2 + 4 + 4 bytes and the bfloat16 weight is written in place, where the
// rollout reads it. With float32 weights the weights are the master copy.
//
// The norm is summed in float64 in a fixed order, so an update is a function of its inputs, whatever
// the number of threads. Thread-compatible; uses at::get_num_threads() threads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/page_buffer.h"
#include "core/model/weights.h"

namespace tidepool::train {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double max_grad_norm = 1.0;  // 0: no clipping
};

struct UpdateResult {
  bool finite = false;   // false: nothing was written
  double grad_norm = 0;  // before clipping
};

// Live bytes of the state under a name; equal names and sizes belong together.
struct NamedBytes {
  std::string name;
  std::span<std::byte> bytes;
};

class AdamW {
 public:
  // `weights` outlives the optimizer. The master copy starts as the weights. kResourceExhausted
  // without memory, kInvalidArgument if an option is out of range.
  static StatusOr<std::unique_ptr<AdamW>> Create(model::Weights& weights, const AdamWOptions& options);

  // One update by gradients [elements]. The finite check comes before the first write.
  UpdateResult Update(std::span<const float> gradients, double learning_rate);

  [[nodiscard]] int64_t updates() const { return *updates_; }
  // weights, master_rest (bfloat16 only), m, v, updates. Writing into the spans restores the state.
  std::vector<NamedBytes> State();
  // Of the state, weights apart.
  [[nodiscard]] int64_t bytes() const {
    return static_cast<int64_t>(rest_.bytes().size() + m_.bytes().size() + v_.bytes().size());
  }
  // The float32 master copy of parameter element i.
  [[nodiscard]] float Master(int64_t i) const;

 private:
  AdamW(model::Weights& weights, const AdamWOptions& options) : weights_(weights), options_(options) {}
  model::Weights& weights_;
  AdamWOptions options_;
  device::PageBuffer rest_, m_, v_, counters_;
  int64_t* updates_ = nullptr;  // in counters_
};

// Euclidean norm of all elements; not finite if one is not. Fixed order of additions.
double GlobalNorm(std::span<const float> values);

}  // namespace tidepool::train
