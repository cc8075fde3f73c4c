#pragma once
// Characters of UTF-8 text. What they are: core/text/unicode.h.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

// A byte that is not the first of its character.
inline bool ContinuesCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }
// Where the character begins that byte `at` is of.  requires at < text.size()
inline size_t CharacterStart(std::string_view text, size_t at) {
  while (at > 0 && ContinuesCharacter(text[at])) --at;
  return at;
}
inline int64_t CharacterCount(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !ContinuesCharacter(c); });
}
inline std::vector<std::string> Characters(std::string_view text) {
  std::vector<std::string> out;
  for (const char c : text) {
    if (!ContinuesCharacter(c) || out.empty()) out.emplace_back();
    out.back() += c;
  }
  return out;
}

}  // namespace tidepool
