#pragma once
// AdamW (arXiv:1711.05101) over the flat arena of a model's weights, where a device has them.
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
// With a shard an optimizer has moments and rest of its rank's interval of the space alone, and updates these
// weights alone; what the ranks then tell each other is core/train/group_update.h.
//
// Moments and rest are the device's memory, and its kernels make the update (core/device/arguments.h); only
// the norm comes to the host. The host's weights follow when somebody reads them (model::DeviceWeights). The
// norm is summed in float64 in a fixed order, so an update is a function of its inputs. Not thread-safe: who
// owns the device owns this; State may be read by others while nothing is updated (core/device/byte_store.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/byte_store.h"
#include "core/device/device.h"
#include "core/model/weights.h"
#include "core/sharding/intervals.h"

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

// Live bytes of the state under a name; equal names, sizes and intervals belong together.
struct NamedBytes {
  std::string name;
  device::ByteStore bytes;
  // Of a part that ranks share: which bytes of it these are, and how many it has on all ranks.
  struct Piece {
    sharding::Interval of;
    int64_t whole = 0;
  };
  std::optional<Piece> piece = std::nullopt;
  model::Part part = {};  // of the model, with an index of its own; the rest is with other ranks
};

// Gradients of a device, from an element of the space on.
struct FlatGradients {
  const float* values = nullptr;
  int64_t from = 0;
  [[nodiscard]] const float* At(int64_t element) const { return values + (element - from); }
};

class AdamW {
 public:
  // Of `weights` as they are in `on_device`; both outlive the optimizer. The master copy starts as the
  // weights. kResourceExhausted without memory, kInvalidArgument if an option is out of range, or nothing is
  // left for this rank of the shard.
  static StatusOr<std::unique_ptr<AdamW>> Create(model::Weights& weights, model::DeviceWeights& on_device,
                                                 const AdamWOptions& options, const Shard& shard = {});

  // One update by gradients [elements], which are the device's. The finite check comes before the first
  // write.
  UpdateResult Update(const float* gradients, double learning_rate) {
    return Update({gradients}, learning_rate, SquareSum({gradients}, {0, elements()}));
  }
  // The same with the sum of squares of all gradients, which are read in owned() alone.
  // `wrote`: called now and then with the element of the space up to which this rank's weights are written,
  // on devices with the host's memory.
  UpdateResult Update(const FlatGradients& gradients, double learning_rate,
                      const device::SquareParts& square_sum,
                      const std::function<void(int64_t to)>& wrote = {});
  // Of the gradients in this interval, on the device; to be added up part by part. What every part of a model
  // has counts in the first one. Exact on devices that sum in tiles, so the same however the gradients are
  // divided; else all of it is in one part.
  [[nodiscard]] device::SquareParts SquareSum(const FlatGradients& gradients, const sharding::Interval& of);

  [[nodiscard]] int64_t updates() const { return updates_; }
  [[nodiscard]] int64_t elements() const { return on_device_.elements(); }  // of the space
  [[nodiscard]] const Shard& shard() const { return shard_; }
  [[nodiscard]] const sharding::Interval& owned() const { return owned_; }
  [[nodiscard]] model::DeviceWeights& on_device() { return on_device_; }
  [[nodiscard]] int64_t weight_bytes() const { return model::Bytes(weights_.dtype()); }  // of one
  // weights (the host's), master_rest (bfloat16 only), m, v, updates. Writing into them restores the state,
  // with DeviceWeights::Upload after it.
  std::vector<NamedBytes> State();
  // Of the state, weights apart.
  [[nodiscard]] int64_t bytes() const;

 private:
  AdamW(model::Weights& weights, model::DeviceWeights& on_device, const AdamWOptions& options,
        const Shard& shard)
      : weights_(weights),
        on_device_(on_device),
        options_(options),
        shard_(shard),
        owned_(sharding::Owned(on_device.elements(), shard)) {}
  template <typename T>
  void UpdateAll(const FlatGradients& gradients, double learning_rate,
                 const std::function<void(int64_t to)>& wrote);
  void AddSquares(const FlatGradients& gradients, const sharding::Interval& of, device::SquareParts& sum);

  model::Weights& weights_;
  model::DeviceWeights& on_device_;
  AdamWOptions options_;
  const Shard shard_;
  const sharding::Interval owned_;  // of which there are moments and rest
  std::shared_ptr<device::Buffer> rest_, m_, v_, square_sum_;
  int64_t updates_ = 0;
};

}  // namespace tidepool::train
