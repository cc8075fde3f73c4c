#include "core/files/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/rng.h"
#include "core/files/float_formats.h"
#include "tests/core/files/gguf_builder.h"
#include "tests/core/files/test_folder.h"

namespace tidepool::files {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GgufBuilder Small() {
  GgufBuilder builder;
  builder.String("general.architecture", "llama");
  builder.Uint32("n", 7);
  builder.Float("f", 0.5F);
  builder.Bool("b", true);
  builder.Strings("words", {"a", "bc"});
  builder.Int32s("numbers", {1, -2});
  builder.Tensor("x", {2, 3}, 0, Floats({1, 2, 3, 4, 5, 6}));
  builder.Tensor("y", {32}, 8, GgufBuilder::Pod(uint16_t{0x3C00}) + std::string(32, '\x02'));
  return builder;
}

// requires that `bytes` outlives the file
StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& bytes) {
  return GgufFile::FromBytes(std::as_bytes(std::span(bytes)), "f");
}
std::string ErrorOf(const std::string& bytes) { return Open(bytes).status().message(); }

TEST(GgufFileTest, ReadsMetadataAndTensors) {
  TestFolder folder;
  const auto file = GgufFile::Open(folder.Write("f.gguf", Small().Build()));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->String("general.architecture"), "llama");
  EXPECT_EQ((*file)->Int("n"), 7);
  EXPECT_EQ((*file)->Float("f"), 0.5);
  EXPECT_EQ((*file)->Bool("b"), true);
  EXPECT_THAT(*(*file)->Strings("words"), ElementsAre("a", "bc"));
  EXPECT_THAT(*(*file)->Ints("numbers"), ElementsAre(1, -2));
  EXPECT_FALSE((*file)->Int("f").has_value());
  const GgufTensor* x = (*file)->Find("x");
  ASSERT_NE(x, nullptr);
  EXPECT_THAT(x->shape(), ElementsAre(3, 2));
  std::vector<float> row(2);
  ASSERT_TRUE(Dequantize(*x, 1, row).ok());
  EXPECT_THAT(row, ElementsAre(3, 4));
}

TEST(GgufFileTest, AFileCutAnywhereIsRefused) {
  const std::string whole = Small().Build();
  // The last tensor ends before the padding of the data.
  for (size_t size = 0; size + 30 < whole.size(); ++size) {
    EXPECT_FALSE(Open(whole.substr(0, size)).ok()) << size << " bytes";
  }
}

TEST(GgufFileTest, CountsBeyondTheFileAreRefusedBeforeAllocation) {
  const std::string huge = GgufBuilder::Pod(~uint64_t{0});
  const std::string head = "GGUF" + GgufBuilder::Pod(uint32_t{3});
  EXPECT_THAT(ErrorOf(head + huge + GgufBuilder::Pod(uint64_t{0})), HasSubstr("room for"));
  EXPECT_THAT(ErrorOf(head + GgufBuilder::Pod(uint64_t{0}) + huge), HasSubstr("room for"));
  GgufBuilder array;
  array.Value("a", 9, GgufBuilder::Pod(uint32_t{5}) + GgufBuilder::Pod(uint64_t{1} << 61));
  EXPECT_THAT(ErrorOf(array.Build()), HasSubstr("cut short"));
  GgufBuilder text;
  text.Value("a", 8, huge);
  EXPECT_THAT(ErrorOf(text.Build()), HasSubstr("at most"));
  GgufBuilder nested;
  std::string content;
  for (int i = 0; i < 50; ++i) content += GgufBuilder::Pod(uint32_t{9}) + GgufBuilder::Pod(uint64_t{1});
  nested.Value("a", 9, content);
  EXPECT_THAT(ErrorOf(nested.Build()), HasSubstr("nested deeper"));
}

TEST(GgufFileTest, BadTensorsAreRefused) {
  GgufBuilder twice = Small();
  twice.Tensor("x", {1}, 0, Floats({1}));
  EXPECT_THAT(ErrorOf(twice.Build()), HasSubstr("appears twice"));
  GgufBuilder part_block;
  part_block.Tensor("q", {33}, 8, std::string(68, '\0'));
  EXPECT_THAT(ErrorOf(part_block.Build()), HasSubstr("no whole number of Q8_0 blocks"));
  GgufBuilder large;
  large.Tensor("q", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, "");
  EXPECT_THAT(ErrorOf(large.Build()), HasSubstr("too large"));
  GgufBuilder wide;
  wide.Tensor("q", {1, 1, 1, 1, 1}, 0, Floats({1}));
  EXPECT_THAT(ErrorOf(wide.Build()), HasSubstr("5 dimensions"));
  GgufBuilder unknown;
  unknown.Tensor("q", {1}, 99, Floats({1}));
  EXPECT_THAT(ErrorOf(unknown.Build()), HasSubstr("unknown tensor type 99"));
  GgufBuilder overlap;
  overlap.Tensor("a", {16}, 0, Floats(std::vector<float>(16)));
  overlap.Tensor("b", {8}, 0, Floats(std::vector<float>(8)));
  std::string bytes = overlap.Build();
  const size_t offset = bytes.find(GgufBuilder::Pod(uint64_t{64}));  // b's
  ASSERT_NE(offset, std::string::npos);
  bytes[offset] = 32;
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("overlaps"));
  bytes[offset] = 33;
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("no multiple of 32"));
  std::string version = Small().Build();
  version[4] = 2;
  EXPECT_THAT(ErrorOf(version), HasSubstr("GGUF version 2"));
}

TEST(GgufFileTest, RandomDamageNeverCrashes) {
  const std::string whole = Small().Build();
  Rng rng(5);
  for (int i = 0; i < 1500; ++i) {
    std::string damaged = whole;
    for (int k = 0; k < 2; ++k) damaged[rng.Below(damaged.size())] = static_cast<char>(rng.Below(256));
    const auto file = Open(damaged);
    if (!file.ok()) continue;
    for (const GgufTensor& tensor : (*file)->tensors()) {
      if (tensor.numel() > 1000) continue;
      std::vector<float> values(static_cast<size_t>(tensor.numel()));
      (void)Dequantize(tensor, 0, values);
    }
  }
}

TEST(DequantizeTest, BlocksByHand) {
  GgufBuilder builder;
  const auto half = [](uint16_t bits) { return GgufBuilder::Pod(bits); };
  std::string nibbles;  // byte i: low i, high 15 - i
  for (int i = 0; i < 16; ++i) nibbles.push_back(static_cast<char>(i | ((15 - i) << 4)));
  std::string bytes;
  for (int i = 0; i < 32; ++i) bytes.push_back(static_cast<char>(i - 16));
  builder.Tensor("q4_0", {32}, 2, half(0x3800) + nibbles);                 // d = 0.5
  builder.Tensor("q4_1", {32}, 3, half(0x3800) + half(0xBC00) + nibbles);  // d = 0.5, m = -1
  builder.Tensor("q8_0", {32}, 8, half(0x0001) + bytes);                   // d = 2^-24, subnormal
  builder.Tensor("f16", {4}, 1, half(0x3C00) + half(0xC000) + half(0x7C00) + half(0x8001));
  builder.Tensor("bf16", {2}, 30, half(0x3F80) + half(0xC040));
  builder.Tensor("q6_k", {256}, 14, std::string(210, '\0'));
  const std::string built = builder.Build();
  const auto file = Open(built);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto values = [&](const char* name) {
    const GgufTensor* tensor = (*file)->Find(name);
    std::vector<float> out(static_cast<size_t>(tensor->numel()));
    EXPECT_TRUE(Dequantize(*tensor, 0, out).ok());
    return out;
  };
  for (int i = 0; i < 16; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(values("q4_0")[at], 0.5F * static_cast<float>(i - 8));
    EXPECT_EQ(values("q4_0")[at + 16], 0.5F * static_cast<float>(15 - i - 8));
    EXPECT_EQ(values("q4_1")[at], 0.5F * static_cast<float>(i) - 1.0F);
    EXPECT_EQ(values("q4_1")[at + 16], 0.5F * static_cast<float>(15 - i) - 1.0F);
    EXPECT_EQ(values("q8_0")[at], std::ldexp(static_cast<float>(i - 16), -24));
  }
  EXPECT_THAT(values("f16"),
              ElementsAre(1.0F, -2.0F, std::numeric_limits<float>::infinity(), std::ldexp(-1.0F, -24)));
  EXPECT_THAT(values("bf16"), ElementsAre(1.0F, -3.0F));
  std::vector<float> out(256);
  EXPECT_THAT(Dequantize(*(*file)->Find("q6_k"), 0, out).message(), HasSubstr("Q6_K"));
}

TEST(FloatFormatsTest, Bf16RoundsToNearestTiesToEven) {
  const auto rounded = [](uint32_t bits) { return FloatToBf16(std::bit_cast<float>(bits)); };
  EXPECT_EQ(rounded(0x3F808000), 0x3F80);  // a tie, down to even
  EXPECT_EQ(rounded(0x3F818000), 0x3F82);  // a tie, up to even
  EXPECT_EQ(rounded(0x3F808001), 0x3F81);
  EXPECT_EQ(rounded(0x3F807FFF), 0x3F80);
  EXPECT_EQ(rounded(0x7F7FFFFF), 0x7F80);  // overflows to infinity
  EXPECT_EQ(rounded(0xFF800000), 0xFF80);
  EXPECT_EQ(rounded(0x7F800001), 0x7FC0);            // NaN stays NaN
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {  // what is exact comes back
    const auto value = static_cast<uint16_t>(bits);
    if (std::isnan(Bf16ToFloat(value))) continue;
    EXPECT_EQ(FloatToBf16(Bf16ToFloat(value)), value);
  }
}

TEST(FloatFormatsTest, Fp16RoundsToNearestTiesToEven) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto value = static_cast<uint16_t>(bits);
    if (!std::isnan(Fp16ToFloat(value))) EXPECT_EQ(FloatToFp16(Fp16ToFloat(value)), value);
  }
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {  // between two that follow each other
    const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
    const float middle = (Fp16ToFloat(low) + Fp16ToFloat(high)) / 2;
    EXPECT_EQ(FloatToFp16(middle), bits % 2 == 0 ? low : high);
    EXPECT_EQ(FloatToFp16(std::nextafter(middle, 0.0F)), low);
    EXPECT_EQ(FloatToFp16(-std::nextafter(middle, 1e9F)), high | 0x8000);
  }
  EXPECT_EQ(FloatToFp16(65519.996F), 0x7BFF);
  EXPECT_EQ(FloatToFp16(65520.0F), 0x7C00);
  EXPECT_EQ(FloatToFp16(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_TRUE(std::isnan(Fp16ToFloat(FloatToFp16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(FloatFormatsTest, Fp16EqualsItsDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10) & 31;
    const int mantissa = static_cast<int>(bits) & 1023;
    const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
    const float value = Fp16ToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      if (mantissa == 0) {
        EXPECT_EQ(value, sign * std::numeric_limits<float>::infinity());
      }
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(value, sign * static_cast<float>(magnitude));
    EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0);
  }
}

}  // namespace
}  // namespace tidepool::files
