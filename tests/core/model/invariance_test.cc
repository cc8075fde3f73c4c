#include "core/model/invariance.h"

#include <gtest/gtest.h>

namespace tidepool::model {
namespace {

// Tells a developer whether deterministic mode works on this machine before the bit tests fail in
// less readable ways.
TEST(InvarianceTest, ProductsOfQuickstartAreInvariantHere) {
  ModelSpec s;
  s.vocab_size = 53;
  s.hidden_size = 128, s.intermediate_size = 384, s.layers = 4;
  s.heads = 4, s.kv_heads = 2, s.head_size = 32;
  EXPECT_EQ(SelfTestBatchInvariance(s, DType::kFloat32), OkStatus());
}

TEST(InvarianceTest, ProductsOfSmolLm2AreInvariantHere) {
  ModelSpec s;
  s.vocab_size = 49152;
  s.hidden_size = 576, s.intermediate_size = 1536, s.layers = 30;
  s.heads = 9, s.kv_heads = 3, s.head_size = 64;
  EXPECT_EQ(SelfTestBatchInvariance(s, DType::kBFloat16), OkStatus());
}

TEST(InvarianceTest, RefusesASpecThatIsNone) {
  EXPECT_EQ(SelfTestBatchInvariance(ModelSpec{}, DType::kFloat32).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::model
