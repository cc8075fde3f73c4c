// The self-test of deterministic mode finds a device that computes a token otherwise in another batch.
#include "core/model/forward_invariance.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/core/device/graph_device.h"
#include "tests/core/device/test_device.h"

namespace tidepool::model {
namespace {

using device::AttentionArgs;
using device::BF16;
using device::RotaryArgs;

ModelSpec Dense() {
  ModelSpec spec;
  spec.vocab_size = 300;
  spec.hidden_size = 48;
  spec.intermediate_size = 64;
  spec.layers = 3;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_size = 16;
  return spec;
}
// Of these a GPU's attention turns the queries itself where a step is recorded.
ModelSpec HeadsOf64() {
  ModelSpec spec = Dense();
  spec.head_size = 64;
  return spec;
}
ModelSpec WithExperts() {
  ModelSpec spec = Dense();
  spec.architecture = "qwen3_moe";
  spec.qk_norm = true;
  spec.moe = {.experts = 12, .experts_per_token = 2, .intermediate_size = 32, .sparse_step = 2};
  return spec;
}

TEST(ForwardInvarianceTest, ADeviceWithOneOrderOfAllSumsPasses) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const ModelSpec& spec : {Dense(), HeadsOf64(), WithExperts()}) {
      const Status tried = TryForwardInvariance(device::DeviceWithGraphs(), spec, dtype);
      EXPECT_TRUE(tried.ok()) << tried.ToString();
    }
  }
}

// What was seen on a GPU: queries that attention turns itself are rounded otherwise than those that are
// turned alone.
class TurnsOtherwiseInAttention : public device::GraphDevice {
 public:
  using GraphDevice::RotaryAttention;
  void RotaryAttention(const RotaryArgs<float>& turn, const AttentionArgs<float>& a) override {
    GraphDevice::RotaryAttention(turn, a);
    if (a.keys.rows > 4) return;  // prompts
    std::vector<float> out = Read(static_cast<const float*>(a.out), 1);
    out[0] *= 1.000001F;
    Upload(a.out, std::span<const float>(out));
  }
};

// Products alone do not show it.
TEST(ForwardInvarianceTest, ATokenThatIsDecodedOtherwiseIsNamed) {
  const auto device = std::make_shared<TurnsOtherwiseInAttention>();
  const Status tried = TryForwardInvariance(device, Dense(), DType::kFloat32);
  EXPECT_EQ(tried.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(tried.message(), "a block in float32 on " + device->name() +
                                 " gives a token other bits in another batch: token 257 of 261 decoded; set "
                                 "deterministic: false, or write cluster.device: cpu");
}

}  // namespace
}  // namespace tidepool::model
