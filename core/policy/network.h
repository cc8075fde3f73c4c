#pragma once
// Forward and backward of the actor and critic, in plain loops over rows.
//
// A row's numbers never depend on the rows beside it: every sum runs in one fixed order, so the
// log-probability and value that the trainer computes for a step are those that the rollout recorded, bit for
// bit, whatever was played or trained together. Gradients are summed over blocks of 64 rows in their order,
// so they do not depend on the number of threads. A squashed policy's forward is that of mlp.h, for which the
// first of these holds, too. Thread-compatible; Forward and Backward use up to
// at::get_num_threads() threads for large batches.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/model/weights.h"
#include "core/policy/mlp.h"
#include "core/policy/spec.h"

namespace tidepool::policy {

// As spec.h says; a pure function of (spec, seed).
void InitializePolicy(const PolicySpec& spec, uint64_t seed, model::Weights& weights);

class Network {
 public:
  // `weights` outlives this and has PolicyLayout(spec).
  Network(const PolicySpec& spec, const model::Weights& weights);

  // The weights changed: they are arranged anew before the next forward.
  void WeightsChanged() {
    stale_ = true;
    if (actor_weights_ != nullptr) actor_weights_->Changed();
  }

  // observations [rows, observation_size] -> heads [rows, head_size] and values [rows], which a squashed
  // policy has none of. Keeps what Backward needs.
  void Forward(std::span<const float> observations, std::vector<float>& heads, std::vector<float>& values);
  // Gradients of the last Forward's rows, added to `gradients` (the weights' index). d_heads [rows, actions],
  // d_values [rows]. log_std has its gradient elsewhere (distribution.h). requires that it is not squashed:
  // sac_trainer.h has that.
  void Backward(std::span<const float> d_heads, std::span<const float> d_values, std::span<float> gradients);

  [[nodiscard]] const PolicySpec& spec() const { return spec_; }
  [[nodiscard]] std::span<const float> log_std() const;  // [actions]; a parameter of its own, else empty
  [[nodiscard]] int64_t log_std_offset() const { return log_std_; }

 private:
  struct Dense {
    int64_t in = 0, out = 0, padded = 0;  // padded: out in whole vectors
    int64_t weight = 0, bias = 0;         // offsets in the arena
    bool tanh = false;
    std::vector<float> across;  // [in, padded]: the matrix as columns, for sums over whole vectors of outputs
    std::vector<float> offset;  // [padded]
  };
  void Arrange();
  void Run(const Dense& layer, const float* in, int64_t stride, int64_t rows, std::vector<float>& out) const;
  // d_out [rows, padded] (by the layer's result) becomes the gradient before tanh; d_in [rows, in's stride]
  // is added to.
  void RunBack(const Dense& layer, const float* in, int64_t stride, const std::vector<float>& out,
               std::vector<float>& d_out, std::vector<float>* d_in, int64_t d_stride, int64_t rows,
               std::span<float> gradients) const;

  PolicySpec spec_;
  const model::Weights& weights_;
  std::vector<Dense> actor_, critic_;  // hidden layers
  Dense policy_, value_;
  int64_t log_std_ = -1;
  bool stale_ = true;

  int64_t rows_ = 0;
  std::vector<float> observations_;
  std::vector<std::vector<float>> actor_out_, critic_out_;  // by layer, [rows, padded]
  std::vector<float> policy_out_, value_out_;

  // Squashed alone.
  std::unique_ptr<device::CpuDevice> device_;
  std::unique_ptr<MlpWeights> actor_weights_;
  std::unique_ptr<Mlp> squashed_;
};

}  // namespace tidepool::policy
