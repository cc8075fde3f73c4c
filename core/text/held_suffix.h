#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace tidepool::text {

// How many bytes at the end of `text` may be the beginning of `word`, which is not in it.
inline size_t HeldSuffix(std::string_view text, std::string_view word) {
  for (size_t n = std::min(text.size(), word.size() - 1); n > 0; --n) {
    if (word.starts_with(text.substr(text.size() - n))) return n;
  }
  return 0;
}

}  // namespace tidepool::text
