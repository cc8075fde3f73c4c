#pragma once
// What the files of the table of keys share. For core/config/schema*.cc alone.

#include <string>
#include <vector>

#include "core/config/schema.h"

namespace tidepool::config {

inline constexpr double kMany = 1e9;  // more of anything counted here is a slip of the keyboard

inline constexpr Range AtLeast(double lo) { return {.lo = lo}; }
inline constexpr Range Between(double lo, double hi) { return {.lo = lo, .hi = hi}; }
inline constexpr Range Positive() { return {.lo = 0, .lo_open = true}; }

// Names of registered parts, as choices of a text.
template <typename Entries>
std::vector<std::string> NamesOf(const Entries& entries, bool or_empty = false) {
  std::vector<std::string> names;
  if (or_empty) names.emplace_back();
  for (const auto& entry : entries) {
    names.push_back(entry.name);
  }
  return names;
}

#define TP_FIELD(member) [](JobConfig& c, size_t) -> Field { return AsField(&c.member); }
#define TP_INIT_FIELD(member)                  \
  [](JobConfig& c, size_t) -> Field {          \
    if (!c.model.init) c.model.init.emplace(); \
    return AsField(&c.model.init->member);     \
  }
#define TP_ITEM_FIELD(member) \
  [](JobConfig& c, size_t i) -> Field { return AsField(&c.reward.functions.at(i).member); }

// schema_algorithm_keys.cc
std::vector<Key> AlgorithmKeys();
std::vector<Key> ShapingKeys();
std::vector<Key> ObjectiveKeys();

}  // namespace tidepool::config
