// Filters on numbers, and those that take any value.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/text/jinja/operations.h"
#include "core/text/unicode.h"

namespace tidepool::text::jinja {
namespace {

// Python's int(text, base), without the surrounding blanks; nothing if it is no such number.
std::optional<int64_t> ParseInteger(std::string_view given, int base) {
  std::string text;
  const std::string stripped = Strip(given, nullptr, true, true);
  for (size_t i = 0; i < stripped.size(); ++i) {
    if (stripped[i] == '_' && i > 0 && i + 1 < stripped.size()) continue;
    text.push_back(stripped[i]);
  }
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.erase(0, 1);
  for (const auto& [prefix, prefix_base] : {std::pair{"0x", 16}, {"0o", 8}, {"0b", 2}}) {
    if (base == prefix_base && ToLower(text).starts_with(prefix)) text.erase(0, 2);
  }
  if (text.empty() || text[0] == '-') return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> ParseFloat(std::string_view given) {
  std::string text = Strip(given, nullptr, true, true);
  if (text.starts_with('+')) text.erase(0, 1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> Truncate(double value) {
  if (!(value > -9.2e18 && value < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(value);
}

Value Default(const Operands& o) {
  const Value* fallback = o.Get(0, "default_value");
  const bool use = o.self.is(Kind::kUndefined) || (o.Flag(1, "boolean") && !Truth(o.self));
  return !use ? o.self : fallback != nullptr ? *fallback : o.e.String("");
}

Value AsInteger(const Operands& o) {
  int64_t base = 10;
  const Value* fallback = o.Get(0, "default");
  std::optional<int64_t> value;
  if (o.self.is(Kind::kUndefined)) return o.Fail("met an undefined value");
  if (!o.Integer(1, "base", &base)) return {};
  if (base < 2 || base > 36) return o.Fail("takes a base from 2 to 36");
  if (o.self.is_string()) {
    value = ParseInteger(o.self.string(), static_cast<int>(base));
    const std::optional<double> real = value ? std::nullopt : ParseFloat(o.self.string());
    if (real) value = Truncate(*real);
  } else if (o.self.is_number()) {
    value = o.self.is(Kind::kFloat) ? Truncate(o.self.real()) : std::optional(o.self.integer());
  }
  return value ? Value::Int(*value) : fallback != nullptr ? *fallback : Value::Int(0);
}

Value AsFloat(const Operands& o) {
  const Value* fallback = o.Get(0, "default");
  std::optional<double> value;
  if (o.self.is(Kind::kUndefined)) return o.Fail("met an undefined value");
  if (o.self.is_string()) value = ParseFloat(o.self.string());
  if (o.self.is_number()) value = o.self.real();
  return value ? Value::Float(*value) : fallback != nullptr ? *fallback : Value::Float(0.0);
}

Value Absolute(const Operands& o) {
  if (!o.self.is_number()) return o.Fail("takes a number, not " + TypeName(o.self));
  if (o.self.is(Kind::kFloat)) return Value::Float(std::fabs(o.self.real()));
  const int64_t value = o.self.integer();
  return value < 0 ? o.e.IntegerArithmetic('-', 0, value) : Value::Int(value);
}

Value Json(const Operands& o) {
  // The order of parameters is that of transformers' filter.
  JsonStyle style;
  style.ensure_ascii = o.Flag(0, "ensure_ascii");
  if (!o.Integer(1, "indent", &style.indent)) return {};
  if (style.indent > 1000) return o.Exhausted("takes an indent of at most 1000");
  if (const Value* separators = o.Get(2, "separators");
      separators != nullptr && separators->is_sequence() && separators->list().size() == 2) {
    style.item_separator = o.e.Str(separators->list()[0]);
    style.key_separator = o.e.Str(separators->list()[1]);
  }
  style.sort_keys = o.Flag(3, "sort_keys");
  std::string text;
  if (const Status status = AppendJson(o.self, style, &text); !status.ok()) return o.e.Fail(status.message());
  return o.e.String(std::move(text));
}

Value Round(const Operands& o) {
  int64_t precision = 0;
  const Value* method = o.Get(1, "method");
  const std::string how = method != nullptr ? o.e.Str(*method) : "common";
  if (!o.Integer(0, "precision", &precision)) return {};
  if (!o.self.is_number()) return o.Fail("takes a number, not " + TypeName(o.self));
  if (precision < -300 || precision > 300) return o.Fail("takes a precision from -300 to 300");
  if (how == "common") {
    if (o.self.is_integer() && precision >= 0) return Value::Int(o.self.integer());
    char buffer[700];
    if (precision >= 0) {  // decimal rounding of the exact value, half to even, as Python's round
      std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), o.self.real());
      return Value::Float(std::strtod(buffer, nullptr));
    }
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    const double value = std::nearbyint(o.self.real() / scale) * scale;
    if (o.self.is_integer()) {
      const std::optional<int64_t> whole = Truncate(value);
      return whole ? Value::Int(*whole) : o.e.Fail("an integer beyond 64 bits");
    }
    return Value::Float(value);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (how == "ceil") return Value::Float(std::ceil(o.self.real() * scale) / scale);
  if (how == "floor") return Value::Float(std::floor(o.self.real() * scale) / scale);
  return o.Fail("knows the methods common, ceil and floor");
}

constexpr Operation kNumberOperations[] = {
    {kFilter, "default d", Default},
    {kFilter, "int", AsInteger},
    {kFilter, "float", AsFloat},
    {kFilter, "abs", Absolute},
    {kFilter, "round", Round},
    {kFilter, "tojson", Json},
    {kFilter, "safe", [](const Operands& o) { return o.self; }},
};

}  // namespace

std::span<const Operation> NumberOperations() { return kNumberOperations; }

}  // namespace tidepool::text::jinja
