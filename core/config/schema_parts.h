#pragma once
// What the files of the table of keys share. For core/config/schema*.cc alone.

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/config/schema.h"

namespace tidepool::config {

inline constexpr double kMany = 1e9;  // more of anything counted here is a slip of the keyboard

// What may be said of a key, in any order.
inline constexpr Range AtLeast(double lo) { return {.lo = lo}; }
inline constexpr Range Above(double lo) { return {.lo = lo, .lo_open = true}; }
inline constexpr Range Positive() { return Above(0); }
inline constexpr Range Between(double lo, double hi) { return {.lo = lo, .hi = hi}; }
inline constexpr Range Within(double lo, double hi) {
  return {.lo = lo, .hi = hi, .lo_open = true};
}  // without lo
inline constexpr Range UpTo(double lo, double hi) {
  return {.lo = lo, .hi = hi, .hi_open = true};
}  // without hi
using Choices = std::vector<std::string>;
struct Unit {
  const char* name;
};
inline constexpr OnResume kFree = OnResume::kFree;
struct IsPath {};
inline constexpr IsPath kPath;

inline void Say(Key& key, Range range) { key.range = range; }
inline void Say(Key& key, Choices choices) { key.choices = std::move(choices); }
inline void Say(Key& key, Unit unit) { key.unit = unit.name; }
inline void Say(Key& key, OnResume on_resume) { key.on_resume = on_resume; }
inline void Say(Key& key, IsPath) { key.is_path = true; }
inline void Say(Key& key, JobKind job) { key.job = job; }

template <typename... Said>
Key MakeKey(const char* path, Field (*field)(JobConfig&, size_t), const char* doc, Said... said) {
  Key key{.path = path, .field = field, .doc = doc};
  (Say(key, std::move(said)), ...);
  return key;
}

template <typename Kind>
JobKind KindOf() {
  return static_cast<JobKind>(JobOfKind(Kind()).index());
}

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

// A key: the field that it sets, by whose name it goes; one line of documentation; what else is said of it.
#define TP_KEY(member, ...) \
  MakeKey(                  \
      #member, [](JobConfig& c, size_t) -> Field { return AsField(&c.member); }, __VA_ARGS__)
// A key of jobs of one kind.
#define TP_JOB_KEY(Kind, member, ...)                                                                       \
  MakeKey(                                                                                                  \
      #member, [](JobConfig& c, size_t) -> Field { return AsField(&PartOf<Kind>(c).member); }, __VA_ARGS__, \
      KindOf<Kind>())
#define TP_INIT_KEY(member, ...)                   \
  MakeKey(                                         \
      "model.init." #member,                       \
      [](JobConfig& c, size_t) -> Field {          \
        if (!c.model.init) c.model.init.emplace(); \
        return AsField(&c.model.init->member);     \
      },                                           \
      __VA_ARGS__)
#define TP_ITEM_KEY(member, ...)                                                                 \
  MakeKey(                                                                                       \
      "reward.functions[]." #member,                                                             \
      [](JobConfig& c, size_t i) -> Field { return AsField(&c.reward.functions.at(i).member); }, \
      __VA_ARGS__)

// schema_algorithm_keys.cc
std::vector<Key> AlgorithmKeys();
std::vector<Key> ShapingKeys();
std::vector<Key> ObjectiveKeys();

}  // namespace tidepool::config
