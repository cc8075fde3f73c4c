#pragma once
// The table of every config key: the one source for parsing, validation, `config schema`, `config
// show`, the reference in docs/ and the rules of --resume. To add a key: add a field to
// core/base/config.h and a line to the table in schema_keys.cc.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/base/config.h"

namespace tidepool::config {

// A field that is an enum, seen through the words of its values (core/base/words.h).
class WordField {
 public:
  template <Worded E>
  explicit WordField(E* value)
      : value_(value),
        words_(kWords<E>),
        get_([](const void* v) { return static_cast<size_t>(*static_cast<const E*>(v)); }),
        set_([](void* v, size_t i) { *static_cast<E*>(v) = static_cast<E>(i); }) {}
  // The kind of the job: which alternative it is. Another kind begins with the defaults of that kind.
  explicit WordField(JobOfKind* job);
  [[nodiscard]] const char* Get() const { return words_[get_(value_)]; }
  bool Set(std::string_view word) const;  // false, and nothing is changed: no value has this word
  [[nodiscard]] std::span<const char* const> words() const { return words_; }
  [[nodiscard]] std::string List() const;  // "reissue, mask, drop"

 private:
  void* value_;
  std::span<const char* const> words_;
  size_t (*get_)(const void* value);
  void (*set_)(void* value, size_t index);
};

// A field of JobConfig; which alternative it is says the key's type.
using Field = std::variant<bool*, int64_t*, uint64_t*, double*, std::optional<double>*, std::string*,
                           std::vector<std::string>*, std::vector<int64_t>*, WordField>;
template <typename T>
Field AsField(T* member) {
  if constexpr (Worded<T> || std::is_same_v<T, JobOfKind>) {
    return WordField(member);
  } else {
    return member;
  }
}

// What numbers are allowed, `unit` included in how it is described.
struct Range {
  double lo = -std::numeric_limits<double>::infinity();
  double hi = std::numeric_limits<double>::infinity();
  bool lo_open = false;  // lo itself is not allowed
  bool hi_open = false;
  [[nodiscard]] bool Holds(double value) const;
};

enum class OnResume { kFixed, kFree };  // whether a resumed run may have another value

struct Key {
  std::string path;  // "rollout.group_size"; keys of list items as "reward.functions[].weight"
  // Its field in a config. For keys of list items, of item `index` (which has to exist). Keys of model.init
  // make the struct where it is not set, and keys of another kind of job make the job one of that kind: read
  // them of a copy.
  Field (*field)(JobConfig& config, size_t index) = nullptr;
  Range range = {};
  std::vector<std::string> choices = {};  // of a text; empty: any. Of an enum its words, filled in by Keys()
  std::string unit = {};                  // "s", "tokens", "bytes", "samples"; may be empty
  std::string doc = {};                   // one line
  std::optional<JobKind> job = {};        // the one kind of job that it means something to; empty: all
  OnResume on_resume = OnResume::kFixed;
  bool is_path = false;  // of a file or folder; load.h says where it is looked for
};

// The part of the config that only jobs of one kind have, made where the job is of another kind.
template <typename Kind>
Kind& PartOf(JobConfig& c) {
  if (Kind* part = std::get_if<Kind>(&c.job)) return *part;
  return c.job.emplace<Kind>();
}

const std::vector<Key>& Keys();
// Null if there is none. `path` has "[]" for any list index.
const Key* FindKey(std::string_view path);
// Whether `path` is a group of keys ("rollout", "model.init").
bool IsSection(std::string_view path);
// Names that may stand in the section ("" is the root): keys and sub-sections.
std::vector<std::string> NamesIn(std::string_view section);

// "an integer, at least 1 (samples)".
std::string DescribeType(const Key& key);

// The value as YAML that reads back to the same value: "[1, 2]", "\"a b\"", "2e-05"; "null" for an
// optional that is not set.
std::string ValueText(const Field& field);
// One YAML scalar for a text, quoted where it must be.
std::string TextAsYaml(const std::string& text);

}  // namespace tidepool::config
