#pragma once
// UTF-8, character classes, NFC and case, from tables for pinned Unicode versions
// (unicode/generate_tables.py says which and why). Pure functions; thread-safe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::text {

struct CodePoint {
  char32_t value = 0;
  uint32_t bytes = 0;  // 1 to 4
};

// The code point at `at`. requires valid UTF-8 and at < text.size().
inline CodePoint DecodeAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(static_cast<char32_t>(lead & 0x1F) << 6) | (byte(1) & 0x3FU), 2};
  if (lead < 0xF0) {
    return {(static_cast<char32_t>(lead & 0x0F) << 12) | ((byte(1) & 0x3FU) << 6) | (byte(2) & 0x3FU), 3};
  }
  return {(static_cast<char32_t>(lead & 0x07) << 18) | ((byte(1) & 0x3FU) << 12) | ((byte(2) & 0x3FU) << 6) |
              (byte(3) & 0x3FU),
          4};
}

void AppendUtf8(char32_t code_point, std::string* out);
std::u32string ToUtf32(std::string_view utf8);  // requires valid UTF-8
std::string ToUtf8(std::u32string_view text);

// Offset of the first byte that belongs to no valid UTF-8 sequence; npos if the text is valid.
size_t FindInvalidUtf8(std::string_view text);
// Each maximal invalid part becomes one U+FFFD (Unicode, section 3.9, "U+FFFD Substitution of Maximal
// Subparts"; what Rust's from_utf8_lossy does).
std::string ReplaceInvalidUtf8(std::string_view bytes);
// Length of the longest prefix that ends on no unfinished but possible sequence: what follows it may
// become a character once more bytes come. At most 3 bytes follow.
size_t CompleteUtf8Prefix(std::string_view bytes);

namespace unicode_class {
inline constexpr uint8_t kLetter = 1;         // \p{L}
inline constexpr uint8_t kNumber = 2;         // \p{N}
inline constexpr uint8_t kSpace = 4;          // \s
inline constexpr uint8_t kNumeric = 8;        // numeric for the Digits splitter
inline constexpr uint8_t kWord = 16;          // \w
inline constexpr uint8_t kNfcMayChange = 32;  // text without such characters is in NFC
inline constexpr uint8_t kNotPrintable = 64;  // what Python's repr escapes
}  // namespace unicode_class

// Bits of unicode_class. requires code_point < 0x110000.
uint8_t ClassOf(char32_t code_point);
inline bool IsLetter(char32_t c) { return (ClassOf(c) & unicode_class::kLetter) != 0; }
inline bool IsNumber(char32_t c) { return (ClassOf(c) & unicode_class::kNumber) != 0; }
inline bool IsSpace(char32_t c) { return (ClassOf(c) & unicode_class::kSpace) != 0; }
inline bool IsNumeric(char32_t c) { return (ClassOf(c) & unicode_class::kNumeric) != 0; }
inline bool IsPrintable(char32_t c) { return (ClassOf(c) & unicode_class::kNotPrintable) == 0; }
inline bool IsWord(char32_t c) { return (ClassOf(c) & unicode_class::kWord) != 0; }

// True if the text is in NFC for certain (the usual case, found in one pass); false: normalise it.
bool IsCertainlyNfc(std::string_view utf8);
// requires valid UTF-8
std::string Nfc(std::string_view utf8);

// Python's str.upper, lower and title for single characters (a final sigma is not treated specially).
std::string ToUpper(std::string_view utf8);
std::string ToLower(std::string_view utf8);
// One character's title case and whether it has case at all, for str.title and str.capitalize.
void AppendTitle(char32_t code_point, std::string* out);
void AppendLower(char32_t code_point, std::string* out);
bool IsCased(char32_t code_point);

}  // namespace tidepool::text
