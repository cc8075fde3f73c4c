#pragma once
// Named options of an algorithm's part: what it offers (OptionSpec, in the registry) and what was asked
// for (Options, after the check). A value that is absent or null means off, no bound, none.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/status.h"

namespace tidepool::algorithms {

using Value = std::variant<std::monostate, bool, double, std::string>;

// A number, or a text where there are choices.

struct OptionSpec {
  std::string name;
  Value fallback = {};                                   // the paper's, or the field's; none: off
  double lo = -std::numeric_limits<double>::infinity();  // allowed numbers; the ends included
  double hi = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};
  std::string doc = {};   // one line
  bool required = false;  // a formula without it has no meaning
};

// A text: one of `choices`.
OptionSpec Choice(std::string name, Value fallback, std::vector<std::string> choices, std::string doc);

class Options {
 public:
  // Checks names, types, ranges and choices. kUnimplemented: a name or choice that is not offered;
  // kInvalidArgument: a wrong type, a number out of range, a required one that is missing.
  // fill: absent ones get their fallback (a config does, a conformance request does not).
  static StatusOr<Options> Make(std::span<const OptionSpec> specs, const std::map<std::string, Value>& given,
                                bool fill);

  [[nodiscard]] std::optional<double> Number(std::string_view name) const;
  [[nodiscard]] double Number(std::string_view name, double otherwise) const;
  [[nodiscard]] std::string Text(std::string_view name, std::string_view otherwise = {}) const;
  [[nodiscard]] const std::map<std::string, Value, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, Value, std::less<>> values_;
};

// "0.2", "none", "group_std": as YAML would show it; "" for no value.
std::string ValueText(const Value& value);
// "a number, at least 0", "one of mean, loo".
std::string DescribeOption(const OptionSpec& spec);

}  // namespace tidepool::algorithms
