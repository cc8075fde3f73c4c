#include "core/text/splitter.h"

#include <algorithm>
#include <iterator>

#include "core/text/unicode.h"

namespace tidepool::text {
namespace {

using unicode_class::kLetter;
using unicode_class::kNumber;
using unicode_class::kSpace;

constexpr std::string_view kRegexes[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// A character with its class reduced to what the patterns ask for: letter, number, space, or 0.
struct Char {
  char32_t value;
  uint32_t bytes;
  uint8_t kind;
};
inline Char At(std::string_view text, size_t at) {
  const CodePoint c = DecodeAt(text, at);
  return {c.value, c.bytes, static_cast<uint8_t>(ClassOf(c.value) & (kLetter | kNumber | kSpace))};
}

// End of the run of characters of `kind` from `at` on.
size_t RunEnd(std::string_view text, size_t at, uint8_t kind) {
  while (at < text.size()) {
    const Char c = At(text, at);
    if (c.kind != kind) break;
    at += c.bytes;
  }
  return at;
}

inline bool IsLineEnd(char32_t c) { return c == '\r' || c == '\n'; }

// Length of a contraction after the apostrophe at `at`, or 0. With `fold`, letters count in either
// case; U+017F (long s) folds to s.
size_t Contraction(std::string_view text, size_t at, bool fold) {
  const auto lower = [&](size_t i) -> char {
    if (at + i >= text.size()) return 0;
    const char c = text[at + i];
    return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = lower(1);
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return lower(2) == 'e' ? 3 : 0;
    case 'l':
      return lower(2) == 'l' ? 3 : 0;
    default:
      return fold && text.substr(at + 1).starts_with("\xC5\xBF") ? 3 : 0;
  }
}

// `\s+(?!\S)|\s+` from `at`, where white space starts: the last one stays with the word that follows.
size_t SpaceEnd(std::string_view text, size_t at) {
  size_t end = at;
  size_t last = at;
  while (end < text.size()) {
    const Char c = At(text, end);
    if (c.kind != kSpace) return last > at ? last : end;
    last = end;
    end += c.bytes;
  }
  return end;
}

size_t Gpt2End(std::string_view text, size_t at) {
  const Char first = At(text, at);
  if (first.value == '\'') {
    if (const size_t length = Contraction(text, at, /*fold=*/false); length > 0) return at + length;
  }
  if (first.value == ' ' && at + 1 < text.size()) {
    const Char second = At(text, at + 1);
    if (second.kind != kSpace) return RunEnd(text, at + 1, second.kind);
  }
  if (first.kind == kSpace) return SpaceEnd(text, at);
  return RunEnd(text, at, first.kind);
}

size_t Llama3End(std::string_view text, size_t at, int numbers_max) {
  const Char first = At(text, at);
  if (first.value == '\'') {
    if (const size_t length = Contraction(text, at, /*fold=*/true); length > 0) return at + length;
  }
  const size_t next = at + first.bytes;
  if (first.kind == kLetter) return RunEnd(text, next, kLetter);
  if (first.kind == kNumber) {
    size_t end = next;
    for (int i = 1; i < numbers_max && end < text.size(); ++i) {
      const Char c = At(text, end);
      if (c.kind != kNumber) break;
      end += c.bytes;
    }
    return end;
  }
  const bool more = next < text.size();
  const uint8_t next_kind = more ? At(text, next).kind : uint8_t{kSpace};
  if (more && next_kind == kLetter && !IsLineEnd(first.value)) return RunEnd(text, next, kLetter);
  if (first.kind == 0 || (first.value == ' ' && more && next_kind == 0)) {
    size_t end = RunEnd(text, first.kind == 0 ? at : next, 0);
    while (end < text.size() && IsLineEnd(static_cast<unsigned char>(text[end]))) ++end;
    return end;
  }
  // White space: up to its last line end, if it has one.
  size_t end = at;
  size_t after_line_end = at;
  while (end < text.size()) {
    const Char c = At(text, end);
    if (c.kind != kSpace) break;
    end += c.bytes;
    if (IsLineEnd(c.value)) after_line_end = end;
  }
  return after_line_end > at ? after_line_end : SpaceEnd(text, at);
}

}  // namespace

std::optional<Pattern> KnownPattern(std::string_view regex) {
  const auto* found = std::find(std::begin(kRegexes), std::end(kRegexes), regex);
  return found == std::end(kRegexes) ? std::nullopt
                                     : std::optional(static_cast<Pattern>(found - std::begin(kRegexes)));
}

std::string_view RegexOf(Pattern pattern) { return kRegexes[static_cast<size_t>(pattern)]; }

size_t PieceEnd(Pattern pattern, std::string_view text, size_t at) {
  return pattern == Pattern::kGpt2 ? Gpt2End(text, at)
                                   : Llama3End(text, at, pattern == Pattern::kLlama3 ? 3 : 1);
}

void SplitByPattern(Pattern pattern, std::string_view text, std::vector<std::string_view>* pieces) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = PieceEnd(pattern, text, at);
    pieces->push_back(text.substr(at, end - at));
    at = end;
  }
}

void SplitDigits(bool individual, std::string_view text, std::vector<std::string_view>* pieces) {
  size_t start = 0;
  bool in_digits = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    const bool digit = IsNumeric(c.value);
    if (at > start && (digit != in_digits || (digit && individual))) {
      pieces->push_back(text.substr(start, at - start));
      start = at;
    }
    in_digits = digit;
    at += c.bytes;
  }
  if (start < text.size()) pieces->push_back(text.substr(start));
}

}  // namespace tidepool::text
