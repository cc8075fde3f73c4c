#include "core/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/base/rng.h"
#include "tests/core/files/test_folder.h"

namespace tidepool::files {
namespace {

using testing::HasSubstr;

std::string File(const std::string& header, const std::string& data) {
  std::string result(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(result.data(), &length, 8);
  return result + header + data;
}

StatusOr<SafetensorsHeader> Check(const std::string& file) {
  return ParseSafetensorsHeader(std::as_bytes(std::span(file)), static_cast<int64_t>(file.size()), "f");
}
std::string ErrorOf(const std::string& header, const std::string& data) {
  return Check(File(header, data)).status().message();
}

const std::string kTwo =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
    R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST(SafetensorsHeaderTest, TensorsComeInOrderOfTheirBytes) {
  const auto header = Check(File(kTwo + "   ", std::string(20, 'x')));
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  ASSERT_EQ(header->tensors.size(), 2U);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header->tensors[1].numel(), 6);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsHeaderTest, AFileCutAnywhereIsRefused) {
  const std::string whole = File(kTwo, std::string(20, 'x'));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(Check(whole.substr(0, size)).ok()) << size << " bytes";
  }
  EXPECT_THAT(Check(whole + "y").status().message(), HasSubstr("something appended"));
}

TEST(SafetensorsHeaderTest, EachRuleOfTheLayoutIsNamed) {
  const auto tensor = [](const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  };
  const std::string four(4, 'x');
  EXPECT_THAT(
      ErrorOf("{" + tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("b", "F32", "[1]", "[0,4]") + "}",
              four),
      HasSubstr("without hole or overlap"));
  EXPECT_THAT(
      ErrorOf("{" + tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("b", "U8", "[1]", "[3,4]") + "}", four),
      HasSubstr("starts at byte 3, expected 2"));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "U8", "[3]", "[1,4]") + "}", four), HasSubstr("starts at byte 1"));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "F32", "[2]", "[0,4]") + "}", four), HasSubstr("need 8 bytes"));
  EXPECT_THAT(
      ErrorOf("{" + tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("a", "F32", "[0]", "[4,4]") + "}",
              four),
      HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "F31", "[1]", "[0,4]") + "}", four),
              HasSubstr("unknown dtype \"F31\""));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "F32", "[-1]", "[0,4]") + "}", four), HasSubstr("a negative number"));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "F32", "[1.0]", "[0,4]") + "}", four), HasSubstr("a fraction"));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "F32", "[1]", "[0,4,5]") + "}", four), HasSubstr("more than two"));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "F32", "[1]", "[4,0]") + "}", four), HasSubstr("starts at byte 4"));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "F32", "[4294967296,4294967296]", "[0,4]") + "}", four),
              HasSubstr("too large"));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "F32", "[4611686018427387904]", "[0,0]") + "}", ""),
              HasSubstr("too large"));
  EXPECT_THAT(ErrorOf("{" + tensor("a", "F32", "[18446744073709551615]", "[0,4]") + "}", four),
              HasSubstr("2^63"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[1]}})", four), HasSubstr("no data_offsets"));
  EXPECT_THAT(ErrorOf(R"({"a":3})", four), HasSubstr("expected an object"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":1}})", ""), HasSubstr("expected a string"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":[{},{},{}]}})", ""), HasSubstr("an array under \"a\""));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":{"b":{}}}})", ""), HasSubstr("an object under \"a\""));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":["x","y"],"data_offsets":[0,4]}})", four),
              HasSubstr("\"shape\" holds a string"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":"1","a":"2"}})", ""), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf("[]", ""), HasSubstr("'{'"));
  EXPECT_THAT(ErrorOf(" {}", ""), HasSubstr("'{'"));
  EXPECT_THAT(ErrorOf("{\"a\xff\":1}", ""), HasSubstr("UTF-8"));
  EXPECT_THAT(ErrorOf("{}x", ""), HasSubstr("JSON"));
  EXPECT_THAT(ErrorOf(std::string("{}\0\0\0", 5), ""), HasSubstr("NUL at byte 2"));
  EXPECT_THAT(ErrorOf(std::string("{}\0{", 4), ""), HasSubstr("NUL"));
  EXPECT_TRUE(Check(File("{} \n ", "")).ok());
  EXPECT_TRUE(Check(File("{}", "")).ok());
}

TEST(SafetensorsHeaderTest, HugeHeaderLengthIsRefusedBeforeAnythingIsRead) {
  std::string file = File("{}", "");
  const uint64_t length = uint64_t{1} << 62;
  std::memcpy(file.data(), &length, 8);
  EXPECT_THAT(Check(file).status().message(), HasSubstr("at most 100000000"));
}

TEST(SafetensorsHeaderTest, EmptyTensorsAndScalarsAreAllowed) {
  const auto header = Check(File(R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                                 R"("s":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})",
                                 std::string(8, 'x')));
  EXPECT_TRUE(header.ok()) << header.status().ToString();
}

TEST(SafetensorsHeaderTest, RandomDamageNeverCrashes) {
  const std::string whole = File(kTwo, std::string(20, 'x'));
  Rng rng(3);
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = whole;
    for (int k = 0; k < 3; ++k) damaged[rng.Below(damaged.size())] = static_cast<char>(rng.Below(256));
    (void)Check(damaged);  // either answer is right; what counts is that there is one
  }
}

TEST(SafetensorsFileTest, WhatIsWrittenIsRead) {
  TestFolder folder;
  const std::vector<float> values = {1.5F, -2.0F, 0.25F};
  const std::vector<uint8_t> bytes = {1, 2, 3, 4, 5};
  const std::string path = folder.path() + "/x.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, {SourceOf("u", DType::kU8, {5}, std::as_bytes(std::span(bytes))),
                                      SourceOf("f", DType::kF32, {3, 1}, std::as_bytes(std::span(values)))})
                  .ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const TensorInfo* info = (*file)->Find("f");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(std::memcmp((*file)->Bytes(*info).data(), values.data(), 12), 0);
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  EXPECT_EQ((*file)->Find("g"), nullptr);
}

TEST(SafetensorsFileTest, ASourceOfTheWrongSizeLeavesNoFile) {
  TestFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  const std::vector<uint8_t> bytes = {1, 2, 3};
  EXPECT_THAT(
      WriteSafetensors(path, {SourceOf("u", DType::kU8, {4}, std::as_bytes(std::span(bytes)))}).message(),
      HasSubstr("1 bytes less"));
  EXPECT_THAT(
      WriteSafetensors(path, {SourceOf("u", DType::kU8, {2}, std::as_bytes(std::span(bytes)))}).message(),
      HasSubstr("too many"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsFileTest, MissingFileAndFolderAreNamed) {
  EXPECT_EQ(SafetensorsFile::Open("/nowhere/x").status().code(), StatusCode::kNotFound);
  TestFolder folder;
  EXPECT_EQ(SafetensorsFile::Open(folder.path()).status().code(), StatusCode::kInvalidArgument);
}

TEST(SafetensorsFolderTest, ShardsReadAsOneFolder) {
  TestFolder folder;
  std::vector<std::vector<uint8_t>> data;
  std::vector<TensorSource> sources;
  for (uint8_t i = 0; i < 7; ++i) data.emplace_back(10, i);
  for (size_t i = 0; i < 7; ++i) {
    sources.push_back(SourceOf("t" + std::to_string(i), DType::kU8, {10}, std::as_bytes(std::span(data[i]))));
  }
  ASSERT_TRUE(WriteSafetensorsFolder(folder.path(), sources, 25).ok());
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/model-00004-of-00004.safetensors"));
  const auto opened = SafetensorsFolder::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ((*opened)->tensors().size(), 7U);
  EXPECT_EQ((*opened)->Find("t5")->bytes()[9], std::byte{5});
  EXPECT_FALSE((*opened)->Find("t7").has_value());
}

TEST(SafetensorsFolderTest, DigestIsOfEveryByteAndShapeAndNotOfTheFiles) {
  std::vector<uint8_t> bytes(30, 1);
  const auto digest = [&](std::vector<int64_t> shape, const std::string& second, int64_t shard_bytes) {
    TestFolder folder;
    const auto all = std::as_bytes(std::span(bytes));
    const std::vector<TensorSource> sources = {SourceOf("a", DType::kU8, std::move(shape), all.first(20)),
                                               SourceOf(second, DType::kU8, {10}, all.last(10))};
    EXPECT_TRUE(WriteSafetensorsFolder(folder.path(), sources, shard_bytes).ok());
    const auto opened = SafetensorsFolder::Open(folder.path());
    return opened.ok() ? (*opened)->Digest() : opened.status().message();
  };
  const std::string whole = digest({20}, "b", 1000);
  EXPECT_EQ(digest({20}, "b", 25), whole);
  EXPECT_NE(digest({2, 10}, "b", 1000), whole);
  EXPECT_NE(digest({20}, "c", 1000), whole);
  for (const size_t at : {size_t{0}, size_t{19}, size_t{20}, size_t{29}}) {
    bytes[at] ^= 1;
    EXPECT_NE(digest({20}, "b", 1000), whole) << at;
    bytes[at] ^= 1;
  }
}

TEST(SafetensorsFolderTest, ShardNamesCannotLeadOutOfTheFolder) {
  for (const std::string name : {"../x.safetensors", "/etc/passwd", "a/b", "..", "", "a\\\\b", "a\\u0000b"}) {
    TestFolder folder;
    (void)folder.Write("model.safetensors.index.json", R"({"weight_map":{"t":")" + name + "\"}}");
    EXPECT_THAT(SafetensorsFolder::Open(folder.path()).status().message(), HasSubstr("plain file")) << name;
  }
}

TEST(SafetensorsFolderTest, AnIndexThatNamesAMissingTensorIsRefused) {
  TestFolder folder;
  ASSERT_TRUE(WriteSafetensors(folder.path() + "/a.safetensors", {}).ok());
  (void)folder.Write("model.safetensors.index.json", R"({"weight_map":{"t":"a.safetensors"}})");
  EXPECT_THAT(SafetensorsFolder::Open(folder.path()).status().message(), HasSubstr("has the tensor \"t\""));
}

}  // namespace
}  // namespace tidepool::files
