#pragma once
// How long things take on named hardware: the one model behind simulation, plans and forecasts.
//
//   decode step   t0 + max((W + KV) / BW, 2 P b / F)    W: bytes of the weights, KV: bytes read from caches,
//                                                       b: samples in the batch, P: active parameters
//   KV cache      2 L Hkv D bytes a token               L layers, Hkv heads of D elements
//   prefill       2 P + 2 L Hq D S FLOP a token         at a context of S tokens
//   training      3 x the forward pass (4 x where activations are recomputed)
//   scoring       1 x the forward pass: log-probabilities under another model of that shape
//   optimizer     28 bytes a parameter
//   all-reduce    2 (n - 1) / n x 4 bytes a parameter   over the network, after the backward pass: a ring of
//                                                       n slots
//
// F and BW are sustained rates of all devices of a slot together, times `efficiency`. A sum of steps whose KV
// grows by b tokens each is taken in closed form. Pure.

#include <cstdint>

#include "core/base/hardware.h"
#include "core/base/status.h"

namespace tidepool::scheduler {

// kInvalidArgument naming the field that is zero, negative or not finite.
Status CheckProfile(const HardwareProfile& profile);

class CostModel {
 public:
  // `devices` of a slot work together at `efficiency` of their summed rates.
  CostModel(const HardwareProfile& hardware, const ModelShape& model, int64_t devices, double efficiency = 1);

  // Of `steps` decode steps, the KV growing by `batch` tokens each.
  [[nodiscard]] double DecodeSteps(int64_t batch, double kv_tokens, int64_t steps) const;
  // Whole steps that end within `seconds`.
  [[nodiscard]] int64_t StepsWithin(int64_t batch, double kv_tokens, double seconds) const;
  [[nodiscard]] double Prefill(double tokens, double context) const;
  // One optimizer step on `slots` slots together; sum_squares: of the lengths (attention).
  [[nodiscard]] double Train(double tokens, double sum_squares, int64_t slots, bool recompute,
                             double efficiency) const;
  // Of rows that are trained, by one slot.
  [[nodiscard]] double Score(double tokens, double sum_squares, double efficiency) const;
  // Of the fp32 gradients over `slots` slots: each device sums its part of the model with its like in the
  // other slots. 0 on one slot.
  [[nodiscard]] double AllReduce(int64_t slots) const;
  [[nodiscard]] double weight_bytes() const { return model_.parameters * model_.weight_bytes; }
  // KV tokens that fit a slot beside the weights, with `reserve` of the memory kept free.
  [[nodiscard]] int64_t KvTokens(double reserve = 0.1) const;
  [[nodiscard]] const HardwareProfile& hardware() const { return hardware_; }
  [[nodiscard]] const ModelShape& model() const { return model_; }
  [[nodiscard]] int64_t devices() const { return devices_; }

 private:
  [[nodiscard]] double Forward(double tokens, double sum_squares) const;  // FLOP

  HardwareProfile hardware_;
  ModelShape model_;
  int64_t devices_;
  double flops_, bandwidth_;
};

}  // namespace tidepool::scheduler
