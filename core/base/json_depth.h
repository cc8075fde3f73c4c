#pragma once
// How deep a JSON text is nested, counted before it is parsed. JSON values are printed, compared and
// converted by recursion, so a file of a million brackets from a stranger would take the stack with it.

#include <string_view>

namespace tidepool {

// Deeper than that is no config, tokenizer or row of data.
inline constexpr int kJsonDepthMax = 128;

// True if no place of the text is inside more than `limit` brackets (strings are passed over). Says nothing
// about whether the text is valid. Linear, no memory.
inline bool JsonDepthWithin(std::string_view text, int limit = kJsonDepthMax) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return false;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return true;
}

}  // namespace tidepool
