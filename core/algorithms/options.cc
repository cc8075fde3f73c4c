#include "core/algorithms/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/base/names.h"

namespace tidepool::algorithms {
namespace {

std::string Short(double v) {
  std::array<char, 32> buffer{};
  const auto r = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v);
  return {buffer.data(), r.ptr};
}

Status Check(const OptionSpec& spec, const Value& value) {
  const std::string said = spec.name + " is " + ValueText(value) + "; expected " + DescribeOption(spec);
  if (spec.choices.empty()) {
    const double* v = std::get_if<double>(&value);
    return v != nullptr && *v >= spec.lo && *v <= spec.hi ? OkStatus() : InvalidArgument(said);
  }
  const std::string* v = std::get_if<std::string>(&value);
  if (v == nullptr) return InvalidArgument(said);
  return std::ranges::count(spec.choices, *v) > 0 ? OkStatus() : Unimplemented(said);
}

}  // namespace

OptionSpec Choice(std::string name, Value fallback, std::vector<std::string> choices, std::string doc) {
  return {.name = std::move(name),
          .fallback = std::move(fallback),
          .choices = std::move(choices),
          .doc = std::move(doc)};
}

StatusOr<Options> Options::Make(std::span<const OptionSpec> specs, const std::map<std::string, Value>& given,
                                bool fill) {
  Options o;
  for (const auto& [name, value] : given) {
    if (std::holds_alternative<std::monostate>(value)) continue;
    const auto spec = std::ranges::find(specs, name, &OptionSpec::name);
    if (spec == specs.end()) {
      const std::string list = Listed(specs, &OptionSpec::name);
      return Unimplemented("no option is named " + name +
                           (list.empty() ? "; there are none" : "; there are " + list));
    }
    TP_RETURN_IF_ERROR(Check(*spec, value));
    o.values_[name] = value;
  }
  for (const OptionSpec& spec : specs) {
    if (o.values_.contains(spec.name)) continue;
    // null, written on purpose, takes a default away.
    const bool taken_away = given.contains(spec.name);
    if (fill && !taken_away && !std::holds_alternative<std::monostate>(spec.fallback))
      o.values_[spec.name] = spec.fallback;
    if (spec.required && !o.values_.contains(spec.name)) {
      return InvalidArgument(spec.name + " is missing; expected " + DescribeOption(spec));
    }
  }
  return o;
}

std::optional<double> Options::Number(std::string_view name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return std::nullopt;
  const double* v = std::get_if<double>(&it->second);
  return v == nullptr ? std::nullopt : std::optional(*v);
}
double Options::Number(std::string_view name, double otherwise) const {
  return Number(name).value_or(otherwise);
}
std::string Options::Text(std::string_view name, std::string_view otherwise) const {
  const auto it = values_.find(name);
  const std::string* v = it == values_.end() ? nullptr : std::get_if<std::string>(&it->second);
  return v == nullptr ? std::string(otherwise) : *v;
}

std::string ValueText(const Value& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const double* d = std::get_if<double>(&value)) return Short(*d);
  if (const std::string* s = std::get_if<std::string>(&value)) return *s;
  return "";
}

std::string DescribeOption(const OptionSpec& spec) {
  if (!spec.choices.empty()) return "one of " + Listed(spec.choices);
  std::string text = "a number";
  if (std::isfinite(spec.lo)) text += ", at least " + Short(spec.lo);
  if (std::isfinite(spec.hi))
    text += std::string(std::isfinite(spec.lo) ? " and" : ",") + " at most " + Short(spec.hi);
  return text;
}

}  // namespace tidepool::algorithms
