#pragma once
// Enums with the words that files, messages and logs use for them.
//
// An enum takes part by a function WordsOf(E) beside it: the words, in the order of the values, which count
// from 0. The schema (core/config/schema.h) reads and writes these words; the code sees the enum alone.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/base/status.h"

namespace tidepool {

template <typename E>
concept Worded = std::is_enum_v<E> && requires {
  WordsOf(E{});
};

template <Worded E>
inline constexpr auto kWords = WordsOf(E{});

// "unknown" for a number that is none of E's values, as a damaged file may hold it.
template <Worded E>
constexpr const char* Name(E value) {
  const auto at = static_cast<size_t>(value);
  return at < kWords<E>.size() ? kWords<E>[at] : "unknown";
}

// Empty: no value of E has this word.
template <Worded E>
constexpr std::optional<E> FromWord(std::string_view word) {
  const auto at = std::find(kWords<E>.begin(), kWords<E>.end(), word);
  if (at == kWords<E>.end()) return std::nullopt;
  return static_cast<E>(at - kWords<E>.begin());
}

// The same for what somebody wrote: kUnimplemented names `what` was read and the words that there are.
template <Worded E>
StatusOr<E> ParseWord(std::string_view what, std::string_view word) {
  if (const auto value = FromWord<E>(word)) return *value;
  std::string list;
  for (const char* known : kWords<E>) list += (list.empty() ? "" : ", ") + std::string(known);
  return Unimplemented(std::string(what) + " is '" + std::string(word) + "'; there are " + list);
}

// Every value of E, in order.
template <Worded E>
constexpr auto AllOf() {
  std::array<E, kWords<E>.size()> all{};
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<E>(i);
  return all;
}

}  // namespace tidepool
