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
// Slots that train may divide more than the batch (TrainingLayout). Of t slots with parts of a model each
// computes 1 / t, at the profile's part_efficiency; w: bytes of a weight, d: width of the residual stream,
// T: tokens of a share. A collective takes its bytes over the link (one host) or the network, and a fixed
// time beside; none is hidden behind what is computed.
//
//   a micro-batch (3 w + 8) P / t bytes                 weights are read three times, gradients added to
//   sums of t     (2 + 4 L) w d T, all-reduced          after the embedding, each half of a block and the
//                                                       head, forward and backward; 2 L more if recomputed
//   weights       w P, gathered by t                    after the step
//   zero 0        4 P / t, all-reduced
//   zero 1        4 P / t, reduce-scattered             and w P / t, gathered
//   zero 2        the same, after each micro-batch
//
// F and BW are sustained rates of all devices of a slot together, times `efficiency`. A sum of steps whose KV
// grows by b tokens each is taken in closed form. Pure.

#include <cstdint>

#include "core/base/hardware.h"
#include "core/base/status.h"

namespace tidepool::scheduler {

// kInvalidArgument naming the field that is zero, negative or not finite.
Status CheckProfile(const HardwareProfile& profile);

// How slots that train divide a step.
struct TrainingLayout {
  int64_t data = 1;           // shares of the batch; 1 or more
  int64_t tensor = 1;         // slots with parts of one model, and the same share; 1 or more
  int64_t zero = 0;           // what shares divide beside the batch: 1: the optimizer, 2: gradients, too
  int64_t micro_batches = 0;  // of a share; 0: what each costs is not counted, sums are made once
  bool one_host = false;      // slots meet over the link of a host
};

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
  // One optimizer step by one slot, of a share of so many tokens, without collectives.
  [[nodiscard]] double TrainShare(const TrainingLayout& layout, double tokens, double sum_squares,
                                  bool recompute, double efficiency) const;
  // What slots exchange in it.
  [[nodiscard]] double Collectives(const TrainingLayout& layout, double tokens, bool recompute) const;
  // Of rows that are trained, by one slot.
  [[nodiscard]] double Score(double tokens, double sum_squares, double efficiency) const;
  // Of the fp32 gradients over `slots` slots on several hosts: each device sums its part of the model with
  // its like in the other slots. 0 on one slot.
  [[nodiscard]] double AllReduce(int64_t slots) const;
  [[nodiscard]] double weight_bytes() const { return model_.parameters * model_.weight_bytes; }
  // KV tokens that fit a slot beside the weights, with `reserve` of the memory kept free.
  [[nodiscard]] int64_t KvTokens(double reserve = 0.1) const;
  [[nodiscard]] const HardwareProfile& hardware() const { return hardware_; }
  [[nodiscard]] const ModelShape& model() const { return model_; }
  [[nodiscard]] int64_t devices() const { return devices_; }

 private:
  [[nodiscard]] double Forward(double tokens, double sum_squares) const;  // FLOP
  // Of n slots that send a ring's `times` rounds of n - 1 parts each.
  [[nodiscard]] double Ring(int64_t slots, double times, double bytes, bool one_host) const;

  HardwareProfile hardware_;
  ModelShape model_;
  int64_t devices_;
  double flops_, bandwidth_;
};

}  // namespace tidepool::scheduler
