#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/hash.h"
#include "tests/conformance_text/text_operations.h"
#include "tests/core/files/gguf_builder.h"
#include "tests/core/files/test_folder.h"

namespace tidepool::text {
namespace {

using Json = nlohmann::ordered_json;

TEST(TextConformanceTest, AnswersEachOperation) {
  TestFolder folder;
  ASSERT_TRUE(WriteCharacterTokenizer("0123456789+", folder.path()).ok());
  files::GgufBuilder builder;
  builder.Tensor("x", {2}, 0, files::Floats({1.0F, 2.0F}));
  const std::string gguf = folder.Write("m.gguf", builder.Build());
  TextConformance conformance;
  EXPECT_EQ(*conformance.Answer(
                {{"id", 1}, {"op", "tokenizer.encode"}, {"tokenizer", folder.path()}, {"text", "1+"}}),
            Json({{"id", 1}, {"ids", {4, 13}}}));
  EXPECT_EQ(*conformance.Answer({{"id", "a"},
                                 {"op", "tokenizer.decode"},
                                 {"tokenizer", folder.path()},
                                 {"ids", {1, 4}},
                                 {"skip_special", true}}),
            Json({{"id", "a"}, {"text", "1"}}));
  EXPECT_EQ(*conformance.Answer({{"id", 2},
                                 {"op", "chat.render"},
                                 {"tokenizer", folder.path()},
                                 {"messages", Json::array({{{"role", "user"}, {"content", "1"}}})}}),
            Json({{"id", 2}, {"text", "<bos>1"}}));
  EXPECT_EQ(*conformance.Answer(
                {{"id", 3}, {"op", "gguf.tensor"}, {"file", gguf}, {"name", "x"}, {"dtype", "f32"}}),
            Json({{"id", 3}, {"sha256", Sha256Hex(files::Floats({1.0F, 2.0F}))}}));
  EXPECT_EQ(*conformance.Answer(
                {{"id", 3}, {"op", "gguf.tensor"}, {"file", gguf}, {"name", "x"}, {"dtype", "bf16"}}),
            Json({{"id", 3}, {"sha256", Sha256Hex(std::string("\x80\x3F\x00\x40", 4))}}));
}

TEST(TextConformanceTest, FailuresAreAnswers) {
  TextConformance conformance;
  for (const char* operation : {"tokenizer.encode", "tokenizer.decode", "chat.render", "gguf.tensor",
                                "gguf.hf_tensor", "safetensors.check"}) {
    const auto bare = conformance.Answer({{"id", 7}, {"op", operation}});
    ASSERT_TRUE(bare.has_value());
    EXPECT_EQ((*bare)["id"], 7);
    EXPECT_FALSE((*bare)["error"].get<std::string>().empty()) << operation;
    const auto missing = conformance.Answer(
        {{"id", 8}, {"op", operation}, {"tokenizer", "/nowhere"}, {"file", "/nowhere"}, {"text", ""}});
    EXPECT_FALSE((*missing)["error"].get<std::string>().empty()) << operation;
  }
  EXPECT_FALSE(conformance.Answer({{"op", "model.logits"}}).has_value());
  EXPECT_FALSE(conformance.Answer(Json::array()).has_value());
}

}  // namespace
}  // namespace tidepool::text
