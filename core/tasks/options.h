#pragma once
// Options of a task: a table that checks them, prints their reference and gives typed access.
// Values are JSON, so that the same table serves YAML keys, command lines and tests.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace tidepool::tasks {

enum class OptionKind {
  kInt,    // 5
  kRange,  // [2, 9], both ends included, lo <= hi; a single number n means [n, n]
  kText,   // "abc", with min..max characters
  kBool,   // true
  kChoice  // one of `choices`
};

struct Option {
  std::string name;
  OptionKind kind = OptionKind::kInt;
  std::string default_json = {};  // JSON text: "[2, 9]", "\"terse\""
  int64_t min = 0;                // of ints and both ends of ranges; of the length of texts
  int64_t max = 0;
  std::vector<std::string> choices = {};
  std::string doc = {};
};
// One of `choices`; the first is the default.
Option ChoiceOption(std::string name, std::vector<std::string> choices, std::string doc);

// kInvalidArgument with "expected ...; found ..." (no name, no place: the caller knows both).
Status CheckOption(const Option& option, const nlohmann::json& value);
// "an integer from 1 to 9" and so on, for references and messages.
std::string DescribeOption(const Option& option);

// The JSON text of a value as somebody typed it on a command line: a text needs no quotes there.
std::string OptionJson(const std::vector<Option>& table, const std::string& name, const std::string& typed);

// Checked values with defaults filled in. Access by a name that is not in the table is a bug.
class OptionValues {
 public:
  // kInvalidArgument: "NAME: what; what to do".
  static StatusOr<OptionValues> Parse(const std::vector<Option>& table,
                                      const std::map<std::string, std::string>& json_texts);
  [[nodiscard]] int64_t Int(const std::string& name) const { return Get(name).range.first; }
  [[nodiscard]] std::pair<int64_t, int64_t> Range(const std::string& name) const { return Get(name).range; }
  [[nodiscard]] const std::string& Text(const std::string& name) const { return Get(name).text; }
  [[nodiscard]] bool Bool(const std::string& name) const { return Get(name).flag; }

 private:
  struct Value {
    std::pair<int64_t, int64_t> range;  // an int: both ends
    std::string text;
    bool flag = false;
  };
  [[nodiscard]] const Value& Get(const std::string& name) const;

  std::map<std::string, Value> values_;  // all options of the table
};

}  // namespace tidepool::tasks
