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
#include <variant>
#include <vector>

#include "core/base/config.h"

namespace tidepool::config {

// A field that is an enum, seen through the words of its values (core/base/choices.h).
class WordField {
 public:
  template <Worded E>
  explicit WordField(E* value) : value_(reinterpret_cast<uint8_t*>(value)), words_(kWords<E>) {
    static_assert(sizeof(E) == 1);
  }
  [[nodiscard]] const char* Get() const { return words_[*value_]; }
  bool Set(std::string_view word) const;  // false, and nothing is changed: no value has this word
  [[nodiscard]] std::span<const char* const> words() const { return words_; }
  [[nodiscard]] std::string List() const;  // "reissue, mask, drop"

 private:
  uint8_t* value_;
  std::span<const char* const> words_;
};

// A field of JobConfig; which alternative it is says the key's type.
using Field = std::variant<bool*, int64_t*, uint64_t*, double*, std::optional<double>*, std::string*,
                           std::vector<std::string>*, std::vector<int64_t>*, WordField>;
template <typename T>
Field AsField(T* member) {
  if constexpr (Worded<T>) {
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
  // Its field in a config. For keys of list items, of item `index` (which has to exist). Keys of
  // model.init make the struct where it is not set, so call this on a copy to read.
  Field (*field)(JobConfig& config, size_t index) = nullptr;
  Range range = {};
  std::vector<std::string> choices = {};  // of a text; empty: any. Of an enum its words, filled in by Keys()
  std::string unit = {};                  // "s", "tokens", "bytes", "samples"; may be empty
  std::string doc = {};                   // one line
  std::optional<JobKind> job = {};        // the one kind of job that it means something to; empty: all
  OnResume on_resume = OnResume::kFixed;
  bool is_path = false;  // of a file or folder: relative to the current directory, then to the file
};

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

// Every key and task option with its value, in order, without provenance: "rollout.group_size: 8\n".
// Equal texts are equal configs.
std::string CanonicalText(const JobConfig& config);
// SHA-256 of CanonicalText, hex.
std::string ConfigDigest(const JobConfig& config);

}  // namespace tidepool::config
