#pragma once
// Dense layers with relu between them and a head of plain sums: the networks of an off-policy policy.
//
//   h_0 = x,  h_{k+1} = max(0, W_k h_k + b_k),  out = W h + b
//
// Products are the device's (core/device/cpu): a row's numbers do not depend on the rows beside it, nor any
// number on how many threads there are. Keeps what Backward needs of the last Forward. Thread-compatible;
// products use up to at::get_num_threads() threads.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/cpu/cpu_device.h"
#include "core/model/weights.h"

namespace tidepool::policy {

// Matrices as products read them, made once for all networks of the same weights.
class MlpWeights {
 public:
  // Layers HIDDEN0, HIDDEN1, ... (".weight", ".bias") and HEAD of `weights`, float32, which outlive this, as
  // does the device.
  MlpWeights(device::CpuDevice& device, const model::Weights& weights, const std::string& hidden,
             const std::string& head);
  // The weights changed: they are laid out anew before the next forward.
  void Changed() { stale_ = true; }
  [[nodiscard]] int64_t inputs() const { return layers_.front().in; }
  [[nodiscard]] int64_t outputs() const { return layers_.back().out; }

 private:
  friend class Mlp;
  struct Layer {
    int64_t in = 0, out = 0, padded = 0;  // padded: out in whole strips
    int64_t weight = 0, bias = 0;         // offsets in the arena
    std::shared_ptr<device::Buffer> strips;
    std::vector<float> wide;    // [padded, in]; empty where out is padded
    std::vector<float> offset;  // [padded]
    [[nodiscard]] const float* matrix(const float* base) const {
      return wide.empty() ? base + weight : wide.data();
    }
  };
  void LayOut();
  [[nodiscard]] const float* base() const;

  device::CpuDevice& device_;
  const model::Weights& weights_;
  std::vector<Layer> layers_;
  bool stale_ = true;
};

class Mlp {
 public:
  explicit Mlp(MlpWeights& weights) : weights_(weights) {}

  // x [rows, inputs], which stays there until Backward -> [rows, stride()], of which the first outputs() of a
  // row count. Valid until the next Forward.
  std::span<const float> Forward(std::span<const float> x);
  [[nodiscard]] int64_t stride() const { return weights_.layers_.back().padded; }
  // d_out [rows, stride()], zeros beyond the outputs. Gradients of the weights are added to `gradients` (the
  // weights' index; empty: none are wanted), those of x to d_x [rows, inputs], which is overwritten (empty:
  // not wanted).
  void Backward(std::span<const float> d_out, std::span<float> gradients, std::span<float> d_x);

 private:
  MlpWeights& weights_;
  int64_t rows_ = 0;
  const float* x_ = nullptr;
  std::vector<std::vector<float>> out_;  // by layer, [rows, padded]
  std::vector<float> d_, below_, wide_;
};

// Uniform in +-1/sqrt(inputs), as LibTorch's linear layers; a function of (layout, seed) alone.
void InitializeLinear(uint64_t seed, model::Weights& weights);

}  // namespace tidepool::policy
