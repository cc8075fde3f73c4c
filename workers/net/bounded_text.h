#pragma once
// Text that comes from outside ends up in logs, journal and status files. A sender does not decide how long
// they get.

#include <string>
#include <string_view>

#include "core/base/utf8.h"
#include "core/text/unicode.h"

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

// The same of bytes that may be no UTF-8: what is none becomes U+FFFD. JSON and protobuf refuse it.
inline std::string Clean(std::string_view bytes) { return Bounded(text::ReplaceInvalidUtf8(bytes)); }

}  // namespace tidepool::workers
