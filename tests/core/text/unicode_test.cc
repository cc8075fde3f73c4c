#include "core/text/unicode.h"

#include <gtest/gtest.h>

namespace tidepool::text {
namespace {

TEST(UnicodeTest, ClassesOfSomeCharacters) {
  EXPECT_TRUE(IsLetter('a'));
  EXPECT_TRUE(IsLetter(0x65E5));
  EXPECT_FALSE(IsLetter(0x0301));  // a combining mark is no letter, but part of a word
  EXPECT_TRUE(IsWord(0x0301));
  EXPECT_TRUE(IsNumber(0x00BD));
  EXPECT_TRUE(IsNumber(0x2167));
  EXPECT_FALSE(IsNumber('a'));
  EXPECT_TRUE(IsSpace(0x3000));
  EXPECT_TRUE(IsSpace(0x85));
  EXPECT_FALSE(IsSpace(0x200B));
  EXPECT_EQ(ClassOf(0x10FFFF) & unicode_class::kLetter, 0);
}

TEST(UnicodeTest, Utf8RoundTripOfEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, &text);
    ASSERT_EQ(FindInvalidUtf8(text), std::string::npos) << std::hex << static_cast<uint32_t>(c);
    const CodePoint back = DecodeAt(text, 0);
    ASSERT_EQ(back.value, c);
    ASSERT_EQ(back.bytes, text.size());
  }
}

// The table of Unicode 16.0, section 3.9, and its neighbours.
TEST(UnicodeTest, EachMaximalInvalidPartIsReplacedOnce) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(ReplaceInvalidUtf8("a\xF1\x80\x80\xE1\x80\xC2"
                               "b\x80"
                               "c\x80\xBF"
                               "d"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                               "A"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
                               "A"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x91\x92\x93\xFF"
                               "A\x80\xBF"
                               "B"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82"), r);
}

TEST(UnicodeTest, CompletePrefixKeepsWhatCouldBecomeACharacter) {
  EXPECT_EQ(CompleteUtf8Prefix("abc"), 3U);
  EXPECT_EQ(CompleteUtf8Prefix("a\xE2\x82"), 1U);
  EXPECT_EQ(CompleteUtf8Prefix("a\xF0\x9F\x98"), 1U);
  EXPECT_EQ(CompleteUtf8Prefix("a\xF0\x9F\x98\x80"), 5U);
  EXPECT_EQ(CompleteUtf8Prefix("a\xC0"), 2U);      // never becomes one
  EXPECT_EQ(CompleteUtf8Prefix("a\xE0\x80"), 3U);  // overlong
  EXPECT_EQ(CompleteUtf8Prefix("a\x80\x80\x80\x80"), 5U);
}

TEST(UnicodeTest, Nfc) {
  EXPECT_EQ(Nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(Nfc("a\u0323\u0302"), "\u1ead");
  EXPECT_EQ(Nfc("a\u0302\u0323"), "\u1ead");        // marks are put in order first
  EXPECT_EQ(Nfc("a\u0327\u0301"), "\u00e1\u0327");  // composes past a lower class
  EXPECT_EQ(Nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(Nfc("\u212b"), "\u00c5");        // a singleton
  EXPECT_EQ(Nfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_TRUE(IsCertainlyNfc("plain \u00e9 \u65e5 \uac01"));
  EXPECT_FALSE(IsCertainlyNfc("e\u0301"));
  EXPECT_FALSE(IsCertainlyNfc("\u212b"));
}

TEST(UnicodeTest, NfcIsIdempotentAndAgreesWithItsQuickCheck) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text = "a";
    AppendUtf8(c, &text);
    if (IsCertainlyNfc(text)) {
      ASSERT_EQ(Nfc(text), text) << std::hex << static_cast<uint32_t>(c);
    }
    const std::string once = Nfc(text);
    ASSERT_EQ(Nfc(once), once) << std::hex << static_cast<uint32_t>(c);
  }
}

TEST(UnicodeTest, Case) {
  EXPECT_EQ(ToUpper("stra\u00dfe \u00e9"), "STRASSE \u00c9");
  EXPECT_EQ(ToLower("\u00c4BC"), "\u00e4bc");
}

}  // namespace
}  // namespace tidepool::text
