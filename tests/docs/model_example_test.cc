// The family of docs/adding_a_model.md, as it stands there.
#include <gtest/gtest.h>

#include "adding_a_model_0.inc"
#include "core/model/families/family.h"

namespace tidepool::model {
namespace {

TEST(ModelExampleTest, FamilyOfThePageReadsAndRefuses) {
  const nlohmann::json good = {{"hidden_size", 64}, {"num_attention_heads", 4}, {"layer_norm_eps", 1e-3}};
  const Family family = FamilyPlugin_tern();
  ModelSpec spec;
  ASSERT_EQ(family.read(ConfigReader("config.json", good), spec), OkStatus());
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_EQ(spec.rms_norm_eps, 1e-3);
  EXPECT_EQ(spec.max_position, 4096);
  nlohmann::ordered_json written;
  family.write(spec, written);
  EXPECT_EQ(written["layer_norm_eps"], 1e-3);

  nlohmann::json capped = good;
  capped["logit_softcapping"] = 30.0;
  const Status status = family.read(ConfigReader("config.json", capped), spec);
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("logit_softcapping"), std::string::npos);
}

}  // namespace
}  // namespace tidepool::model
