#pragma once
// JSON from files and lines that strangers wrote.

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace tidepool {

// Deeper than that is no config, tokenizer or row of data. JSON values are printed, compared and converted
// by recursion, so a file of a million brackets would take the stack with it.
inline constexpr int kJsonDepthMax = 128;

// Calls see(c) for each character outside strings, until it says false; returns what it said last.
template <typename See>
bool SeeJsonOutsideStrings(std::string_view text, See see) {
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (!see(c)) {
      return false;
    }
  }
  return true;
}

// True if no place of the text is inside more than `limit` brackets (strings are passed over). Says nothing
// about whether the text is valid. Linear, no memory.
inline bool JsonDepthWithin(std::string_view text, int limit = kJsonDepthMax) {
  int depth = 0;
  return SeeJsonOutsideStrings(text, [&](char c) {
    if (c == '[' || c == '{') return ++depth <= limit;
    if (c == ']' || c == '}') --depth;
    return true;
  });
}

// True if no object of the text has more than `limit` keys, as far as the text is valid. An object that keeps
// the order of its keys compares each new one with all before it: 80 000 of them took 12 s. Linear. Requires
// JsonDepthWithin(text).
inline bool JsonKeysWithin(std::string_view text, int64_t limit) {
  std::array<int64_t, kJsonDepthMax + 1> keys{};  // of the objects that are open
  int depth = 0;
  return SeeJsonOutsideStrings(text, [&](char c) {
    if (c == '[' || c == '{') keys[static_cast<size_t>(++depth)] = 0;
    if (c == ']' || c == '}') return --depth >= 0;  // below it nothing is valid
    return c != ':' || ++keys[static_cast<size_t>(depth)] <= limit;
  });
}

// Why the text must not be given to the parser; empty: it may be. The parser takes a NUL for the end of the
// text, so what follows one would not be read.
inline std::string JsonTextProblem(std::string_view text) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return "has a NUL at byte " + std::to_string(nul) + ", which JSON cannot have";
  if (!JsonDepthWithin(text)) return "is nested deeper than " + std::to_string(kJsonDepthMax);
  return {};
}

// The object that the text is. `where` begins the error.
template <typename Json>
StatusOr<Json> ParseJsonObject(std::string_view text, const std::string& where) {
  if (const std::string problem = JsonTextProblem(text); !problem.empty())
    return InvalidArgument(where + ": " + problem);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgument(where + ": not valid JSON");
  if (!json.is_object())
    return InvalidArgument(where + ": a JSON object is expected, found " + json.type_name());
  return json;
}

}  // namespace tidepool
