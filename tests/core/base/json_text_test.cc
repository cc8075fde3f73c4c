#include "core/base/json_text.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

using nlohmann::json;

std::string ErrorOf(std::string_view text) { return ParseJsonObject<json>(text, "f").status().message(); }

TEST(JsonTextTest, AnObjectIsRead) {
  EXPECT_EQ((*ParseJsonObject<json>(R"({"a": "[1]"})", "f"))["a"], "[1]");
}

TEST(JsonTextTest, WhatIsNoneIsAnErrorThatNamesTheFile) {
  EXPECT_EQ(ErrorOf("{"), "f: not valid JSON");
  EXPECT_EQ(ErrorOf("[1]"), "f: a JSON object is expected, found array");
  EXPECT_EQ(ErrorOf(std::string(200, '[')), "f: is nested deeper than 128");
}

TEST(JsonTextTest, KeysAreCountedInEachObject) {
  EXPECT_TRUE(JsonKeysWithin(R"({"a": {"b": 1, "c": ":::"}, "d": [{"e": 1}, {"f": 1}]})", 2));
  EXPECT_FALSE(JsonKeysWithin(R"({"a": [{"b": 1, "c": 2, "d": 3}]})", 2));
  EXPECT_FALSE(JsonKeysWithin(R"({"a": {}, "b": [], "c": 3})", 2));
  EXPECT_FALSE(JsonKeysWithin("]]]", 2)) << "no text of JSON";
}

// The parser takes a NUL for the end: what stands behind it would be passed over in silence.
TEST(JsonTextTest, ANulIsNotTheEnd) {
  EXPECT_EQ(ErrorOf(std::string_view("{}\0{\"a\": 1}", 11)),
            "f: has a NUL at byte 2, which JSON cannot have");
  EXPECT_EQ(ErrorOf(std::string_view("{}\0", 3)), "f: has a NUL at byte 2, which JSON cannot have");
}

}  // namespace
}  // namespace tidepool
