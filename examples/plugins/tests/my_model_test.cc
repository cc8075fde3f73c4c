#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/model/families/family.h"

namespace tidepool::model {
namespace {

// A family that is done is in the lists of tests/core/model as well (docs/adding_a_model.md, "Checks that it
// has to pass").
TEST(MyModelTest, ReadsItsConfigAndRefusesByName) {
  const Family* family = FindFamily("my_model");
  ASSERT_NE(family, nullptr);
  nlohmann::json config = {{"hidden_size", 64}, {"num_attention_heads", 4}};
  ModelSpec spec;
  ASSERT_EQ(family->read(ConfigReader("config.json", config), spec), OkStatus());
  EXPECT_EQ(spec.max_position, 4096);
  config["logit_softcapping"] = 30.0;
  EXPECT_EQ(family->read(ConfigReader("config.json", config), spec).code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace tidepool::model
