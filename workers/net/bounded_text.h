#pragma once
// Text that comes from outside ends up in logs, journal and status files. A sender does not decide how long
// they get.

#include <string>

namespace tidepool::workers {

inline constexpr size_t kTextBytes = 1000;  // a reason in words; more is not read by anybody

// `text`, or its beginning and how much was cut off. UTF-8 stays UTF-8.
inline std::string Bounded(std::string text) {
  if (text.size() <= kTextBytes) return text;
  size_t end = kTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // inside a character
  const std::string cut = " ... (" + std::to_string(text.size() - end) + " more bytes)";
  text.resize(end);
  return text + cut;
}

}  // namespace tidepool::workers
