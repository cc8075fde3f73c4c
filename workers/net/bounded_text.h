#pragma once
// Text that comes from outside ends up in logs, journal and status files. A sender does not decide how long
// they get.

#include <string>

#include "core/base/utf8.h"

namespace tidepool::workers {

inline constexpr size_t kTextBytes = 1000;  // a reason in words; more is not read by anybody

// `text` if it has at most `most` bytes, else its beginning and how much was cut off, in as many. UTF-8 stays
// UTF-8.  requires most >= 100
inline std::string Bounded(std::string text, size_t most = kTextBytes) {
  if (text.size() <= most) return text;
  const size_t end = CharacterStart(text, most - 40);  // for the words behind it
  const std::string cut = " ... (" + std::to_string(text.size() - end) + " more bytes)";
  text.resize(end);
  return text + cut;
}

}  // namespace tidepool::workers
